"""Fixtures that several files here ask for; the classes behind them are in `tests/rigs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from delaybridge import AsyncClient, Client, Message
from delaybridge.ingest.kafka import consumer, subscription
from delaybridge.store.redis.store import Store
from tests.rigs.api import api
from tests.rigs.bucket import Owner, World
from tests.rigs.command_line import Run, runner
from tests.rigs.crew import SELDOM, Arrived, Crew, note_arrivals
from tests.rigs.flavours import FLAVOURS, TO, Awaited, Maker
from tests.rigs.fleet import Fleet, FleetFactory
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_rabbitmq import Exchanges, reading
from tests.rigs.kafka_site import KafkaSite, Reports
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.rabbitmq_site import Site
from tests.rigs.redis_troubles import Pair
from tests.rigs.scanner import Rig, RigFactory
from tests.rigs.sessions import token_file_in
from tests.rigs.timetable import Timetable
from tests.servers.process import LOOPBACK
from tests.servers.redis import EVERY_VERSION, VERSIONS, RedisServer


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> Arrived:
    """Every memory:// broker of a worker in this process tells this one."""
    return note_arrivals(monkeypatch)


@pytest.fixture
async def crew(redis_url: str, namespace: str, arrived: Arrived) -> AsyncIterator[Crew]:
    crew = Crew(redis_url, namespace)
    yield crew
    await crew.close()


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Runs the test with each kind of database: its URL, the ledger's tables are in it."""
    if request.param == "sqlite":
        return made(f"sqlite:///{tmp_path / 'ledger.db'}")
    return made(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[LedgerProbe]:
    """The same database, beside the product."""
    probe = LedgerProbe(ledger_url)
    yield probe
    probe.close()


@pytest.fixture
def flags(redis_url: str, namespace: str) -> list[str]:
    """Global options for a namespace of this test's own."""
    return ["--redis", redis_url, "--namespace", namespace]


@pytest.fixture
def run(
    flags: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Run:
    """Runs a command line in this process, in a folder without settings."""
    monkeypatch.chdir(tmp_path)
    return runner(flags, capsys, monkeypatch)


@pytest.fixture
async def http(
    request: pytest.FixtureRequest, redis_url: str, namespace: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API, whose brokers are the BROKERS of the test's file."""
    brokers = getattr(request.module, "BROKERS", {})
    async with api(redis_url, namespace, brokers=brokers) as client:
        yield client


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A token of each scope."""
    return token_file_in(tmp_path)


@pytest.fixture
async def guarded(
    request: pytest.FixtureRequest, redis_url: str, namespace: str, token_file: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """The same, where a request needs a token."""
    brokers = getattr(request.module, "BROKERS", {})
    async with api(redis_url, namespace, brokers=brokers, token_file=str(token_file)) as client:
        yield client


@pytest.fixture
def caller(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client in the namespace of the command lines."""
    with Client(redis_url, namespace=namespace) as client:
        yield client


@pytest.fixture
def store(redis_url: str) -> Iterator[Store]:
    """Runs commands that a client does not have."""
    store = Store(redis_url)
    yield store
    store.close()


@pytest.fixture
def world(any_redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    """One bucket on each Redis that is supported."""
    with World(any_redis_url, namespace, now_ms) as world:
        yield world


@pytest.fixture
def now(now_ms: int) -> int:
    """The time of `world` when the test starts."""
    return now_ms


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """Redis without the product: to look at keys, or to damage them."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def owner_of(store: Store, redis_url: str, namespace: str) -> Iterator[Callable[[str], Owner]]:
    """Makes the owner of a message's bucket, without a worker: its name is `test`."""
    with ExitStack() as worlds:

        def owner(id: str) -> Owner:
            world = World.of_key(store, redis_url, namespace, id.encode())
            return worlds.enter_context(world).owner("test")

        yield owner


@pytest.fixture
def fleet_of(redis_url: str, namespace: str, tmp_path: Path) -> Iterator[FleetFactory]:
    """Makes a fleet on the namespace of the test; its processes are gone when the test is."""
    fleets: list[Fleet] = []

    def make(url: str = redis_url, **options: Any) -> Fleet:
        fleets.append(Fleet(tmp_path, url, namespace, **options))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.__exit__()


@pytest.fixture
def fleet(fleet_of: FleetFactory) -> Fleet:
    return fleet_of()


@pytest.fixture
def patient(fleet_of: FleetFactory) -> Fleet:
    """What waits for a lease of this fleet to run out misses every deadline."""
    return fleet_of(ttl_ms=SELDOM["ttl_ms"])


@pytest.fixture
def rig_of(redis_url: str, namespace: str) -> RigFactory:
    """Makes a scanner's rig on the namespace of the test, to be entered."""
    return lambda **options: Rig(redis_url, namespace, **options)


@pytest.fixture
async def rig(rig_of: RigFactory) -> AsyncIterator[Rig]:
    async with rig_of() as rig:
        yield rig


@pytest.fixture
async def lone(rig_of: RigFactory) -> AsyncIterator[Rig]:
    """A rig of one bucket."""
    async with rig_of(buckets=1) as rig:
        yield rig


@pytest.fixture
def table(redis_url: str, namespace: str) -> Iterator[Timetable]:
    with Timetable(redis_url, namespace) as table:
        yield table


@pytest.fixture
def watched_kafka_url(real_kafka_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The shared Kafka; ingest in this process looks every moment for topics, owners and lag."""
    monkeypatch.setattr(consumer, "MEASURE_S", 0.2)
    monkeypatch.setattr(consumer, "CHECK_OWNERS_S", 0.5)
    monkeypatch.setattr(subscription, "SETTLED_S", 2.0)
    return f"{real_kafka_url}?topic.metadata.refresh.interval.ms=500"


@pytest.fixture
def kafka(watched_kafka_url: str) -> Kafka:
    return Kafka(watched_kafka_url)


@pytest.fixture(scope="module")
def kafka_site(
    redis_url: str, real_kafka_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaSite]:
    """For tests of a drop-in producer. Its worker ends with the file: others count commands."""
    folder = tmp_path_factory.mktemp("site")
    with KafkaSite(folder, redis_url, real_kafka_url) as site:
        yield site


@pytest.fixture(scope="module")
def rabbitmq_site(
    redis_url: str, rabbitmq_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """The same for RabbitMQ."""
    with Site(tmp_path_factory.mktemp("site"), redis_url, rabbitmq_url) as site:
        yield site


@pytest.fixture
def reports() -> Reports:
    """What a producer of confluent_kafka reports."""
    return Reports()


@pytest.fixture
def entrance_url(rabbitmq_url: str) -> str:
    """The broker that `make_entrance` reads; a file may name another one."""
    return rabbitmq_url


@pytest.fixture
def rabbit(entrance_url: str) -> Exchanges:
    return Exchanges(entrance_url)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A private Redis that a test may stop and damage."""
    with RedisServer(["--appendonly", "yes"]) as server:
        yield server


@pytest.fixture
async def make_entrance(
    redis_url: str, entrance_url: str, namespace: str
) -> AsyncIterator[MakeEntrance]:
    """Makes entrances: they read NAMESPACE.delay; of Kafka NAMESPACE*.delay, as their own group.

    space: the namespace to which an entrance belongs, if it is another one.
    """
    async with AsyncExitStack() as stack:

        def make(
            *,
            url: str = entrance_url,
            redis: str = redis_url,
            space: str = namespace,
            **ingest: Any,
        ) -> Entrance:
            if url.startswith("kafka"):
                kind, given = "kafka", {"topics": [f"{namespace}*.delay"], "group": namespace}
            else:
                kind, given = "rabbitmq", {"exchanges": [f"{namespace}.delay"]}
            entrance = Entrance(redis, space, {kind: url}, **{**given, **ingest})
            stack.push_async_exit(entrance)
            return entrance

        yield make


@pytest.fixture
def entrance(make_entrance: MakeEntrance) -> Entrance:
    return make_entrance()


@pytest.fixture
async def open_entrance(make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str) -> Entrance:
    """An ingest process that reads NAMESPACE.delay of RabbitMQ, a worker, and the target."""
    await rabbit.target(namespace)
    entrance = make_entrance(destinations=[f"rabbitmq:{namespace}-other"])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, f"{namespace}.delay")
    return entrance


@pytest.fixture(params=FLAVOURS, ids=["sync", "async"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Maker]:
    """Makes clients of either flavour, and closes them."""
    made: list[Awaited] = []

    def connect(url: str, **fields: Any) -> Awaited:
        made.append(Awaited(request.param(url, **fields)))
        return made[-1]

    yield connect
    for client in made:
        await client.close()


@pytest.fixture
def client(make: Maker, redis_url: str, namespace: str) -> Awaited:
    """A client of either flavour, on the shared Redis."""
    return make(redis_url, namespace=namespace)


@pytest.fixture
def bucket_of_x(store: Store, redis_url: str, namespace: str) -> Callable[[], World]:
    """The bucket of id `x`, once the namespace exists: from the owners' side, at Redis' time."""
    return lambda: World.of_key(store, redis_url, namespace, b"x")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis for this test alone, which keeps nothing when it ends."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    """`server`, without the product."""
    with redis.Redis(host=LOOPBACK, port=server.port) as connection:
        yield connection


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own(own_server: RedisServer) -> Iterator[redis.Redis]:
    """A Redis that this test may flush, count and configure."""
    with redis.Redis(host=LOOPBACK, port=own_server.port) as connection:
        connection.flushall()
        connection.config_resetstat()
        yield connection
        connection.config_set("maxmemory", 0)


@pytest.fixture
def own_url(own_server: RedisServer, own: redis.Redis) -> str:
    return own_server.url


@pytest.fixture
def proxy(own_server: RedisServer, own: redis.Redis) -> Iterator[LossyProxy]:
    """The way to `own` that loses replies."""
    with LossyProxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture
async def together(own_url: str, own: redis.Redis) -> AsyncIterator[AsyncClient]:
    """An AsyncClient that has met every bucket of `own`."""
    async with AsyncClient(own_url) as client:
        await client.schedule_many([Message(TO, b"", delay=60, id=f"f{n}") for n in range(200)])
        own.config_resetstat()
        yield client


@pytest.fixture(params=EVERY_VERSION)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two servers of one version."""
    binary = VERSIONS[request.param]()
    if binary is None and request.param != "redis":
        pytest.skip("no such server here")
    at_once = ["--repl-diskless-sync-delay", "0"]
    with RedisServer(at_once, binary=binary) as one, RedisServer(at_once, binary=binary) as other:
        yield one, other

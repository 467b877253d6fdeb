"""`durability`: what an answer promises is true of the replicas, or of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client
from delaybridge.errors import ConfigError, NotDurable, StoreUnavailable
from delaybridge.ingest.storing import EntryStore
from delaybridge.intercept.kafka_outbox import Outbox
from delaybridge.intercept.kafka_reports import Bounds, Produced
from delaybridge.message import Answer, Limits, Message
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from tests.rigs.command_line import Result, runner
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.flavours import FLAVOURS, TO, Maker, Threaded
from tests.rigs.waiting import DEADLINE_S, until, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import EVERY_VERSION, VERSIONS, RedisServer, redis62_binary, valkey_binary

REPLICATED = "replicated:1"


class Replicated:
    """A master, and a replica behind a proxy that can stall it."""

    def __init__(self, master: RedisServer, replica: RedisServer, proxy: FaultProxy) -> None:
        self.master, self.replica, self.proxy = master, replica, proxy

    def stall(self) -> None:
        """The replica gets and says nothing any more, and nobody notices."""
        self.proxy.mode = "blackhole"

    async def resume(self) -> None:
        self.proxy.mode = "pass"
        self.proxy.reset()
        await self.in_sync()

    async def in_sync(self) -> None:
        with redis.Redis(host=LOOPBACK, port=self.master.port) as admin:
            await asyncio.to_thread(_wait_for_replica, admin)

    async def fail_over(self) -> None:
        """The master dies; the replica takes over, with what it has."""
        await asyncio.to_thread(self.master.kill)
        with redis.Redis(host=LOOPBACK, port=self.replica.port) as admin:
            admin.replicaof("NO", "ONE")


def _wait_for_replica(admin: redis.Redis) -> None:
    def confirms() -> bool:
        """Several times at once: after its first answer a replica is busy for half a second."""
        return all(admin.set("any", 1) and admin.wait(1, 20) == 1 for _ in range(5))

    until(confirms, "the replica confirms")


@pytest.fixture
async def site(request: pytest.FixtureRequest) -> AsyncIterator[Replicated]:
    binary = VERSIONS[getattr(request, "param", "redis")]()
    fast = ["--repl-diskless-sync-delay", "0", "--repl-timeout", "60"]
    with RedisServer(fast, binary=binary) as master, RedisServer(fast, binary=binary) as replica:
        async with FaultProxy(free_port(), master.port) as proxy:
            with redis.Redis(host=LOOPBACK, port=replica.port) as admin:
                await asyncio.to_thread(admin.replicaof, LOOPBACK, proxy.port)
            found = Replicated(master, replica, proxy)
            await found.in_sync()
            yield found


@pytest.fixture
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Maker]:
    """As the fixture of that name; a `Client` blocks a thread and not the loop of the proxy."""
    made: list[Threaded] = []
    flavour = getattr(request, "param", AsyncClient)

    def connect(url: str, **fields: Any) -> Threaded:
        made.append(Threaded(flavour(url, **fields)))
        return made[-1]

    yield connect
    for each in made:
        await each.close()


@pytest.fixture
def client(site: Replicated, make: Maker, namespace: str) -> Any:
    """Waits as long as a stalled machine needs."""
    return make(site.master.url, namespace=namespace, timeout_s=DEADLINE_S, durability=REPLICATED)


@pytest.fixture
def hasty(site: Replicated, make: Maker, namespace: str) -> Any:
    """For calls that no replica confirms."""
    return make(site.master.url, namespace=namespace, timeout_s=0.8, durability=REPLICATED)


async def is_not_durable(call: Callable[[], Any]) -> None:
    """No replica confirms it. A stalled machine may not answer at all; then it is asked again."""

    async def is_told() -> bool:
        try:
            answer = await call()
        except NotDurable as exc:
            assert "0 of 1 replicas" in str(exc)
            return True
        except StoreUnavailable:
            return False
        raise AssertionError(f"it is accepted: {answer}")

    await until_async(is_told, "it is told that no replica has it")


@pytest.mark.parametrize("make", FLAVOURS, indirect=True)
@pytest.mark.parametrize("site", EVERY_VERSION, indirect=True)
async def test_what_was_accepted_survives_a_fail_over_to_a_replica_that_is_behind(
    site: Replicated, client: Threaded, hasty: Threaded, namespace: str, make: Maker
) -> None:
    accepted = [await client.schedule(TO, b"x", delay="1h", id=f"a{i}") for i in range(9)]
    site.stall()
    await is_not_durable(lambda: hasty.schedule(TO, b"x", delay="1h", id="b"))
    assert await client.get("b") is not None  # and yet it is there
    await site.fail_over()
    new = make(site.replica.url, namespace=namespace)
    assert all([await new.get(receipt.id) for receipt in accepted])
    assert await new.get("b") is None


async def test_the_same_call_completes_it_also_if_the_answer_is_duplicate(
    site: Replicated, client: Threaded, hasty: Threaded
) -> None:
    await client.schedule(TO, b"x", delay="1h", id="first")
    site.stall()
    for _ in range(2):  # the second time it writes nothing
        await is_not_durable(lambda: hasty.schedule(TO, b"x", delay="1h", id="a"))
    await site.resume()
    assert await client.schedule(TO, b"x", delay="1h", id="a") == "duplicate"


@pytest.mark.parametrize("site", EVERY_VERSION, indirect=True)
async def test_a_duplicate_on_a_new_connection_is_not_durable_either(
    site: Replicated, client: Threaded, hasty: Threaded, make: Maker, namespace: str
) -> None:
    """Its connection wrote nothing before: WAIT alone would answer at once."""
    await client.schedule(TO, b"x", delay="1h", id="first")
    other = make(site.master.url, namespace=namespace, timeout_s=0.8, durability=REPLICATED)

    async def is_connected() -> bool:
        with contextlib.suppress(StoreUnavailable):
            return await other.get("first") is not None
        return False

    await until_async(is_connected, "it is connected")
    site.stall()
    await is_not_durable(lambda: hasty.schedule(TO, b"x", delay="1h", id="a"))
    await is_not_durable(lambda: other.schedule(TO, b"x", delay="1h", id="a"))


async def test_every_answer_that_promises_something_is_waited_for(
    site: Replicated, client: Threaded, hasty: Threaded
) -> None:
    await client.schedule(TO, b"x", delay="1h", id="a")
    site.stall()
    message = Message(TO, b"x", delay="1h")
    for call in (
        lambda: hasty.schedule_many([message] * 3),
        lambda: hasty.reschedule("a", delay="2h"),
        lambda: hasty.cancel("a"),
        lambda: hasty.dead.kick("a"),
        lambda: hasty.dead.discard("a"),
        lambda: hasty.destinations.pause(TO),
    ):
        await is_not_durable(call)
    assert (await client.stats()).delayed >= 3  # reading waits for nothing
    assert await client.get("a") is None


def test_the_command_line_says_how_to_repeat_it(
    redis_url: str, asks: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    # For the most of it Redis waits for the replica. A starved one may answer too late.
    monkeypatch.setenv("DELAYBRIDGE_REDIS__TIMEOUT_S", "3")

    def told() -> str:
        result = asks(redis_url, "replicated:1", "schedule", TO, "x", "--in", "1h")
        assert result.code == 5
        return result.err if "not durable" in result.err else ""

    error = until(told, "it says that it is not durable")
    assert "0 of 1 replicas" in error
    assert "repeat with --id " in error


class Confirming:
    """A store or client that does what it is asked, and confirms nothing the first few times."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.calls = refusals, list[str]()

    def asked(self, call: str) -> None:
        self.calls.append(call)
        self.refusals -= 1
        if self.refusals >= 0:
            raise NotDurable


async def test_ingest_sends_a_record_again_only_once_writes_are_confirmed() -> None:
    """Each time it is sent, a message with a short delay may be published."""

    class OfIngest(Confirming):
        async def complete(self, steps: Any) -> None:
            self.asked(steps.__name__)

    store: Any = OfIngest(3)
    entries = EntryStore(store, Calls("ns", None, None, Limits()), lambda event: None)
    await entries.pause({0: NotDurable("not yet"), 1: StoreUnavailable("silent")}, 60.0)
    assert store.calls == ["confirmed"] * 4


def test_a_kafka_producer_does_the_same() -> None:
    class OfProducer(Confirming):
        timeout_s = 1.0

        def run(self, call: Any) -> Any:
            answer = call(self)
            if isinstance(answer, list):
                return answer
            if answer.__name__ == "servers":
                return 1
            self.asked("confirmed")
            return [None]

        def schedule_each(self, *_: Any) -> list[Receipt]:
            self.asked("schedule")
            return [Receipt(Answer.CREATED, "a", 1, 0)]

    outbox = Outbox(Bounds(0, 1024, 10), logging.getLogger())
    client: Any = OfProducer(2)
    accepted: Any = SimpleNamespace(payload=b"x", id="a", when="1")
    outbox.put(client, accepted, Produced("t", b"x", None, -1, [], None, False))
    until(lambda: not len(outbox), "it is stored")
    assert client.calls == ["schedule", "confirmed", "confirmed", "schedule"]


# on disk


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    options = ["--appendonly", "yes", "--appendfsync", "everysec"]
    with RedisServer(options, binary=valkey_binary()) as server:
        yield server


async def test_waitaof_is_asked_where_the_server_has_it(
    valkey: RedisServer, make: Maker, namespace: str
) -> None:
    client = make(valkey.url, namespace=namespace, durability="aof-fsync")
    assert await client.schedule(TO, b"x", delay="1h", id="a") == "created"
    assert await client.schedule(TO, b"x", delay="1h", id="a") == "duplicate"
    with redis.Redis(host=LOOPBACK, port=valkey.port) as admin:
        assert admin.info("commandstats")["cmdstat_waitaof"]["calls"] >= 2
        admin.config_set("appendonly", "no")
    with pytest.raises(NotDurable, match="appendonly is off"):
        await client.cancel("a")


@pytest.mark.parametrize("binary", [lambda: None, redis62_binary])
async def test_without_waitaof_only_appendfsync_always_is_durable(
    binary: object, make: Maker, namespace: str
) -> None:
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    with RedisServer(options, binary=binary()) as server:  # type: ignore[operator]
        client = make(server.url, namespace=namespace, durability="aof-fsync")
        assert await client.schedule(TO, b"x", delay="1h", id="a") == "created"
        with redis.Redis(host=LOOPBACK, port=server.port) as admin:
            admin.config_set("appendfsync", "everysec")
        with pytest.raises(NotDurable, match="its appendfsync is everysec"):
            await client.cancel("a")


# the gate


@pytest.fixture
def asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], namespace: str
) -> Callable[..., Result]:
    def call(url: str, durability: str, *words: str) -> Result:
        monkeypatch.setenv("DELAYBRIDGE_DURABILITY", durability)
        return runner(["--redis", url, "--namespace", namespace], capsys, monkeypatch)(*words)

    return call


def test_aof_on_a_redis_without_one_is_refused_with_the_remedy(
    redis_url: str, namespace: str, asks: Callable[..., Result]
) -> None:
    """Nothing is written. What only reads tells about it."""
    first = asks(redis_url, "aof", "doctor")
    assert "FAIL  durability: appendonly" in first.out
    assert f"{namespace} is new" in first.out
    with (
        Client(redis_url, namespace=namespace, durability="aof") as client,
        pytest.raises(ConfigError, match="appendonly is no"),
    ):
        client.schedule(TO, b"x", delay="1h")
    refused = asks(redis_url, "aof", "schedule", TO, "x", "--in", "1h")
    assert (refused.code, refused.err.count("set: appendonly yes")) == (5, 1)
    scan = asks(redis_url, "aof", "--broker", "memory://", "scan")
    assert (scan.code, scan.err.count("set: appendonly yes")) == (2, 1)
    health = asks(redis_url, "aof", "--json", "health").objects[0]
    assert (health["durability"], health["is_durable"]) == ("aof", False)
    assert [each for each in health["faults"] if "appendonly is no" in each]
    doctor = asks(redis_url, "aof", "doctor")
    assert "FAIL  durability: appendonly" in doctor.out


async def test_health_says_how_many_replicas_are_online(
    site: Replicated, asks: Callable[..., Result]
) -> None:
    def health(durability: str) -> dict[str, Any]:
        return asks(site.master.url, durability, "--json", "health").objects[0]

    assert (await asyncio.to_thread(health, "replicated:1"))["is_durable"] is True
    two = await asyncio.to_thread(health, "replicated:2")
    assert [each for each in two["faults"] if "1 of 2 replicas" in each]
    doctor = await asyncio.to_thread(asks, site.master.url, "replicated:1", "doctor")
    assert "WARN  durability: min-replicas-to-write" in doctor.out
    assert "ok    durability: replicated:1" in doctor.out

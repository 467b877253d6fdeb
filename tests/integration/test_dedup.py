"""Marks of processed messages: on Redis, and in transactions of each library and database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import django
import pika
import psycopg
import pymysql
import pytest
import redis
import sqlalchemy
from django.conf import settings as django_settings
from django.db.utils import ConnectionHandler
from redis import asyncio as redis_asyncio
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from delaybridge import MessageError, StoreDamaged, StoreDenied, StoreUnavailable
from delaybridge.dedup import (
    AsyncRedisDedup,
    ClaimLost,
    InProgress,
    RedisDedup,
    SqlDedup,
    sql_once,
    sql_once_async,
)
from delaybridge.sql_connection import dialect_of, execute, execute_async, fetch, fetch_async
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

MANY = 1000
PAGE = Path(__file__).parents[2] / "docs" / "effectively-once.md"
SHORT = "250ms"  # a claim that a test awaits the end of
DIES = """
import sys
from delaybridge.dedup import RedisDedup
with RedisDedup(sys.argv[1], prefix=sys.argv[2], processing=sys.argv[3]).once("order-42") as first:
    print("claimed", first, flush=True)
    sys.stdin.read()
    print("the effect", flush=True)
"""


class Oops(Exception):
    """An effect failed."""


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def dedup(client: redis.Redis, namespace: str) -> RedisDedup:
    return RedisDedup(client, prefix=namespace)


def test_the_second_delivery_is_told_apart(dedup: RedisDedup, client: redis.Redis) -> None:
    with dedup.once("order-42") as first:
        assert first
        assert client.get(dedup.key("order-42")).startswith(b"claim:")  # type: ignore[union-attr]
    with dedup.once("order-42") as first:
        assert not first
    with dedup.once("order-43") as first:
        assert first
    assert client.get(dedup.key("order-42")) == b"done"
    assert 86_390_000 < client.pttl(dedup.key("order-42")) <= 86_400_000  # type: ignore[operator]


def test_a_client_that_decodes_replies(redis_url: str, namespace: str) -> None:
    for protocol in (2, 3):
        with redis.Redis.from_url(redis_url, decode_responses=True, protocol=protocol) as client:
            dedup = RedisDedup(client, prefix=f"{namespace}:{protocol}")
            for expected in (True, False):
                with dedup.once("é") as first:
                    assert first is expected


def test_a_client_of_its_own_is_closed(redis_url: str, namespace: str) -> None:
    dedup = RedisDedup(redis_url, prefix=namespace)
    with dedup.once("order-42") as first:
        assert first
    dedup.close()


def test_while_another_one_works_on_it(dedup: RedisDedup) -> None:
    with dedup.once("order-42"):
        with pytest.raises(InProgress) as refused, dedup.once("order-42"):
            pytest.fail("the block ran")
        assert refused.value.id == "order-42"
        assert 290_000 < refused.value.wait_ms <= 300_000
    with dedup.once("order-42") as first:
        assert not first


@pytest.mark.parametrize("error", [Oops, KeyboardInterrupt, GeneratorExit])
def test_a_failed_effect_is_tried_again(
    dedup: RedisDedup, client: redis.Redis, error: type[BaseException]
) -> None:
    with pytest.raises(error), dedup.once("order-42"):
        raise error
    assert client.exists(dedup.key("order-42")) == 0
    with dedup.once("order-42") as first:
        assert first


def test_an_error_after_it_was_done_before_changes_nothing(dedup: RedisDedup) -> None:
    with dedup.once("order-42"):
        pass
    with pytest.raises(Oops), dedup.once("order-42") as first:
        assert not first
        raise Oops
    assert dedup.claim("order-42") is None


def expired(client: redis.Redis, key: str) -> None:
    """Return when a claim has expired."""
    until(lambda: not client.exists(key), "the claim expired")


def test_an_effect_that_outlasts_its_claim(client: redis.Redis, namespace: str) -> None:
    slow = RedisDedup(client, prefix=namespace, processing=SHORT)
    with slow.once("nobody came"):
        expired(client, slow.key("nobody came"))
    assert slow.claim("nobody came") is None  # done nevertheless: it happened

    other = RedisDedup(client, prefix=namespace)
    with pytest.raises(ClaimLost, match="longer than 250 ms"), slow.once("another came"):
        expired(client, slow.key("another came"))
        token = other.claim("another came")
    assert token is not None
    with pytest.raises(InProgress):  # the other one's claim was left alone
        slow.claim("another came")
    other.done("another came", token)
    assert slow.claim("another came") is None


def test_a_failed_effect_leaves_the_claim_of_another_one(
    client: redis.Redis, namespace: str
) -> None:
    slow = RedisDedup(client, prefix=namespace, processing=SHORT)
    other = RedisDedup(client, prefix=namespace)
    with pytest.raises(Oops), slow.once("order-42"):
        expired(client, slow.key("order-42"))
        token = other.claim("order-42")
        raise Oops
    assert token is not None
    assert not slow.release("order-42", "claim:mine")
    assert other.release("order-42", token)


def test_a_call_that_is_sent_again_knows_itself(
    dedup: RedisDedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a lost reply; redis-py does so by itself."""
    tokens = ["claim:one"] * 2 + ["claim:two"]
    monkeypatch.setattr("delaybridge.dedup.claims._new_token", lambda: tokens.pop(0))
    assert dedup.claim("order-42") == dedup.claim("order-42") == "claim:one"
    with pytest.raises(InProgress):
        dedup.claim("order-42")
    dedup.done("order-42", "claim:one")
    dedup.done("order-42", "claim:one")


def test_a_consumer_killed_before_its_effect_loses_nothing(
    dedup: RedisDedup, client: redis.Redis, redis_url: str, namespace: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DIES, redis_url, namespace, "1s"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as consumer:  # fmt: skip
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"claimed True\n"
        with pytest.raises(InProgress):
            dedup.claim("order-42")
        consumer.kill()
        assert consumer.stdout.read() == b""
    expired(client, dedup.key("order-42"))
    with dedup.once("order-42") as first:
        assert first


def test_of_many_consumers_at_once_exactly_one_claims(dedup: RedisDedup) -> None:
    start, claimed = threading.Barrier(8), []

    def claim() -> None:
        start.wait(DEADLINE_S)
        for n in range(100):
            with contextlib.suppress(InProgress):
                claimed.append((n, dedup.claim(f"order-{n}")))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(n for n, _ in claimed) == list(range(100))


def test_a_thousand_ids(dedup: RedisDedup) -> None:
    for expected in (True, False):
        for n in range(MANY):
            with dedup.once(f"order-{n}") as first:
                assert first is expected


@pytest.mark.parametrize("content", ["a list", "other text"])
def test_a_key_that_holds_something_else(
    dedup: RedisDedup, client: redis.Redis, content: str
) -> None:
    key = dedup.key("order-42")
    token = dedup.claim("order-42")
    assert token is not None
    client.delete(key)
    client.lpush(key, content) if content == "a list" else client.set(key, content)
    for call in (lambda: dedup.claim("order-42"), lambda: dedup.done("order-42", token)):
        with pytest.raises(StoreDamaged, match=f"'{key}' holds no mark"):
            call()
    assert client.exists(key) == 1


def test_without_redis() -> None:
    dedup = RedisDedup(redis.Redis(host=LOOPBACK, port=free_port(), socket_timeout=1))
    with pytest.raises(StoreUnavailable), dedup.once("order-42"):
        pytest.fail("the block ran")


def test_redis_goes_away_during_the_effect(namespace: str) -> None:
    with RedisServer() as server:
        dedup = RedisDedup(server.url, prefix=namespace)
        with pytest.raises(Oops), dedup.once("failed"):
            server.kill()
            raise Oops  # not hidden by the claim that cannot be taken back
        server.start()
        with pytest.raises(StoreUnavailable), dedup.once("done"):
            server.kill()
        dedup.close()


def test_the_rights_that_it_needs(client: redis.Redis, redis_url: str, namespace: str) -> None:
    rights = ["+eval", "+get", "+set", "+del", "+pttl"]
    client.acl_setuser(
        namespace, enabled=True, reset=True, nopass=True, keys=[f"{namespace}:*"], commands=rights
    )
    try:
        with redis.Redis.from_url(redis_url, username=namespace, password="x") as limited:
            dedup = RedisDedup(limited, prefix=namespace)
            for expected in (True, False):
                with dedup.once("order-42") as first:
                    assert first is expected
            with pytest.raises(Oops), dedup.once("order-43"):
                raise Oops
            with pytest.raises(StoreDenied):
                RedisDedup(limited, prefix="elsewhere").claim("order-42")
    finally:
        client.acl_deluser(namespace)


def test_on_a_cluster(cluster_url: str, namespace: str) -> None:
    host, port = cluster_url.partition("://")[2].partition(",")[0].split(":")
    with contextlib.closing(redis.RedisCluster(host=host, port=int(port))) as cluster:
        dedup = RedisDedup(cluster, prefix=namespace)
        for n in range(40):
            with dedup.once(f"order-{n % 20}") as first:
                assert first is (n < 20)


@pytest.fixture
async def async_dedup(redis_url: str, namespace: str) -> AsyncIterator[AsyncRedisDedup]:
    dedup = AsyncRedisDedup(redis_url, prefix=namespace)
    yield dedup
    await dedup.aclose()


async def test_the_async_twin(async_dedup: AsyncRedisDedup, dedup: RedisDedup) -> None:
    async with async_dedup.once("order-42") as first:
        assert first
        with pytest.raises(InProgress):
            dedup.claim("order-42")
        with pytest.raises(InProgress):
            await async_dedup.claim("order-42")
    async with async_dedup.once("order-42") as first:
        assert not first
    assert dedup.claim("order-42") is None
    with pytest.raises(Oops):
        async with async_dedup.once("order-43"):
            raise Oops
    assert await async_dedup.claim("order-43")


async def test_a_cancelled_effect_is_tried_again(async_dedup: AsyncRedisDedup) -> None:
    entered = asyncio.Event()

    async def effect() -> None:
        async with async_dedup.once("order-42"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(effect())
    await asyncio.wait_for(entered.wait(), DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with async_dedup.once("order-42") as first:
        assert first


async def test_the_async_twin_with_a_given_client(redis_url: str, namespace: str) -> None:
    async with redis_asyncio.Redis.from_url(redis_url, decode_responses=True) as client:
        dedup = AsyncRedisDedup(client, prefix=namespace)
        async with dedup.once("order-42") as first:
            assert first
        await dedup.aclose()  # leaves the client open
        assert await dedup.claim("order-42") is None


# --- SQL


class Opened(NamedTuple):
    """A connection, or what stands for one, and how its transaction ends."""

    given: Any
    commit: Callable[[], None]
    rollback: Callable[[], None]
    close: Callable[[], None]


def driver(url: sqlalchemy.URL) -> Any:
    """A connection of the database's own library."""
    if url.get_backend_name() == "sqlite":
        return sqlite3.connect(str(url.database), timeout=DEADLINE_S)
    if url.get_backend_name() == "postgresql":
        return psycopg.connect(conninfo(url))
    named = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
    return pymysql.connect(**named, password=url.password or "", charset="utf8mb4")


def conninfo(url: sqlalchemy.URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def open_driver(url: sqlalchemy.URL) -> Opened:
    made = driver(url)
    return Opened(made, made.commit, made.rollback, made.close)


def open_cursor(url: sqlalchemy.URL) -> Opened:
    made = driver(url)
    return Opened(made.cursor(), made.commit, made.rollback, made.close)


def open_sqlalchemy(url: sqlalchemy.URL) -> Opened:
    engine = sqlalchemy.create_engine(url)
    made = engine.connect()

    def close() -> None:
        made.close()
        engine.dispose()

    return Opened(made, made.commit, made.rollback, close)


def open_session(url: sqlalchemy.URL) -> Opened:
    engine = sqlalchemy.create_engine(url)
    made = Session(engine)

    def close() -> None:
        made.close()
        engine.dispose()

    return Opened(made, made.commit, made.rollback, close)


def open_scoped_session(url: sqlalchemy.URL) -> Opened:
    engine = sqlalchemy.create_engine(url)
    made = scoped_session(sessionmaker(engine))

    def close() -> None:
        made.remove()
        engine.dispose()

    return Opened(made, made.commit, made.rollback, close)


def set_up_django() -> None:
    if not django_settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        django_settings.configure(USE_TZ=True, DATABASES={"default": memory})
        django.setup()


def django_connection(url: sqlalchemy.URL) -> Any:
    """A connection of Django; in an application `django.db.connection`."""
    set_up_django()
    backend = {"sqlite": "sqlite3"}.get(url.get_backend_name(), url.get_backend_name())
    named = {"NAME": url.database, "HOST": url.host, "PORT": url.port, "USER": url.username}
    values = {name: value for name, value in named.items() if value}
    engine = {"ENGINE": f"django.db.backends.{backend}", "PASSWORD": url.password or ""}
    return ConnectionHandler({"default": engine | values})["default"]


def open_django(url: sqlalchemy.URL) -> Opened:
    made = django_connection(url)
    made.set_autocommit(False)
    return Opened(made, made.commit, made.rollback, made.close)


def open_django_cursor(url: sqlalchemy.URL) -> Opened:
    made = django_connection(url)
    made.set_autocommit(False)
    return Opened(made.cursor(), made.commit, made.rollback, made.close)


LIBRARIES = [
    open_driver, open_cursor, open_sqlalchemy, open_session, open_scoped_session,
    open_django, open_django_cursor,
]  # fmt: skip
DATABASES = ("sqlite", "postgres", "mariadb")
WITH_EACH_LIBRARY = pytest.mark.parametrize(
    ("database", "library"),
    [
        (database, library)
        for database in DATABASES
        for library in LIBRARIES
        if database != "mariadb" or "django" not in library.__name__  # it needs mysqlclient
    ],
    indirect=["database"],
)
# PyMySQL is synchronous.
WHERE_ASYNC = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> sqlalchemy.URL:
    if request.param == "sqlite":
        return sqlalchemy.make_url(f"sqlite:///{tmp_path / 'consumer.db'}")
    return sqlalchemy.make_url(request.getfixturevalue(f"{request.param}_url"))


Open = Callable[[], Opened]


@pytest.fixture
def opener(database: sqlalchemy.URL) -> Iterator[Callable[[Any], Opened]]:
    """Opens connections of a library, and closes them; the table and one for effects are there."""
    opened = [open_driver(database)]
    SqlDedup().create_table(opened[0].given)
    execute(opened[0].given, "CREATE TABLE effects (id varchar(20))", {})
    opened[0].commit()

    def open_one(library: Callable[[sqlalchemy.URL], Opened]) -> Opened:
        opened.append(library(database))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def effects(connection: Any) -> int:
    return len(fetch(connection, "SELECT id FROM effects", {}))


@WITH_EACH_LIBRARY
def test_effect_and_mark_are_committed_together(opener: Any, library: Any) -> None:
    one = opener(library)

    def consume(end: Callable[[], None]) -> bool:
        if first := sql_once(one.given, "order-42"):
            execute(one.given, "INSERT INTO effects VALUES (:id)", {"id": "order-42"})
        end()
        return first

    assert consume(one.rollback)
    assert effects(one.given) == 0
    one.rollback()
    assert consume(one.commit)
    assert not consume(one.commit)
    assert effects(one.given) == 1


@WITH_EACH_LIBRARY
def test_the_table_may_be_made_twice(opener: Any, library: Any) -> None:
    one = opener(library)
    for _ in range(2):
        SqlDedup("other_table").create_table(one.given)
        one.commit()
    assert sql_once(one.given, "order-42", table="other_table")


def test_each_consumer_has_its_own_marks(opener: Any) -> None:
    one = opener(open_driver)
    assert sql_once(one.given, "order-42", consumer="mail")
    assert sql_once(one.given, "order-42", consumer="billing")
    assert not sql_once(one.given, "order-42", consumer="mail")


def test_different_ids_stay_different(opener: Any) -> None:
    one = opener(open_driver)
    ids = ["a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "'", '"', "%s", ":id", "?", "\\", "€𐍈"]
    ids += ["x" * 254 + end for end in "yz"]
    for expected in (True, False):
        assert [sql_once(one.given, id) for id in ids] == [expected] * len(ids)
    with pytest.raises(MessageError, match="bad_id"):
        sql_once(one.given, "x" * 256)


def waiting(watcher: Opened) -> bool:
    """Whether a transaction of this database waits for another one."""
    watcher.rollback()
    if dialect_of(watcher.given) == "postgresql":
        lock = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        return fetch(watcher.given, lock + "AND wait_event_type = 'Lock'", {}) != []
    lock = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return fetch(watcher.given, lock, {}) != []


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_of_two_transactions_the_second_waits_for_the_first(
    opener: Any, database: sqlalchemy.URL, ending: str
) -> None:
    one, other, watcher = (opener(open_driver) for _ in range(3))
    assert sql_once(one.given, "order-42")
    answers = []
    if database.get_backend_name() == "sqlite":
        other.close()  # its connections stay in their threads

    def second() -> None:
        its = open_driver(database)
        answers.append(sql_once(its.given, "order-42"))
        its.commit()
        its.close()

    thread = threading.Thread(target=second)
    thread.start()
    if database.get_backend_name() != "sqlite":  # which does not tell
        until(lambda: waiting(watcher), "it waits", interval_s=0.15)
    assert answers == []
    getattr(one, ending)()
    thread.join(DEADLINE_S)
    assert answers == [ending == "rollback"]


@WITH_EACH_LIBRARY
def test_old_marks_are_deleted_a_batch_at_a_time(opener: Any, library: Any, now_ms: int) -> None:
    one, dedup = opener(library), SqlDedup()
    for n in range(25):
        assert dedup.once(one.given, f"order-{n}")
    seen = "UPDATE delaybridge_dedup SET seen_at_ms = :at"
    execute(one.given, seen, {"at": now_ms - 7 * 86_400_000})
    assert dedup.once(one.given, "new")
    execute(one.given, f"{seen} WHERE id = :id", {"at": now_ms - 3_600_000, "id": "new"})
    assert dedup.forget_before(one.given, "8d", now_ms=now_ms) == 0
    counts = [dedup.forget_before(one.given, "6d", most=10, now_ms=now_ms) for _ in range(4)]
    assert counts == [10, 10, 5, 0]
    one.commit()
    assert dedup.once(one.given, "order-1")
    assert dedup.forget_before(one.given, "1h") == 0


def test_a_thousand_rows(opener: Any) -> None:
    one, dedup = opener(open_driver), SqlDedup()
    for expected in (True, False):
        assert all(dedup.once(one.given, f"order-{n}") is expected for n in range(MANY))
        one.commit()


@pytest.mark.parametrize("library", [open_driver, open_cursor])
def test_autocommit_is_refused_unless_a_transaction_is_open(opener: Any, library: Any) -> None:
    one = opener(library)
    own = one.given.connection if library is open_cursor else one.given
    dialect = dialect_of(own)
    if dialect == "sqlite":
        own.isolation_level = None
    elif dialect == "postgresql":
        own.autocommit = True
    else:
        own.autocommit(True)
    with pytest.raises(MessageError, match="connection: no_transaction: "):
        sql_once(one.given, "order-42")
    with own.cursor() if dialect != "sqlite" else contextlib.closing(own.cursor()) as cursor:
        cursor.execute("BEGIN")
    assert sql_once(one.given, "order-42")
    own.rollback()
    with pytest.raises(MessageError, match="no_transaction"):
        sql_once(one.given, "order-42")


def test_autocommit_of_sqlalchemy_is_refused(database: sqlalchemy.URL, opener: Any) -> None:
    engine = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as made, pytest.raises(MessageError, match="no_transaction"):
        sql_once(made, "order-42")
    with Session(engine) as session, pytest.raises(MessageError, match="no_transaction"):
        sql_once(session, "order-42")
    engine.dispose()


def test_django_needs_atomic() -> None:
    set_up_django()
    from django.db import connection, transaction

    SqlDedup().create_table(connection)
    with pytest.raises(MessageError, match="no_transaction"):
        sql_once(connection, "order-42")
    with pytest.raises(Oops), transaction.atomic():
        assert sql_once(connection, "order-42")
        raise Oops
    for expected in (True, False):
        with transaction.atomic():
            assert sql_once(connection, "order-42") is expected
    connection.close()


@WHERE_ASYNC
async def test_async_connections(database: sqlalchemy.URL, opener: Any) -> None:
    if database.get_backend_name() == "postgresql":
        async with await psycopg.AsyncConnection.connect(conninfo(database)) as made:
            await consume_twice(made, made.commit, made.rollback)
            await made.rollback()
            await made.set_autocommit(True)
            with pytest.raises(MessageError, match="no_transaction"):
                await sql_once_async(made, "order-43")
    else:
        import aiosqlite

        async with aiosqlite.connect(str(database.database)) as lite:
            await consume_twice(lite, lite.commit, lite.rollback)
            await lite.rollback()


@WHERE_ASYNC
@pytest.mark.parametrize("flavour", ["connection", "session"])
async def test_async_sqlalchemy(database: sqlalchemy.URL, opener: Any, flavour: str) -> None:
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    drivers = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
    engine = create_async_engine(database.set(drivername=drivers[database.get_backend_name()]))
    opened = engine.connect() if flavour == "connection" else AsyncSession(engine)
    async with opened as made:
        await consume_twice(made, made.commit, made.rollback)
        await made.rollback()
    at_once = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with at_once.connect() as made:
        with pytest.raises(MessageError, match="no_transaction"):
            await sql_once_async(made, "order-43")
    await engine.dispose()


async def consume_twice(made: Any, commit: Callable[[], Any], rollback: Callable[[], Any]) -> None:
    """Roll back, commit, and find it done; make a table and forget the marks."""
    await SqlDedup("other_table").create_table_async(made)
    for end, expected in ((rollback, True), (commit, True), (commit, False)):
        if first := await sql_once_async(made, "order-42"):
            await execute_async(made, "INSERT INTO effects VALUES (:id)", {"id": "order-42"})
        await end()
        assert first is expected
    assert await fetch_async(made, "SELECT id FROM effects", {}) == [("order-42",)]
    assert await SqlDedup().forget_before_async(made, "1h") == 0


async def test_the_other_flavour_of_a_connection_is_refused(opener: Any) -> None:
    one = opener(open_driver)
    with pytest.raises(MessageError, match="call the other function"):
        await sql_once_async(one.given, "order-42")


# --- The examples of the page


def example(title: str, changes: dict[str, str]) -> str:
    """The program below a title, with other names of servers and queues."""
    program = PAGE.read_text().partition(f"## {title}\n")[2].split("```python\n")[1].split("```")[0]
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    return program


@contextlib.contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_example_with_pika(rabbitmq_url: str, redis_url: str, namespace: str) -> None:
    program = "def send_the_email(body): print(body.decode(), flush=True)\n" + example(
        "With Redis: pika",
        {
            "amqp://localhost": rabbitmq_url,
            '"redis://localhost:6379/0"': f'"{redis_url}", prefix="{namespace}"',
            '"emails"': f'"{namespace}"',
        },
    )
    with contextlib.closing(
        pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    ) as connection:
        channel = connection.channel()
        channel.queue_declare(namespace)
        for id in ("one", "one", "two", "one", "three"):
            properties = pika.BasicProperties(headers={"delaybridge-id": id})
            channel.basic_publish("", namespace, id.encode(), properties)
        with running(program) as consumer:
            assert consumer.stdout is not None
            printed = [consumer.stdout.readline() for _ in range(3)]
        assert printed == [b"one\n", b"two\n", b"three\n"]
        channel.queue_delete(namespace)


def test_the_example_with_confluent_kafka(
    kafka_url: str, postgres_url: str, namespace: str
) -> None:
    from confluent_kafka import Producer

    server = kafka_url.partition("://")[2]
    url = sqlalchemy.make_url(postgres_url)
    changes = {
        "localhost:9092": server,
        '"invoices"': f'"{namespace}"',
        "dbname=billing": conninfo(url),
    }
    program = example("With SQL: confluent-kafka", changes | {'"billing",': f'"{namespace}",'})
    producer = Producer({"bootstrap.servers": server})
    for id in ("one", "one", "two", "one", "three"):
        producer.produce(namespace, id, headers={"delaybridge-id": id}, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    with psycopg.connect(conninfo(url), autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (body bytea)")

        def rows() -> list[tuple[Any, ...]]:
            return fetch(connection, "SELECT body FROM invoices", {})

        with running(program):
            until(lambda: (b"three",) in rows(), lambda: f"rows: {rows()}")
        assert rows() == [(b"one",), (b"two",), (b"three",)]

"""Marks of processed messages in transactions of each library and database."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from delaybridge import MessageError
from delaybridge.dedup import SqlDedup, sql_once, sql_once_async
from delaybridge.dedup.sql_connection import dialect_of, execute, execute_async
from tests.rigs.databases import conninfo, driver, rows
from tests.rigs.waiting import DEADLINE_S, until


class Oops(Exception):
    """An effect failed."""


class Opened(NamedTuple):
    """A connection, or what stands for one, and how its transaction ends."""

    given: Any
    commit: Callable[[], None]
    rollback: Callable[[], None]
    close: Callable[[], None]


def open_driver(url: sqlalchemy.URL) -> Opened:
    made = driver(url)
    return Opened(made, made.commit, made.rollback, made.close)


def open_cursor(url: sqlalchemy.URL) -> Opened:
    return on_cursor(open_driver(url))


def on_cursor(opened: Opened) -> Opened:
    return opened._replace(given=opened.given.cursor())


def on_engine(url: sqlalchemy.URL, make: Callable[[Any], Any], end: str = "close") -> Opened:
    engine = sqlalchemy.create_engine(url)
    made = make(engine)

    def close() -> None:
        getattr(made, end)()
        engine.dispose()

    return Opened(made, made.commit, made.rollback, close)


def open_sqlalchemy(url: sqlalchemy.URL) -> Opened:
    return on_engine(url, sqlalchemy.Engine.connect)


def open_session(url: sqlalchemy.URL) -> Opened:
    return on_engine(url, Session)


def open_scoped_session(url: sqlalchemy.URL) -> Opened:
    return on_engine(url, lambda engine: scoped_session(sessionmaker(engine)), "remove")


def set_up_django() -> None:
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True)
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
    return on_cursor(open_django(url))


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
    return len(rows(connection, "SELECT id FROM effects"))


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
    watcher.rollback()
    if dialect_of(watcher.given) == "postgresql":
        lock = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() "
        return rows(watcher.given, lock + "AND wait_event_type = 'Lock'") != []
    lock = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    return rows(watcher.given, lock) != []


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
    assert dedup.forget_before(one.given, "30m", now_ms=now_ms) == 1  # before the clock gets there
    one.commit()
    assert dedup.once(one.given, "order-1")
    assert dedup.forget_before(one.given, "1h") == 0


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
    # Django is set up once per process, maybe by another test, which needs no database.
    made = django_connection(sqlalchemy.make_url("sqlite:///:memory:"))
    connections["ours"] = made
    made.alias = "ours"
    connection = ConnectionProxy(connections, "ours")  # as `django.db.connection` is
    SqlDedup().create_table(connection)
    with pytest.raises(MessageError, match="no_transaction"):
        sql_once(connection, "order-42")
    with pytest.raises(Oops), transaction.atomic("ours"):
        assert sql_once(connection, "order-42")
        raise Oops
    for expected in (True, False):
        with transaction.atomic("ours"):
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
    effect = {"id": "order-42"}
    assert await execute_async(made, "DELETE FROM effects WHERE id = :id", effect) == 1
    assert await SqlDedup().forget_before_async(made, "1h") == 0


async def test_the_other_flavour_of_a_connection_is_refused(opener: Any) -> None:
    one = opener(open_driver)
    with pytest.raises(MessageError, match="call the other function"):
        await sql_once_async(one.given, "order-42")

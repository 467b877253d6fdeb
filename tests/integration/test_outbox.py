"""The outbox on real databases and a real Redis: exactly what was committed is scheduled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from delaybridge import Client, Message, outbox
from delaybridge.outbox.database import OutboxBatch, OutboxTable
from delaybridge.outbox.pump import Pump
from delaybridge.store.messages.selection import Selection
from tests.rigs.command_line import Run
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.databases import driver
from tests.rigs.fleet import ROOT, Process
from tests.rigs.pages import program
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

TO = "rabbitmq:orders/close"
MANY = 1200
# A test of many transactions need not wait for the disk.
FAST = {"sqlite": "PRAGMA synchronous = OFF", "postgresql": "SET synchronous_commit = off"}


class Killed(Exception):
    """The pump died before its commit."""


class Dying(OutboxTable):
    """A table whose batches are rolled back at their end, as by the death of the process."""

    @contextmanager
    def batch(self, newest: int) -> Iterator[OutboxBatch | None]:
        with super().batch(newest) as batch:
            yield batch
            raise Killed


@pytest.fixture(params=["sqlite", "postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of the test's own, with the table; commands know it."""
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path / 'app.db'}"
    else:
        found = request.getfixturevalue(f"{request.param}_url")
    with closing(OutboxTable(found, "x", timeout_s=PATIENCE_S)) as table:
        table.create()
    monkeypatch.setenv("DELAYBRIDGE_OUTBOX__URL", found)
    return found


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The application's."""
    patient: Any = {"timeout": DEADLINE_S} if url.startswith("sqlite") else {}
    made = create_engine(url, connect_args=patient)  # a pump may stand still with the lock
    yield made
    made.dispose()


@pytest.fixture
def box(namespace: str) -> outbox.Outbox:
    return outbox.Outbox(namespace=namespace)


Start = Callable[..., Process]


@pytest.fixture
def start(flags: list[str], tmp_path: Path) -> Iterator[Start]:
    """Starts pumps, as processes."""
    with ExitStack() as stack:
        logs = iter(range(100))

        def one(**variables: str) -> Process:
            command = [sys.executable, "-m", "delaybridge", *flags, "outbox", "run"]
            environment = os.environ | PATIENT_PROCESS | variables
            log = tmp_path / f"pump-{next(logs)}"
            return stack.enter_context(closing(Process("pump", command, environment, log)))

        yield one


def ids(caller: Client) -> list[str]:
    """The ids of all messages in Redis."""
    return [one.id for page in caller.select(Selection()) for one in page]


def message(id: str | None = None, body: str = "x") -> Message:
    return Message(TO, body, delay="1h", id=id)


def wait_ids(caller: Client, expected: set[str]) -> None:
    until(lambda: {*ids(caller)} == expected, lambda: f"{len(ids(caller))} ids")


def rows(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        asked = text("SELECT number, verb, id, error FROM delaybridge_outbox ORDER BY number")
        return [*connection.execute(asked)]


@contextmanager
def pumping(url: str, caller: Client, namespace: str) -> Iterator[list[str]]:
    """A pump in a thread of this process; yields the names of what it says."""
    said: list[str] = []
    with closing(OutboxTable(url, namespace, timeout_s=PATIENCE_S)) as table:
        pump = Pump(table, caller, lambda level, event, **_: said.append(event), poll_s=0.01)
        thread = threading.Thread(target=pump.run)
        thread.start()
        try:
            yield said
        finally:
            pump.stop()
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@pytest.mark.parametrize("library", ["driver", "connection", "session"])
def test_a_rollback_schedules_nothing_and_a_commit_does(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str, library: str
) -> None:
    made: Any = driver(make_url(url)) if library == "driver" else engine.connect()
    if library == "session":
        made.close()
        made = Session(engine)
    with pumping(url, caller, namespace), closing(made):
        box.schedule(made, message("gone"))
        made.rollback()
        before = [box.schedule(made, message(f"é-{n}")) for n in range(3)]
        assert ids(caller) == []  # not before the commit
        made.commit()
        wait_ids(caller, {*before})
        until(lambda: not rows(engine))
    found = caller.get(before[0])
    assert found is not None and found.body == b"x"


def transactions(
    engine: Engine, box: outbox.Outbox, count: int, pace: Callable[[int], object] = int
) -> set[str]:
    """Many transactions, every third of them rolled back; the ids of the others.

    pace: called before each with its number.
    """
    committed = set()
    with engine.connect() as connection:
        if (fast := FAST.get(engine.dialect.name)) is not None:
            connection.execute(text(fast))
            connection.commit()
        for number in range(count):
            pace(number)
            id = box.schedule(connection, message(f"order-{number}"))
            if number % 3:
                connection.commit()
                committed.add(id)
            else:
                connection.rollback()
    return committed


@pytest.mark.slow_with("sqlite")
def test_exactly_the_committed_ones_arrive_although_the_pump_is_killed(
    engine: Engine, caller: Client, box: outbox.Outbox, start: Start
) -> None:
    pump = start()
    found: list[set[str]] = []

    def keep_pace(number: int) -> None:  # no pump is up so late that it meets all rows at once
        if number % (MANY // 4) == 0:
            until(lambda: caller.stats().delayed >= number * 0.6, "a pump has followed")

    def write() -> None:
        found.append(transactions(engine, box, MANY, keep_pace))

    writer = threading.Thread(target=write)
    writer.start()
    for share in (0.1, 0.3, 0.6):  # each time while rows come in
        until(lambda share=share: caller.stats().delayed > share * MANY * 2 / 3)
        pump.kill()
        pump = start()
    writer.join(DEADLINE_S)
    until(lambda: not rows(engine), lambda: f"{len(rows(engine))} rows")
    with engine.begin() as connection:  # for the last pump: it is up when this has gone
        found[0].add(box.schedule(connection, message("last")))
    until(lambda: not rows(engine))
    arrived = ids(caller)
    assert len(arrived) == len({*arrived})
    assert {*arrived} == found[0]
    assert len(arrived) == MANY - len(range(0, MANY, 3)) + 1
    pump.signal(signal.SIGTERM)
    assert pump.wait() == 0


def test_a_batch_that_is_sent_again_changes_nothing(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str
) -> None:
    """As after a kill between Redis' answer and the commit; also with several calls for an id."""
    with engine.begin() as connection:
        caller.schedule_message(message("old"))
        box.cancel(connection, "old")
        box.schedule(connection, message("old", "new"))
        box.schedule(connection, message("one"))
        box.schedule(connection, message("two"))
        box.cancel(connection, "two")
    for _ in range(3):
        with closing(Dying(url, namespace, timeout_s=PATIENCE_S)) as table, pytest.raises(Killed):
            Pump(table, caller, lambda *_, **__: None, poll_s=0.01).run()
        assert {*ids(caller)} == {"one", "two"}
    assert len(rows(engine)) == 5
    with pumping(url, caller, namespace) as said:
        until(lambda: not rows(engine))
    assert sorted(ids(caller)) == ["old", "one"]
    found = caller.get("old")
    assert found is not None and found.body == b"new"
    assert "outbox_refused" not in said


def test_a_cancel_takes_effect_after_the_call_that_it_follows(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str
) -> None:
    def both(connection: Connection, id: str) -> None:
        box.schedule(connection, Message(TO, b"x", delay="1h", id=id, key="eu"))
        box.cancel(connection, id, key="eu")

    with engine.begin() as connection:
        both(connection, "same transaction")
        box.schedule(connection, message("later transaction"))
        for n in range(50):
            both(connection, f"many-{n}")
            both(connection, f"many-{n}")
        box.schedule(connection, message("stays"))
    with engine.begin() as connection:
        box.cancel(connection, "later transaction")
    with pumping(url, caller, namespace):
        until(lambda: not rows(engine))
        assert ids(caller) == ["stays"]
        with engine.begin() as connection:
            box.cancel(connection, "stays")
            box.cancel(connection, "never was there")
        wait_ids(caller, set())
        until(lambda: not rows(engine))


def test_a_refused_row_blocks_no_other(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str, run: Run
) -> None:
    caller.schedule_message(message("taken", "first"))
    with engine.begin() as connection:
        box.schedule(connection, message("taken", "other"))
        box.schedule(connection, message("taken", "kept"), on_conflict="keep")
        box.schedule(connection, message("free"))
    with pumping(url, caller, namespace) as said:
        wait_ids(caller, {"taken", "free"})
        until(lambda: len(rows(engine)) == 1)
    assert said.count("outbox_refused") == 1
    (row,) = run("--json", "outbox", "ls").objects
    assert (row["id"], row["verb"]) == ("taken", "schedule")
    assert row["error"].startswith("conflict: ")
    result = run("outbox", "ls")
    assert "taken" in result.out
    assert result.err.startswith("0 wait") and "1 refused" in result.err
    with engine.begin() as connection:
        box.schedule(connection, message("taken", "wins"), on_conflict="replace")
        box.cancel(connection, "free")
    assert run("outbox", "ls").err.startswith("2 wait")
    with pumping(url, caller, namespace):
        until(lambda: len(rows(engine)) == 1)
    assert ids(caller) == ["taken"]


def test_the_rows_of_another_namespace_are_left_alone(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str
) -> None:
    with engine.begin() as connection:
        outbox.schedule(connection, message("theirs"), namespace=f"{namespace}-2")
        box.schedule(connection, message("ours"))
    with pumping(url, caller, namespace):
        until(lambda: len(rows(engine)) == 1)
    assert ids(caller) == ["ours"]


@pytest.mark.slow_with("sqlite")
def test_two_pumps(engine: Engine, caller: Client, box: outbox.Outbox, start: Start) -> None:
    one, other = start(), start()
    committed = transactions(engine, box, 300)
    wait_ids(caller, committed)
    one.kill()
    with engine.begin() as connection:
        committed.add(box.schedule(connection, message("after the kill")))
    wait_ids(caller, committed)
    until(lambda: not rows(engine))
    other.signal(signal.SIGTERM)
    assert other.wait() == 0
    assert "WARNING" not in one.log + other.log


@pytest.mark.parametrize("url", ["postgres", "mariadb"], indirect=True)  # SQLite has one writer
def test_an_open_transaction_holds_up_nobody(
    url: str, engine: Engine, caller: Client, box: outbox.Outbox, namespace: str
) -> None:
    with pumping(url, caller, namespace), engine.connect() as slow:
        box.schedule(slow, message("slow"))
        with engine.begin() as connection:
            box.schedule(connection, message("quick"))
        wait_ids(caller, {"quick"})
        until(lambda: not rows(engine))
        slow.commit()
        wait_ids(caller, {"quick", "slow"})


def test_redis_is_away_for_a_while(
    url: str, engine: Engine, box: outbox.Outbox, namespace: str
) -> None:
    with (
        RedisServer(["--appendonly", "yes"]) as server,
        Client(server.url, namespace=namespace) as caller,
        Client(server.url, namespace=namespace, timeout_s=0.3) as hasty,
        pumping(url, hasty, namespace) as said,
    ):
        server.kill()
        with engine.begin() as connection:
            box.schedule(connection, message("one"))
        until(lambda: "store_silent" in said)
        with engine.begin() as connection:  # which the pump does not hold up
            box.schedule(connection, message("two"))
        assert len(rows(engine)) == 2
        server.start()
        until(lambda: not rows(engine))
        assert sorted(ids(caller)) == ["one", "two"]
    told = [event for event in said if event != "outbox_moved"]  # hasty, it may give up once more
    assert told and told == ["store_silent", "outbox_goes_on"] * (len(told) // 2)


def test_the_database_is_away_for_a_while(caller: Client, box: outbox.Outbox, start: Start) -> None:
    with PostgresServer(["-c", "fsync=off"]) as server:
        engine = create_engine(server.url, pool_pre_ping=True)
        with engine.begin() as connection:
            outbox.create_table(connection)
        pump = start(DELAYBRIDGE_OUTBOX__URL=server.url)
        with engine.begin() as connection:
            box.schedule(connection, message("before"))
        wait_ids(caller, {"before"})
        server.kill()
        until(lambda: "outbox_silent" in pump.log, lambda: pump.log)
        server.start()

        def scheduled() -> bool:
            try:
                with engine.begin() as connection:
                    box.schedule(connection, message("after"))
            except OperationalError:
                return False
            return True

        until(scheduled)
        wait_ids(caller, {"before", "after"})
        assert pump.log.count("outbox_silent") == 1
        pump.signal(signal.SIGTERM)
        assert pump.wait() == 0
        engine.dispose()


# --- The examples of the page


@pytest.mark.parametrize("title", ["With SQLAlchemy", "With Django"])
def test_the_examples_of_the_page(
    title: str, redis_url: str, namespace: str, postgres_url: str, tmp_path: Path
) -> None:
    named = make_url(postgres_url)
    changes = {
        "With SQLAlchemy": {"postgresql+psycopg://localhost/shop": postgres_url},
        "With Django": {
            '"NAME": "shop"': f'"NAME": "{named.database}", "HOST": "{named.host}", '
            f'"PORT": {named.port}, "USER": "{named.username}"'
        },
    }[title]
    changes['namespace="shop"'] = f'namespace="{namespace}"'
    code = program("outbox.md", title, changes)
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=DEADLINE_S)
    with Client(redis_url, namespace=namespace) as caller:
        with pumping(postgres_url, caller, namespace):
            wait_ids(caller, {"order-42-timeout"})

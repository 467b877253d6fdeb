"""What is written to the ledger before a caller has its answer, in each kind of database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import ConfigError, LedgerUnavailable, MessageConflict
from delaybridge.ledger.sql.database import upgrade
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.tables import VERSION_TABLE, metadata
from delaybridge.message import Answer
from delaybridge.store.protocol.keys import birth
from delaybridge.store.protocol.verbs import Work
from tests.rigs.command_line import Run, runner
from tests.rigs.crew import Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import RedisServer

TO = "memory:q"
BROKERS = {"memory": "memory://"}
MANY = 1000


def recording(redis_url: str, namespace: str, ledger: str, **options: Any) -> Client:
    """A client that writes to the ledger."""
    return Client(
        redis_url,
        namespace=namespace,
        brokers=BROKERS,
        durability="ledger",
        ledger=ledger,
        **options,
    )


@pytest.fixture
def client(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Client]:
    with recording(redis_url, namespace, ledger_url) as found:
        yield found


@pytest.fixture
def alone(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client of the same namespace without the ledger: what Redis has."""
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as found:
        yield found


def test_a_message_is_a_row_with_all_that_it_has(client: Client, ledger: LedgerProbe) -> None:
    receipt = client.schedule(TO, b"body", delay="1h", id="x", priority=7, ttl="5m")
    ((bucket, due_ms, priority, destination, payload, tier),) = ledger.ask(
        "SELECT bucket, due_ms, priority, destination, payload, tier FROM message"
    )
    assert (bucket, due_ms) == (receipt.bucket, receipt.due_ms)
    assert (priority, destination, tier) == (7, TO, 1)
    assert b"body" in bytes(payload)


def test_each_answer_is_in_the_ledger(client: Client, ledger: LedgerProbe) -> None:
    client.schedule(TO, b"1", delay="1h", id="x")
    assert client.schedule(TO, b"1", delay="1h", id="x") == Answer.DUPLICATE
    with pytest.raises(MessageConflict):
        client.schedule(TO, b"2", delay="1h", id="x")
    assert ledger.states() == {"delayed": 1}
    assert client.schedule(TO, b"3", delay="1h", id="x", on_conflict="replace") == Answer.REPLACED
    assert ledger.states() == {"delayed": 1, "cancelled": 1}
    assert client.reschedule("x", at="2030-01-01T00:00:00Z") is Answer.RESCHEDULED
    assert ledger.due_ms("x") == 1_893_456_000_000
    assert client.cancel("x") is Answer.CANCELLED
    assert client.cancel("x") is Answer.UNKNOWN
    assert ledger.states() == {"cancelled": 2}


def test_many_messages_and_one_id_twice_in_a_call(client: Client, ledger: LedgerProbe) -> None:
    messages = [Message(TO, b"%d" % n, delay="1h") for n in range(MANY)]
    receipts = client.schedule_many(messages)
    assert ledger.states() == {"delayed": MANY}
    twice = [Message(TO, b"x", delay="1h", id="twice")] * 2
    assert client.schedule_many(twice) == [Answer.CREATED, Answer.DUPLICATE]
    assert ledger.states() == {"delayed": MANY + 1}
    answers = client.cancel_many([receipt.id for receipt in receipts[:500]])
    assert {*answers} == {Answer.CANCELLED}
    assert ledger.states() == {"delayed": MANY - 499, "cancelled": 500}


async def test_concurrent_calls_are_recorded(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    async with AsyncClient(
        redis_url, namespace=namespace, brokers=BROKERS, durability="ledger", ledger=ledger_url
    ) as client:
        calls = [client.schedule(TO, b"x", delay="1h", id=f"m{n}") for n in range(200)]
        await asyncio.gather(*calls)
        assert await client.cancel("m7") is Answer.CANCELLED
    assert ledger.states() == {"delayed": 199, "cancelled": 1}


def test_what_redis_lost_can_be_cancelled(
    client: Client, redis_url: str, namespace: str, ledger: LedgerProbe
) -> None:
    client.schedule(TO, b"1", delay="1h", id="x")
    with redis.Redis.from_url(redis_url) as on:
        on.delete(*on.scan_iter(f"{{{namespace}:*"))
    assert client.cancel("x") is Answer.CANCELLED
    assert client.cancel("x") is Answer.UNKNOWN
    assert ledger.states() == {"cancelled": 1}


def test_rows_of_another_namespace_are_not_touched(
    client: Client, redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    with recording(redis_url, f"{namespace}x", ledger_url) as other:
        client.schedule(TO, b"1", delay="1h", id="x")
        other.schedule(TO, b"1", delay="1h", id="x")
        assert client.cancel("x") is Answer.CANCELLED
        assert ledger.states() == {"cancelled": 1, "delayed": 1}
        assert other.cancel("x") is Answer.CANCELLED


def test_the_tables_are_those_of_the_code(ledger_url: str) -> None:
    engine = create_engine(ledger_url)
    with engine.begin() as connection:  # as version 1 made them
        for later in ("control", "counted"):
            connection.execute(text(f"DROP TABLE {later}"))
        connection.execute(text("ALTER TABLE namespace DROP COLUMN told_ms"))
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '1'"))
    assert upgrade(ledger_url, 10) == ("1", "4")
    assert upgrade(ledger_url, 10) == ("4", "4")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        differ = compare_metadata(context, metadata)
    engine.dispose()
    assert differ == []


def test_another_version_of_the_tables_is_refused(
    client: Client, alone: Client, ledger: LedgerProbe
) -> None:
    ledger.ask(f"UPDATE {VERSION_TABLE} SET version_num = '77'")
    with pytest.raises(ConfigError, match="version 77"):
        client.schedule(TO, b"1", delay="1h", id="x")
    ledger.ask(f"DELETE FROM {VERSION_TABLE}")
    with pytest.raises(ConfigError, match="run: delaybridge ledger upgrade"):
        client.schedule(TO, b"1", delay="1h", id="x")
    assert alone.get("x") is None


def test_tables_that_are_dropped_later_are_named(client: Client, ledger: LedgerProbe) -> None:
    client.schedule(TO, b"1", delay="1h", id="first")
    ledger.ask("DROP TABLE message")
    for call in (
        lambda: client.schedule(TO, b"1", delay="1h", id="x"),
        lambda: client.schedule_many([Message(TO, b"1", delay="1h")] * 2),
        lambda: client.cancel("first"),
    ):
        with pytest.raises(LedgerUnavailable, match="message"):
            call()


def test_without_a_database_nothing_is_accepted(
    redis_url: str, namespace: str, alone: Client, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'missing' / 'ledger.db'}"
    with recording(redis_url, namespace, url) as client:
        with pytest.raises(LedgerUnavailable, match="nothing was written"):
            client.schedule(TO, b"1", delay="1h", id="x")
    assert alone.get("x") is None


def test_an_odd_error_of_a_driver_that_connects_is_told_as_any_other(
    redis_url: str, namespace: str, alone: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise RuntimeError("'cryptography' package is required")  # PyMySQL's words

    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setattr("sqlite3.dbapi2.connect", connect)
    with recording(redis_url, namespace, url) as client:
        with pytest.raises(LedgerUnavailable, match="package is required; nothing was written"):
            client.schedule(TO, b"1", delay="1h", id="x")
    assert alone.get("x") is None


def test_closed_while_a_transaction_is_under_way_it_leaves_no_connection(postgres_url: str) -> None:
    database, begun, end = open_ledger(made(postgres_url)), Event(), Event()
    with ThreadPoolExecutor() as threads, closing(LedgerProbe(postgres_url)) as probe:
        sessions = partial(probe.ask, "SELECT 1 FROM pg_stat_activity WHERE application_name = :n "
                           "AND datname = current_database()", n="delaybridge")  # fmt: skip
        ran = threads.submit(database.run, Work(lambda _: (begun.set(), end.wait(DEADLINE_S))))
        assert begun.wait(DEADLINE_S)
        until(lambda: len(sessions()) == 1)  # that which made the tables ends by itself
        database.close()
        end.set()
        assert ran.result() == (None, True)
        until(lambda: not sessions())


@pytest.mark.parametrize("url", ["", "oracle://x/y", "postgresql://x", "sqlite://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="ledger"):
        Client(durability="ledger", ledger=url)


def test_restore_brings_back_what_redis_lost(
    namespace: str,
    ledger_url: str,
    ledger: LedgerProbe,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RedisServer() as server:
        monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", ledger_url)
        monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
        monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
        run = runner(["--redis", server.url, "--namespace", namespace], capsys, monkeypatch)
        with recording(server.url, namespace, ledger_url, buckets=4) as client:
            client.schedule_many([Message(TO, b"x", delay="1h", id=f"m{n}") for n in range(50)])
            client.schedule(TO, b"x", delay="0s", id="due")
            client.cancel("m0")
            on = redis.Redis.from_url(server.url)
            born = on.get(birth(namespace))
            on.flushall()
        asked = run("--json", "ledger", "restore", "--dry-run")
        assert asked.code == 0, asked
        (said,) = asked.objects
        assert (said["restored"], said["rows"]) == (50, 50)
        assert run("--json", "ledger", "restore", "--no-expired").objects[0]["restored"] == 49
        assert run("--json", "ledger", "restore", "--id", "due").objects[0]["restored"] == 1
        assert run("--json", "ledger", "restore").objects[0]["restored"] == 0
        shown = run("--json", "message", "show", "m7").objects[0]
        assert (shown["state"], shown["body"]) == ("delayed", "x")
        assert shown["life"]["calls"][0]["state"] == "delayed"
        assert run("message", "show", "m0").out.count("cancelled") == 2
        assert len(run("--json", "bucket", "ls").objects) == 4  # as many as before
        assert born and on.get(birth(namespace)) == born  # whoever was restoring it may go on
        refused = run("ledger", "purge", "--destination", TO, "--confirm", "memory:other")
        assert refused.code == 2
        done = run("--json", "ledger", "purge", "--destination", TO, "--confirm", TO).objects[0]
        assert done["answers"] == {"cancelled": 50}
        assert ledger.states() == {"cancelled": 51}


async def test_nothing_starts_with_tables_of_another_version(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    ledger.ask(f"UPDATE {VERSION_TABLE} SET version_num = '77'")
    crew = Crew(redis_url, namespace, ledger=ledger_url)
    with pytest.raises(ConfigError, match="version 77"):
        await crew.start()
    await crew.close()


def test_doctor_looks_at_the_ledger(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", url)
    assert "run: delaybridge ledger upgrade" in run("doctor").out
    assert run("ledger", "upgrade").code == 0
    said = run("doctor").out
    assert "has the tables" in said
    assert "messages are not recorded" in said


def test_the_user_of_the_page_needs_no_more_rights(
    redis_url: str, namespace: str, postgres_url: str
) -> None:
    made(postgres_url)
    owner = LedgerProbe(postgres_url)
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    user = f"u{namespace.replace('-', '')[:12]}"
    owner.ask(f"CREATE USER {user}")
    for line in page.split("## The ledger's database")[1].split("## ")[0].splitlines():
        if line.startswith("GRANT"):
            owner.ask(line.replace("TO delaybridge;", f"TO {user}"))
    url = postgres_url.replace("delaybridge@", f"{user}@")
    with recording(redis_url, namespace, url) as client:
        client.schedule(TO, b"1", delay="1h", id="x")
        assert client.reschedule("x", delay="2h") is Answer.RESCHEDULED
        assert client.cancel("x") is Answer.CANCELLED
        client.destinations.pause(TO)
    assert owner.states() == {"cancelled": 1}
    assert owner.ask("SELECT kind FROM control") == [("rule",)]
    owner.ask(f"DROP OWNED BY {user}")
    owner.ask(f"DROP USER {user}")
    owner.close()

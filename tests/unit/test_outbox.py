"""Calls of an application as rows of its own transaction: what is checked, what is written."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge import ConfigError, Limits, Message, MessageError, outbox
from delaybridge.dedup.sql_connection import MYSQL, POSTGRESQL, SQLITE
from delaybridge.message import decode_record
from delaybridge.outbox import rows as outbox_rows
from delaybridge.outbox.outbox_process import Pumping, refuse_one_file
from delaybridge.settings.settings import Settings
from tests.rigs.command_line import Run

TO = "rabbitmq:orders/close"
LAZY = ("sqlalchemy", "psycopg", "pymysql", "django", "aiosqlite")
NAMES = "namespace, verb, id, shard_key, due_ms, due_rank, policy, stamp, created_ms, error"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "app.db")) as made:
        outbox.create_table(made)
    return tmp_path / "app.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as made:
        made.row_factory = sqlite3.Row
        yield made


def rows(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    return connection.execute(f"SELECT {NAMES} FROM delaybridge_outbox ORDER BY number").fetchall()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_it_imports_no_library_of_a_database() -> None:
    program = f"import sys, delaybridge.outbox; print([n for n in {LAZY} if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout == b"[]\n"


def test_a_call_is_one_row_of_the_transaction(connection: sqlite3.Connection) -> None:
    before_ms = now_ms()
    message = Message(TO, b"42", delay="15m", id="order-42", key="eu", priority=9)
    assert outbox.schedule(connection, message, on_conflict="keep") == "order-42"
    after_ms = now_ms() + 1
    assert connection.in_transaction
    (row,) = rows(connection)
    named = row["namespace"], row["verb"], row["id"], row["shard_key"], row["policy"]
    assert named == ("delaybridge", "schedule", "order-42", b"eu", "keep")
    assert row["due_rank"] == 255 - 9
    assert before_ms <= row["created_ms"] <= after_ms
    assert row["due_ms"] == row["created_ms"] + 900_000
    assert len(row["stamp"]) == 4
    assert row["error"] is None
    connection.rollback()
    assert rows(connection) == []


def test_a_delay_is_never_cut_short(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from the end of the millisecond of the call."""
    for now_ns, counted_from_ms in ((7_000_001, 8), (7_999_999, 8), (8_000_000, 8)):
        monkeypatch.setattr(outbox_rows, "time", SimpleNamespace(time_ns=lambda ns=now_ns: ns))
        outbox.schedule(connection, Message(TO, b"", delay=0.005))
        assert rows(connection)[-1]["due_ms"] == counted_from_ms + 5


def test_the_record_is_the_one_of_a_client(connection: sqlite3.Connection) -> None:
    outbox.schedule(connection, Message(TO, "é", delay=1, headers={"a": "b"}))
    (payload,) = connection.execute("SELECT payload FROM delaybridge_outbox").fetchone()
    record = decode_record(payload)
    assert (record.destination, record.body) == (TO, "é".encode())


def test_a_time_stays_as_it_is(connection: sqlite3.Connection) -> None:
    outbox.schedule(connection, Message(TO, b"", at=datetime(2027, 1, 15, 8, tzinfo=UTC)))
    assert rows(connection)[0]["due_ms"] == 1_800_000_000_000


def test_ids_are_drawn_and_differ_as_stamps_do(connection: sqlite3.Connection) -> None:
    ids = [outbox.schedule(connection, Message(TO, b"", delay=1)) for _ in range(200)]
    assert [row["id"] for row in rows(connection)] == ids
    assert len({*ids}) == 200
    assert len({row["stamp"] for row in rows(connection)}) == 200


def test_a_cancel_is_a_row_too(connection: sqlite3.Connection) -> None:
    outbox.cancel(connection, "order-42")
    outbox.cancel(connection, "order-43", key="eu")
    found = [(row["verb"], row["id"], row["shard_key"]) for row in rows(connection)]
    assert found == [("cancel", "order-42", None), ("cancel", "order-43", b"eu")]


@pytest.mark.parametrize(
    "message",
    [
        Message("elsewhere:orders", b"", delay=1),
        Message(TO, b"", delay="-1s"),
        Message(TO, b""),
        Message(TO, b"x" * 300_000, delay=1),
        Message(TO, b"", delay=1, id=" "),
        Message(TO, b"", delay="11y"),
    ],
)
def test_a_wrong_message_raises_at_once_and_writes_nothing(
    connection: sqlite3.Connection, message: Message
) -> None:
    with pytest.raises(MessageError):
        outbox.schedule(connection, message)
    with pytest.raises(MessageError, match="bad_id"):
        outbox.cancel(connection, "")
    with pytest.raises(MessageError, match="bad_key"):
        outbox.cancel(connection, "order-42", key=42)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="on_conflict"):
        outbox.schedule(connection, Message(TO, b"", delay=1), on_conflict="maybe")
    assert not connection.in_transaction
    assert rows(connection) == []


def test_an_outbox_has_its_own_namespace_brokers_and_limits(connection: sqlite3.Connection) -> None:
    own = outbox.Outbox(
        namespace="billing", brokers={"eu": "amqp://eu"}, limits=Limits(body_bytes=3)
    )
    own.schedule(connection, Message("eu:orders/close", b"abc", delay=1))
    with pytest.raises(MessageError, match="unknown_destination"):
        own.schedule(connection, Message(TO, b"", delay=1))
    with pytest.raises(MessageError, match="body_too_large"):
        own.schedule(connection, Message("eu:orders/close", b"abcd", delay=1))
    outbox.cancel(connection, "order-42", namespace="shipping")
    assert [row["namespace"] for row in rows(connection)] == ["billing", "shipping"]
    with pytest.raises(ConfigError, match="namespace"):
        outbox.schedule(connection, Message(TO, b"", delay=1), namespace="a b")


def test_without_a_transaction_it_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        with pytest.raises(MessageError, match="connection: no_transaction: "):
            outbox.schedule(made, Message(TO, b"", delay=1))
        with pytest.raises(MessageError, match="no_transaction"):
            outbox.cancel(made, "order-42")
        made.execute("BEGIN")
        outbox.schedule(made, Message(TO, b"", delay=1))
        made.rollback()
        assert made.execute("SELECT count(*) FROM delaybridge_outbox").fetchone() == (0,)


@pytest.mark.parametrize("other", [None, "sqlite:///app.db", object()])
def test_what_is_no_connection_is_refused(other: Any) -> None:
    with pytest.raises(MessageError, match="bad_connection"):
        outbox.schedule(other, Message(TO, b"", delay=1))
    with pytest.raises(MessageError, match="bad_connection"):
        outbox.create_table(other)


async def test_the_async_twins(path: Path, connection: sqlite3.Connection) -> None:
    import aiosqlite

    async with aiosqlite.connect(path) as made:
        await outbox.create_table_async(made)
        id = await outbox.schedule_async(made, Message(TO, b"", delay=1))
        await outbox.cancel_async(made, id)
        await made.rollback()
        assert rows(connection) == []
        id = await outbox.schedule_async(made, Message(TO, b"", delay=1))
        await outbox.cancel_async(made, id)
        await made.commit()
        with pytest.raises(MessageError, match="asynchronous"):
            outbox.schedule(made, Message(TO, b"", delay=1))
    assert [(row["verb"], row["id"]) for row in rows(connection)] == [
        ("schedule", id),
        ("cancel", id),
    ]
    async with aiosqlite.connect(path, isolation_level=None) as made:
        with pytest.raises(MessageError, match="no_transaction"):
            await outbox.schedule_async(made, Message(TO, b"", delay=1))


@pytest.mark.parametrize("dialect", [POSTGRESQL, MYSQL, SQLITE])
def test_the_statements_are_for_a_migration_of_ones_own(dialect: str) -> None:
    (statement,) = outbox.statements(dialect)
    assert statement.startswith("CREATE TABLE IF NOT EXISTS delaybridge_outbox")


def test_the_command_makes_the_table_and_says_what_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb in ("run", "create-table", "ls"):
        result = run("--json", "outbox", verb)
        assert (result.code, result.out, result.error["code"]) == (2, "", "config")
        assert result.error["message"].startswith("outbox.url: ")
    monkeypatch.setenv("DELAYBRIDGE_OUTBOX__URL", f"sqlite:///{tmp_path / 'new.db'}")
    for verb in ("run", "ls"):
        result = run("--json", "outbox", verb)
        assert (result.code, result.error["message"][:12]) == (5, "outbox.url: ")
    for _ in range(2):
        assert run("outbox", "create-table").code == 0
    assert run("outbox", "ls").code == 0


SAME = {
    "itself": "sqlite:///{path}",
    "a link": "sqlite:///{link}",
    "a hard link": "sqlite:///{hard}",
    "a way around": "sqlite:///{path.parent}/../{path.parent.name}/{path.name}",
    "a URI": "sqlite:///file:{path}?mode=rw&uri=true",
    "a relative path": "sqlite:///{path.name}",
}
OTHERS = {
    "another file": "sqlite:///{path}2",
    "one that is not there": "sqlite:///{path.parent}/x/{path.name}",
    "a server": "postgresql+psycopg://localhost/app.db",
}


@pytest.mark.parametrize("ledger", [*SAME, *OTHERS])
@pytest.mark.parametrize("durability", ["ledger", "memory"])
def test_a_ledger_in_the_same_file_of_sqlite_is_refused(
    path: Path, ledger: str, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, hard = path.with_name("link.db"), path.with_name("hard.db")
    link.symlink_to(path)
    hard.hardlink_to(path)
    monkeypatch.chdir(path.parent)
    url = (SAME | OTHERS)[ledger].format(path=path, link=link, hard=hard)
    settings = Settings.load(
        environ={
            "DELAYBRIDGE_DURABILITY": durability,
            "DELAYBRIDGE_LEDGER__URL": url,
            "DELAYBRIDGE_OUTBOX__URL": f"sqlite:///{path}",
        }
    )
    if ledger in SAME and durability == "ledger":
        pumping = Pumping(settings)
        pumping.stopping.set()
        with pytest.raises(ConfigError, match="give the ledger a file of its own"):
            asyncio.run(pumping.work())
    else:
        refuse_one_file(settings)

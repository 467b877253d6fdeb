"""The ledger's database refuses what is written to it, or is another one than before."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect

from delaybridge import Client
from delaybridge.errors import LedgerUnavailable
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import PATIENCE_S

TO = "memory:q"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    made(f"sqlite:///{path}")
    return path


@pytest.fixture
def client(redis_url: str, namespace: str, file: Path) -> Iterator[Client]:
    options: Any = {"durability": "ledger", "ledger": f"sqlite:///{file}", "timeout_s": PATIENCE_S}
    with closing(
        Client(redis_url, namespace=namespace, brokers={"memory": "memory:"}, **options)
    ) as client:
        yield client


@contextmanager
def full_disk() -> Iterator[None]:
    """For every connection that is made in this block."""

    def bound(connection: Any, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")
        connection.execute("PRAGMA cache_spill = ON")
        connection.execute("PRAGMA cache_size = 10")

    event.listen(Engine, "connect", bound)
    yield
    event.remove(Engine, "connect", bound)


@pytest.mark.parametrize("size", [3_000, 250_000], ids=["by and by", "at once"])
def test_a_full_disk_is_the_reason_that_is_given(client: Client, file: Path, size: int) -> None:
    with full_disk(), pytest.raises(LedgerUnavailable) as refused:
        for n in range(100):
            client.schedule(TO, b"x" * size, delay=60, id=f"m{n}")
    said = "ledger: database or disk is full; nothing was written to it"
    assert str(refused.value) == said
    with closing(LedgerProbe(f"sqlite:///{file}")) as probe:
        (count,) = probe.ask("SELECT count(*) FROM message")
        assert count[0] == n


def test_a_commit_for_which_there_is_no_room_is_not_in_doubt(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.schedule(TO, b"", delay=60)
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"

    def commit(_: object, connection: Any) -> None:
        connection.rollback()  # as SQLite does
        raise error

    monkeypatch.setattr(DefaultDialect, "do_commit", commit)
    with pytest.raises(LedgerUnavailable, match="full; nothing was written to it$"):
        client.schedule(TO, b"", delay=60)
    error.sqlite_errorname = "SQLITE_IOERR"
    with pytest.raises(LedgerUnavailable, match="full; it may have been accepted"):
        client.schedule(TO, b"", delay=60)


def test_a_file_that_was_restored_is_gone_on_with(client: Client, file: Path) -> None:
    client.schedule(TO, b"", delay=60, id="before")
    restored = file.with_name("restored.db")
    with closing(LedgerProbe(f"sqlite:///{file}")) as probe:
        probe.ask("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(file, restored)
    client.schedule(TO, b"", delay=60, id="since")
    for each in file.parent.glob("ledger.db*"):
        each.unlink()
    os.rename(restored, file)
    client.schedule(TO, b"", delay=60, id="after")
    with closing(LedgerProbe(f"sqlite:///{file}")) as probe:
        assert probe.states() == {"delayed": 2}
        assert probe.state("after") == "delayed"

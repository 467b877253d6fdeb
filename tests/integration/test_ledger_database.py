"""Transactions of the ledger: what is committed, what is tried again, and what an error says."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.sql.database import Database
from delaybridge.store.protocol.verbs import Work
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import DEADLINE_S

_ADDED = "INSERT INTO namespace (namespace, buckets, birth) VALUES ('{}', 1, 'b')"


def opened(url: str, timeout_s: float = DEADLINE_S) -> Database:
    return Database(url, timeout_s=timeout_s, connections=2)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return made(f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with closing(opened(url)) as found:
        yield found


def first(statement: str) -> Work[Any]:
    return Work(lambda on: on.execute(text(statement)).scalar())


def test_a_commit_of_sqlite_survives_a_power_cut(database: Database) -> None:
    assert database.run(first("PRAGMA journal_mode")) == "wal"
    assert database.run(first("PRAGMA synchronous")) == 2  # FULL


def test_nobody_writes_into_sqlite_between_what_a_transaction_reads_and_writes(
    database: Database, tmp_path: Path
) -> None:
    """Else it could not write any more, and its call would be refused."""

    def read_and_write(on: Any) -> None:
        on.execute(text("SELECT count(*) FROM namespace")).scalar()
        with closing(sqlite3.connect(tmp_path / "ledger.db", timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute(_ADDED.format("other"))
        on.execute(text(_ADDED.format("own")))

    database.run(Work(read_and_write))
    assert database.run(first("SELECT namespace FROM namespace")) == "own"


def failing(times: int, state: str = "40001", code: int = 0) -> Work[int]:
    """Raises an error of a database so many times."""
    left = iter(range(times))

    def run(on: Any) -> int:
        for n in left:
            orig = type("Deadlock", (Exception,), {"sqlstate": state})(code)
            raise OperationalError(f"{n}", {}, orig)
        return 1

    return Work(run)


@pytest.mark.parametrize("error", [("40001", 0), ("40P01", 0), ("", 1213)])
def test_what_lost_against_another_transaction_is_tried_again(
    database: Database, error: tuple[str, int]
) -> None:
    assert database.run(failing(2, *error)) == 1
    with pytest.raises(LedgerUnavailable, match="nothing was written"):
        database.run(failing(3, *error))


def test_no_other_error_is_tried_again(database: Database) -> None:
    work = failing(1, "53100", 1021)
    with pytest.raises(LedgerUnavailable):
        database.run(work)
    assert database.run(work) == 1


def test_a_commit_without_an_answer_may_have_been(database: Database) -> None:
    def fails(_: Any) -> None:
        raise OSError("connection reset")

    event.listen(database._engine, "commit", fails)
    with pytest.raises(LedgerUnavailable, match="may have been accepted"):
        database.run(Work(lambda on: None))


def test_a_fork_has_connections_of_its_own(database: Database) -> None:
    """Its parent's are left as they are: they are in use."""

    def raw(on: Any) -> Any:
        return on.connection.driver_connection

    before = database.run(Work(raw))
    assert database.run(Work(raw)) is before
    database._pid = -1  # as if this process were another one
    assert database.run(Work(raw)) is not before
    assert before.execute("SELECT 1").fetchone() == (1,)


def test_a_connection_that_the_server_has_ended_is_replaced(postgres_url: str) -> None:
    with closing(opened(made(postgres_url))) as database:
        session = database.run(first("SELECT pg_backend_pid()"))
        with closing(LedgerProbe(postgres_url)) as probe:
            probe.ask("SELECT pg_terminate_backend(:session, 10000)", session=session)
        assert database.run(first("SELECT pg_backend_pid()")) != session


def test_no_statement_of_postgresql_lasts_longer_than_its_caller_waits(postgres_url: str) -> None:
    with closing(opened(made(postgres_url), timeout_s=77.0)) as database:
        for limit, shown in (
            ("statement_timeout", "77s"),
            ("lock_timeout", "77s"),
            ("idle_in_transaction_session_timeout", "770s"),
        ):
            assert database.run(first(f"SHOW {limit}")) == shown


def test_a_transaction_of_mariadb_sees_what_another_one_has_just_committed(
    mariadb_url: str,
) -> None:
    count = text("SELECT count(*) FROM namespace")

    def look(on: Any) -> tuple[Any, Any]:
        before = on.execute(count).scalar()
        other.ask(_ADDED.format("other"))
        return before, on.execute(count).scalar()

    with closing(opened(made(mariadb_url))) as database, closing(LedgerProbe(mariadb_url)) as other:
        assert database.run(Work(look)) == (0, 1)

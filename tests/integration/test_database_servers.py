"""The database servers for tests keep what was committed, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from sqlalchemy import Engine, NullPool, create_engine, inspect
from sqlalchemy.exc import OperationalError

from tests.rigs.waiting import until
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer, new_database
from tests.servers.process import ServerProcess

pytestmark = pytest.mark.slow  # it tests servers that other tests rely on

LOOPBACK = "127.0.0.1"
OWN_SERVER = """
from {module} import {name}
server = {name}().start()
print(server.pid, flush=True)
input()
"""

Database = PostgresServer | MariadbServer


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    with PostgresServer() if request.param == "postgres" else MariadbServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_test_has_a_new_database_that_takes_any_text(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with engine_of(request.getfixturevalue(f"{kind}_url")) as engine, engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT version()").scalar_one()
        assert inspect(connection).get_table_names() == []
        connection.exec_driver_sql("CREATE TABLE texts (value VARCHAR(20))")
        connection.exec_driver_sql("INSERT INTO texts VALUES ('grün 🦊')")
        assert connection.exec_driver_sql("SELECT value FROM texts").scalar_one() == "grün 🦊"


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_two_databases_are_separate_and_are_dropped_with_connections_open(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"{kind}_server_url")
    with engine_of(request.getfixturevalue(f"{kind}_url")) as engine:
        with contextmanager(new_database)(server) as other_url, engine_of(other_url) as other:
            left_open = other.connect()
            left_open.exec_driver_sql("CREATE TABLE only_here (id INTEGER)")
            left_open.commit()
            left_open.exec_driver_sql("SELECT * FROM only_here")
            assert inspect(other).get_table_names() == ["only_here"]
            assert inspect(engine).get_table_names() == []
        left_open.invalidate()
        left_open.close()
        with engine_of(other_url) as other, pytest.raises(OperationalError):
            other.connect()


def test_what_was_committed_survives_a_kill_and_nothing_else_does(database: Database) -> None:
    with engine_of(database.url) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE kept (id INTEGER PRIMARY KEY)")
            connection.exec_driver_sql("INSERT INTO kept VALUES (1)")
        open_connection = engine.connect()
        open_connection.exec_driver_sql("INSERT INTO kept VALUES (2)")
        database.kill()
        with pytest.raises(OperationalError):
            open_connection.exec_driver_sql("SELECT 1")
        open_connection.close()
        database.start()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT id FROM kept").scalars().all() == [1]


def test_it_restarts_at_once_though_a_client_is_connected(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended, kill = [], database.kill

    def note_and_kill() -> None:
        has_ended.append(not database.running)
        kill()

    monkeypatch.setattr(database, "kill", note_and_kill)
    with engine_of(database.url) as engine:
        connection = engine.connect()
        connection.exec_driver_sql("SELECT 1")
        database.restart()
        assert all(has_ended), "it waited for its client, and was killed"
        with pytest.raises(OperationalError):
            connection.exec_driver_sql("SELECT 1")
        connection.close()


def test_a_pause_stops_all_of_its_processes(database: Database) -> None:
    with engine_of(database.url) as engine, engine.connect() as connection:
        database.pause()
        # One that was just ending stays a zombie: its parent is stopped, too.
        still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        until(lambda: {each.status() for each in processes(database.pid)} <= still)
        database.resume()
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1


def test_it_listens_only_on_the_loopback_and_leaves_nothing(database: Database) -> None:
    everyone = processes(database.pid)
    ids = {each.pid for each in everyone}
    listening = {
        each.laddr.ip
        for each in psutil.net_connections("inet")
        if each.pid in ids and each.status == psutil.CONN_LISTEN
    }
    assert listening == {LOOPBACK}
    database.close()
    assert not any(each.is_running() for each in everyone)
    assert not database.folder.exists()


@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_it_ends_with_a_run_that_is_killed(kind: type[ServerProcess]) -> None:
    program = OWN_SERVER.format(module=kind.__module__, name=kind.__name__)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        everyone = processes(int(run.stdout.readline()))
        run.kill()
    until(lambda: not any(each.is_running() for each in everyone))


def processes(server: int) -> list[psutil.Process]:
    """A server's process and those that it started."""
    first = psutil.Process(server)
    return [first, *first.children(recursive=True)]

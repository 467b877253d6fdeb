"""PostgreSQL for tests: Debian's package, as private processes; its service is not started."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.exc import OperationalError

from tests.rigs.waiting import until
from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess
from tests.servers.sources import Source, from_environment, serve

PACKAGE = "postgresql"
USER = DATABASE = "delaybridge"
ACCOUNT = "nobody"  # the server refuses to run as root
CLUSTER_CONFIG = Path("/etc/postgresql-common/createcluster.conf")
NO_CLUSTER = "create_main_cluster = false"
ENDED = "ZX"  # the states of a process that has ended, in /proc


class PostgresServer(ServerProcess):
    """A private PostgreSQL with the superuser delaybridge; its data survive `kill` and `restart`.

    args: further settings, which win, such as ``["-c", "fsync=off"]``.
    """

    name = "postgres"

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        self.programs = self.found(programs(), "postgres")
        self.args = list(args)
        # Unlike shutil.copytree, this keeps the owner.
        subprocess.run(["cp", "-a", self._template(), self._data], check=True)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}@{LOOPBACK}:{self.port}/{DATABASE}"

    def command(self) -> Sequence[str]:
        own = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": self._data,
            "max_connections": 100,
        }
        settings = [word for name, value in own.items() for word in ("-c", f"{name}={value}")]
        return [*self._program("postgres"), "-D", str(self._data), *settings, *self.args]

    def is_ready(self) -> bool:
        """Whether it accepts connections; it refuses while it recovers."""
        ready = [str(self.programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def kill(self) -> None:
        """Kill the server with the processes of its connections; returns when all are gone."""
        children = self._children()
        super().kill()
        done = "every process of postgres is dead"  # the next one refuses to start before
        until(lambda: all(_parent(child) is None for child in children), done)

    def _signal(self, number: int) -> None:
        if number == signal.SIGTERM:  # with this one it would wait for its clients to go
            super()._signal(signal.SIGINT)
            return
        for child in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        super()._signal(number)

    def _children(self) -> list[int]:
        """Its processes, each of which leads a group of its own; this stops it, to have all."""
        if self._process is None:
            return []
        super()._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        found = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return [process for process in found if _parent(process) == self.pid]

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _template(self) -> Path:
        """The data folder of a new server; the first call makes it."""
        template = cache_folder() / f"postgres-{self.programs.parent.name}-data"
        with locked(cache_folder() / "postgres-data.lock"):
            if not template.exists():
                made = self.folder / "template"
                made.mkdir()
                if os.geteuid() == 0:
                    shutil.chown(made, ACCOUNT)
                as_superuser = ["--username", USER, "--auth=trust", "--encoding=UTF8"]
                self._run([*self._program("initdb"), "-D", str(made), *as_superuser])
                alone = [*self._program("postgres"), "--single", "-D", str(made), "postgres"]
                self._run(alone, f"CREATE DATABASE {DATABASE}\n")
                made.rename(template)
        return template

    def _run(self, command: Sequence[str], typed: str = "") -> None:
        environment = dict(self.environment())
        with self.log.open("ab") as log:
            subprocess.run(
                command,
                input=typed.encode(),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment,
                check=True,
            )

    def _program(self, name: str) -> list[str]:
        return [*_as_account(), str(self.programs / name)]


def _parent(process: int) -> int | None:
    """The id of a process's parent; None if the process has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before the last parenthesis may itself contain spaces and parentheses.
    state, parent, *_ = stat.rpartition(")")[2].split()
    return None if state in ENDED else int(parent)


def _as_account() -> list[str]:
    """What runs a program as another user, if this one is root."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(ACCOUNT)
    ids = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--clear-groups"]
    # It may pass through root's own folders. The change of user clears the death signal.
    passes = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return ["setpriv", *ids, *passes, "--pdeathsig", "KILL"]


def programs() -> Path | None:
    """The folder of the programs of the newest version that Debian's packages installed."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(found, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest else None


def install() -> None:
    """Install Debian's package without a cluster, and so without a service."""
    with locked(cache_folder() / "postgres.lock"):
        if programs() is not None or not debian.is_debian_root():
            return
        CLUSTER_CONFIG.parent.mkdir(parents=True, exist_ok=True)
        with CLUSTER_CONFIG.open("a") as config:  # a later line wins
            config.write(f"{NO_CLUSTER}\n")
        debian.install(PACKAGE)


def sources() -> Iterator[Source]:
    yield from from_environment("postgres")
    if (found := programs()) is not None:
        printed = subprocess.run(
            [found / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        yield Source(what=f"{printed.split()[2]} (apt)", open=PostgresServer)


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    yield from serve("postgres", sources())


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    yield from new_database(postgres_server_url)


def new_database(url: str) -> Iterator[str]:
    """The URL of a new database on a PostgreSQL or MariaDB; it is dropped afterwards."""
    name, server = f"t_{uuid.uuid4().hex[:16]}", make_url(url)
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with closing(engine.connect()) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.set(database=name).render_as_string(hide_password=False)
        _drop(name, connection)
    engine.dispose()


def _drop(name: str, connection: Connection) -> None:
    """Drop a database whose connections a test may have left open."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        return
    others = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
    for other in connection.exec_driver_sql(others).scalars().all():
        with contextlib.suppress(OperationalError):  # it has gone meanwhile
            connection.exec_driver_sql(f"KILL {other}")
    connection.exec_driver_sql(f"DROP DATABASE {name}")

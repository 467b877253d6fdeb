"""PostgreSQL for tests: Debian's package, as private processes; its service is not started."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess
from tests.servers.sources import NoServer, Source, from_environment, serve

PACKAGE = "postgresql"
USER = "delaybridge"
ACCOUNT = "nobody"  # the server refuses to run as root
NO_CLUSTER = Path("/etc/postgresql-common/createcluster.conf")


class PostgresServer(ServerProcess):
    """A private PostgreSQL, whose data survives `kill` and `restart`.

    args: further settings, as `["-c", "fsync=off"]`.
    """

    name = "postgres"

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        found = programs()
        if found is None:
            self.close()
            raise NoServer("postgres")
        self._programs, self.args = found, list(args)
        self._initialize()

    @property
    def url(self) -> str:
        """The URL of its first database, as SQLAlchemy takes it."""
        return f"postgresql+psycopg://{USER}@{LOOPBACK}:{self.port}/postgres"

    def command(self) -> Sequence[str]:
        """The server in the foreground; sockets and data in its own folder."""
        data = self.folder / "data"
        own = {"listen_addresses": LOOPBACK, "port": self.port, "unix_socket_directories": data}
        settings = [word for name, value in own.items() for word in ("-c", f"{name}={value}")]
        return [
            *_as_account(),
            str(self._programs / "postgres"),
            "-D",
            str(data),
            *settings,
            *self.args,
        ]

    def is_ready(self) -> bool:
        """Whether it accepts connections; it refuses while it recovers."""
        ready = [str(self._programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def _initialize(self) -> None:
        """Make its data folder: a copy of one that was made once."""
        template = cache_folder() / f"postgres-{self._programs.parent.name}"
        with locked(cache_folder() / "postgres.lock"):
            if not template.exists():
                made = self.folder / "template"
                made.mkdir()
                _give(made)
                self._run(
                    "initdb", "-D", made, "-U", USER, "--auth=trust", "-E", "UTF8", "--no-sync"
                )
                shutil.copytree(made, template)
                shutil.rmtree(made)
        shutil.copytree(template, self.folder / "data")
        (self.folder / "data").chmod(0o700)
        self.folder.chmod(0o711)
        _give(self.folder / "data")

    def _run(self, program: str, *arguments: object) -> None:
        command = [*_as_account(), str(self._programs / program), *map(str, arguments)]
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)


def _as_account() -> list[str]:
    """What runs a program as another user, if this one is root."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(ACCOUNT)
    ids = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--clear-groups"]
    # It may pass through root's own folders. Changing the user clears the death signal.
    passes = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return ["setpriv", *ids, *passes, "--pdeathsig", "KILL"]


def _give(folder: Path) -> None:
    """Give a folder to the user that the server runs as."""
    if os.geteuid() == 0:
        account = pwd.getpwnam(ACCOUNT)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)


def programs() -> Path | None:
    """The folder of the newest installed version's programs."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(found, key=lambda path: int(path.parts[-3]), default=None)
    return newest.parent if newest else None


def install() -> None:
    """Install Debian's package without a cluster, and so without a service."""
    with locked(cache_folder() / "postgres.lock"):
        if programs() is not None or not debian.is_debian_root():
            return
        if not NO_CLUSTER.exists():
            NO_CLUSTER.parent.mkdir(parents=True, exist_ok=True)
            NO_CLUSTER.write_text("create_main_cluster = false\n")
        debian.install(PACKAGE)


def sources() -> Iterator[Source]:
    """A given server, or the installed one."""
    yield from from_environment("postgres")
    if (found := programs()) is not None:
        yield Source(what=f"{found.parent.name} (apt)", open=PostgresServer)


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """A PostgreSQL that the whole session shares."""
    yield from serve("postgres", sources())


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """A new database of it."""
    yield from new_database(postgres_server_url)


def new_database(url: str) -> Iterator[str]:
    """The URL of a new database on a server, which is dropped afterwards."""
    from sqlalchemy import create_engine, make_url

    name, server = f"t_{uuid.uuid4().hex[:12]}", make_url(url)
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    is_postgres = server.get_backend_name() == "postgresql"
    with closing(engine.connect()) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield server.set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name}{' WITH (FORCE)' if is_postgres else ''}")
    engine.dispose()

"""MariaDB for tests: Debian's package of the server alone, as private processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.postgres import new_database
from tests.servers.process import LOOPBACK, ServerProcess
from tests.servers.sources import Source, from_environment, serve

PACKAGE = "mariadb-server-core"  # the program without its service
USER = DATABASE = "delaybridge"
SYSTEM_TABLES = ("system_tables", "performance_tables")  # files of the package
FIRST_USER = f"""
FLUSH PRIVILEGES;
CREATE USER {USER}@'%';
GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;
CREATE DATABASE {DATABASE};
"""
GREETING = 10  # the version of the protocol, after a header of 4 bytes
REPLY_TIMEOUT_S = 1.0


class MariadbServer(ServerProcess):
    """A private MariaDB whose user delaybridge may do all; data survive `kill` and `restart`.

    args: further options, which win, such as ``["--innodb-flush-log-at-trx-commit=2"]``.
    """

    name = "mariadb"

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        self.program = self.found(program(), "mariadb")
        self.args = list(args)
        shutil.copytree(self._template(), self.folder / "data")

    @property
    def url(self) -> str:
        return f"mysql+pymysql://{USER}@{LOOPBACK}:{self.port}/{DATABASE}?charset=utf8mb4"

    def command(self) -> Sequence[str]:
        return [
            *self._with_data(self.folder / "data"),
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--skip-name-resolve",
            "--max-allowed-packet=64M",
            *self.args,
        ]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), REPLY_TIMEOUT_S) as connection:
                return connection.recv(5)[4:] == bytes([GREETING])
        except OSError:
            return False

    def _with_data(self, folder: Path) -> list[str]:
        run = [str(self.program), "--no-defaults", f"--datadir={folder}"]
        account = ["--user=root"] if os.geteuid() == 0 else []
        return [*run, *account, "--character-set-server=utf8mb4"]

    def _template(self) -> Path:
        """The data folder of a new server; the first call makes it."""
        template = cache_folder() / f"mariadb-{version(self.program)}-data"
        with locked(cache_folder() / "mariadb-data.lock"):
            if not template.exists():
                made = self.folder / "template"
                made.mkdir()
                tables = (next(self._texts(name)).read_text() for name in SYSTEM_TABLES)
                first = "\n".join(["CREATE DATABASE mysql;", "USE mysql;", *tables, FIRST_USER])
                with self.log.open("ab") as log:
                    create = [*self._with_data(made), "--bootstrap"]
                    subprocess.run(create, input=first.encode(), stdout=log, stderr=log, check=True)
                made.rename(template)
        return template

    def _texts(self, name: str) -> Iterator[Path]:
        # Both names began with "mysql" before MariaDB 11.
        return self.program.parents[1].glob(f"share/m*/m*_{name}.sql")


def program() -> Path | None:
    found = shutil.which("mariadbd", path="/usr/sbin")
    return Path(found) if found else None


def version(binary: Path) -> str:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return printed.stdout.partition("Ver ")[2].partition("-")[0]


def install() -> None:
    with locked(cache_folder() / "mariadb.lock"):
        if program() is None and debian.is_debian_root():
            debian.install(PACKAGE)


def sources() -> Iterator[Source]:
    yield from from_environment("mariadb")
    if (found := program()) is not None:
        yield Source(what=f"{version(found)} (apt)", open=MariadbServer)


@pytest.fixture(scope="session")
def mariadb_server_url() -> Iterator[str]:
    yield from serve("mariadb", sources())


@pytest.fixture
def mariadb_url(mariadb_server_url: str) -> Iterator[str]:
    yield from new_database(mariadb_server_url)

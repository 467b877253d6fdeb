"""MariaDB for tests: Debian's package of the server alone, as private processes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.postgres import new_database
from tests.servers.process import LOOPBACK, ServerProcess, accepts
from tests.servers.sources import NoServer, Source, from_environment, serve

PACKAGE = "mariadb-server-core"  # the program without its service


class MariadbServer(ServerProcess):
    """A private MariaDB, whose data survives `kill` and `restart`. args: further options."""

    name = "mariadb"

    def __init__(self, args: Sequence[str] = ()) -> None:
        super().__init__()
        found = program()
        if found is None:
            self.close()
            raise NoServer("mariadb")
        self._program, self.args = found, list(args)
        self._initialize()

    @property
    def url(self) -> str:
        """The URL of its first database, as SQLAlchemy takes it."""
        return f"mysql+pymysql://root@{LOOPBACK}:{self.port}/information_schema?charset=utf8mb4"

    def command(self) -> Sequence[str]:
        """The server in the foreground; socket and data in its own folder; any user may do all."""
        return [
            str(self._program), "--no-defaults", "--user=root", "--skip-grant-tables",
            "--skip-networking=0", f"--bind-address={LOOPBACK}", f"--port={self.port}",
            f"--datadir={self.folder / 'data'}", f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}", "--max-allowed-packet=64M",
            "--character-set-server=utf8mb4", *self.args,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """Whether it accepts connections."""
        return accepts(self.port)

    def _initialize(self) -> None:
        """Make its data folder: a copy of one that was made once; it needs no tables of its own."""
        template = cache_folder() / "mariadb"
        with locked(cache_folder() / "mariadb.lock"):
            if not template.exists():
                made = self.folder / "template"
                made.mkdir()
                options = ["--no-defaults", "--user=root", "--skip-grant-tables"]
                subprocess.run(
                    [str(self._program), *options, "--bootstrap", f"--datadir={made}"],
                    stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                )  # fmt: skip
                shutil.copytree(made, template)
                shutil.rmtree(made)
        shutil.copytree(template, self.folder / "data")


def program() -> Path | None:
    """The installed server."""
    found = shutil.which("mariadbd", path="/usr/sbin:/usr/bin:/usr/local/bin")
    return Path(found) if found else None


def install() -> None:
    """Install Debian's package of the server's program."""
    with locked(cache_folder() / "mariadb.lock"):
        if program() is None and debian.is_debian_root():
            debian.install(PACKAGE)


def sources() -> Iterator[Source]:
    """A given server, or the installed one."""
    yield from from_environment("mariadb")
    if (found := program()) is not None:
        printed = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
        version = printed.stdout.partition("Ver ")[2].partition("-")[0]
        yield Source(what=f"{version} (apt)", open=MariadbServer)


@pytest.fixture(scope="session")
def mariadb_server_url() -> Iterator[str]:
    """A MariaDB that the whole session shares."""
    yield from serve("mariadb", sources())


@pytest.fixture
def mariadb_url(mariadb_server_url: str) -> Iterator[str]:
    """A new database of it."""
    yield from new_database(mariadb_server_url)

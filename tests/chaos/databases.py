"""The ledger's database of a cell, on a disk that may be full if the cell says so."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from tests.rigs.ledgers import made
from tests.servers.disk import SmallDisk
from tests.servers.postgres import ACCOUNT, PostgresServer

if TYPE_CHECKING:
    from tests.chaos.site import Site

_TABLES_MIB, _ALL_MIB, _FILE_MIB = 16, 120, 16


def start(site: Site, kind: Any) -> str:
    """The URL of a database, with its tables. kind: as in `Setup.ledger`."""
    if kind == "sqlite":
        site.disk = site.enter(SmallDisk(_FILE_MIB))
        return made(f"sqlite:///{site.disk.path}/ledger.db")
    server = PostgresServer()
    if kind == "small disk":
        site.disk = site.enter(SmallDisk(_ALL_MIB))
        data = site.disk.path / "data"
        subprocess.run(["mv", server.folder / "data", data], check=True)
        (server.folder / "data").symlink_to(data)
    site.database = site.enter(server)
    if kind == "table space":
        from tests.chaos.cells_ledger import ask

        site.disk = site.enter(SmallDisk(_TABLES_MIB))
        space = site.disk.path / "space"
        space.mkdir()
        shutil.chown(space, ACCOUNT)
        ask(server.url, f"CREATE TABLESPACE small LOCATION '{space}'")
        ask(server.url, "ALTER DATABASE delaybridge SET default_tablespace = small")
    return made(server.url)

"""The version of the ledger's tables: checked at the start, changed by `ledger upgrade`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from delaybridge.errors import ConfigError
from delaybridge.ledger.sql.tables import VERSION_TABLE

_REMEDY = "run: delaybridge ledger upgrade"
_MIGRATIONS = Path(__file__).with_name("migrations")


def version(connection: Connection) -> str:
    """The version that the tables have; empty if there are none."""
    options = {"version_table": VERSION_TABLE}
    found = MigrationContext.configure(connection, opts=options).get_current_revision()
    return found or ""


def newest() -> str:
    """The version that this program needs."""
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head() or ""


def check(connection: Connection) -> None:
    """ConfigError unless the tables have the version that this program needs."""
    found, needed = version(connection), newest()
    if found == needed:
        return
    _refuse_later(found)
    what = f"the tables have version {found}, this program needs {needed}"
    if not found:
        what = "the database has no tables of delaybridge"
    raise ConfigError(f"ledger: {what}: {_REMEDY}")


def _refuse_later(found: str) -> None:
    """ConfigError if a later version of delaybridge has made the tables."""
    known = {script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()}
    if found and found not in known:
        what = f"the tables have version {found}, this program needs {newest()}"
        raise ConfigError(f"ledger: {what}: install a newer delaybridge")


def upgrade(engine: Engine) -> tuple[str, str]:
    """Bring the tables to the version that this program needs: the version before, and after.

    Several at once wait for each other where the database can lock, and none harms. ConfigError if
    a later version of delaybridge has made the tables: they stay as they are.
    """
    with engine.connect() as connection:
        before = version(connection)
        connection.rollback()
        _refuse_later(before)
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
        return before, version(connection)

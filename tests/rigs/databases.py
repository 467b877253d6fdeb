"""Databases of an application, through their own libraries."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
from sqlalchemy import URL, text

from tests.rigs.waiting import DEADLINE_S


def driver(url: URL) -> Any:
    """A connection of the database's own library."""
    if url.get_backend_name() == "sqlite":
        return sqlite3.connect(str(url.database), timeout=DEADLINE_S)
    if url.get_backend_name() == "postgresql":
        return psycopg.connect(conninfo(url))
    named = {"host": url.host, "port": url.port, "user": url.username, "database": url.database}
    return pymysql.connect(**named, password=url.password or "", charset="utf8mb4")


def rows(connection: Any, sql: str) -> list[Any]:
    """What a query finds on a connection of any library, or a cursor."""
    if hasattr(connection, "get_bind") or hasattr(connection, "dialect"):  # SQLAlchemy's
        return list(connection.execute(text(sql)))
    cursor = connection if hasattr(connection, "fetchone") else connection.cursor()
    cursor.execute(sql)
    return list(cursor.fetchall())


def conninfo(url: URL) -> str:
    """The URL as psycopg takes it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)

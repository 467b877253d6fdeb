"""The ledger's tables. `migrations/` makes them; a test compares both."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

VERSION_TABLE = "delaybridge_version"

metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")
# Ids are compared byte by byte, as in Redis. Of 255 bytes at most; in the dead set two follow.
_id = String(257).with_variant(String(257, collation="utf8mb4_bin"), "mysql", "mariadb")
_name = String(64).with_variant(String(64, collation="utf8mb4_bin"), "mysql", "mariadb")
# MySQL has an index of bytes only if their number is bounded.
_key = LargeBinary().with_variant(VARBINARY(1200), "mysql", "mariadb")
_bytes = LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb")

namespace = Table(
    "namespace",
    metadata,
    Column("namespace", _name, primary_key=True),
    Column("buckets", Integer, nullable=False),
    Column("birth", String(64), nullable=False),
    Column("told_ms", BigInteger, nullable=False, server_default="0"),
)
"""How many buckets a namespace has, and its birth id: a Redis that was wiped does not know them.
If it was resized, `birth` is its record (`layouts`).

told_ms: when a worker told last what had left. Redis has it, too: so it is noticed if the database
comes back with an older past."""

message = Table(
    "message",
    metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("namespace", _name, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("id", _id, nullable=False),
    Column("stamp", BigInteger, nullable=False),
    Column("state", String(12), nullable=False),
    Column("tier", SmallInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("destination", Text, nullable=False),
    Column("payload", _bytes, nullable=False),
    Column("error", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    UniqueConstraint("namespace", "id", "bucket", "stamp", name="message_call"),
    Index(
        "message_live", "namespace", "tier", "bucket", "due_ms", "number",
        postgresql_where=text("tier > 0"), sqlite_where=text("tier > 0"),
    ),
)  # fmt: skip
"""A row for each call that scheduled a message. stamp: of that call, as in Redis. payload: the
whole message, MessagePack. error: the reason, if it is dead, expired or cancelled by another."""

transition = Table(
    "transition",
    metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("namespace", _name, nullable=False),
    Column("id", _id, nullable=False),
    Column("from", String(12), nullable=False),
    Column("to", String(12), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("worker", String(255), nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error", Text),
    Index("transition_of", "namespace", "id"),
)
"""What happened to messages. History, not truth: what `message` says counts."""

control = Table(
    "control",
    metadata,
    Column("namespace", _name, primary_key=True),
    Column("kind", String(10), primary_key=True),
    Column("name", _key, primary_key=True),
    Column("value", _bytes),
    Column("changed_ms", BigInteger, nullable=False),
    Column("birth", String(64), nullable=False, server_default=""),
    Column("made_ms", BigInteger, nullable=False, server_default="0"),
)
"""A field of a rule (`rate:PLACE`), or a recurring definition: kind `rule` or `definition`. value:
the bytes that Redis has, of a field the object with it alone; no value: it was removed. changed_ms:
of its last change, as Redis numbers them. birth, made_ms: the due time of the last run that was
made of the plan with this birth id."""

counted = Table(
    "counted",
    metadata,
    Column("namespace", _name, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("messages", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
)
"""How many cold messages a bucket had, if it took long to count them. until_ms: good until then."""

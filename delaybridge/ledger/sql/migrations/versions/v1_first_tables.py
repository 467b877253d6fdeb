"""The first tables: namespace, message, transition."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGBLOB

revision = "1"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ID = sa.String(257).with_variant(sa.String(257, "utf8mb4_bin"), "mysql", "mariadb")
_NAME = sa.String(64).with_variant(sa.String(64, "utf8mb4_bin"), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb")


def upgrade() -> None:
    """Make the first three tables."""
    _message()
    _transition()
    op.create_table(
        "namespace",
        sa.Column("namespace", _NAME, primary_key=True),
        sa.Column("buckets", sa.Integer, nullable=False),
        sa.Column("birth", sa.String(64), nullable=False),
    )


def _message() -> None:
    op.create_table(
        "message",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("namespace", _NAME, nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("id", _ID, nullable=False),
        sa.Column("stamp", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("tier", sa.SmallInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("payload", _BYTES, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("namespace", "id", "bucket", "stamp", name="message_call"),
    )
    op.create_index(
        "message_live",
        "message",
        ["namespace", "tier", "bucket", "due_ms", "number"],
        postgresql_where=sa.text("tier > 0"),
        sqlite_where=sa.text("tier > 0"),
    )


def _transition() -> None:
    op.create_table(
        "transition",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("namespace", _NAME, nullable=False),
        sa.Column("id", _ID, nullable=False),
        sa.Column("from", sa.String(12), nullable=False),
        sa.Column("to", sa.String(12), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("worker", sa.String(255), nullable=False),
        sa.Column("bucket", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
    )
    op.create_index("transition_of", "transition", ["namespace", "id"])

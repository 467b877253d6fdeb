"""Rules of destinations and recurring definitions: control."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

revision = "2"
down_revision = "1"

_NAME = sa.String(64).with_variant(sa.String(64, "utf8mb4_bin"), "mysql", "mariadb")
_KEY = sa.LargeBinary().with_variant(VARBINARY(1200), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(LONGBLOB, "mysql", "mariadb")


def upgrade() -> None:
    """Make the table of controls."""
    op.create_table(
        "control",
        sa.Column("namespace", _NAME, primary_key=True),
        sa.Column("kind", sa.String(10), primary_key=True),
        sa.Column("name", _KEY, primary_key=True),
        sa.Column("value", _BYTES),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.Column("birth", sa.String(64), nullable=False, server_default=""),
        sa.Column("made_ms", sa.BigInteger, nullable=False, server_default="0"),
    )

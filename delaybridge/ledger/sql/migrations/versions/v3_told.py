"""When the ledger was told last what had left: namespace.told_ms."""

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Add the column named `told`."""
    told_ms = sa.Column("told_ms", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("namespace", told_ms)

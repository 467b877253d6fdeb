"""How many cold messages there are, for whoever asks next: counted."""

import sqlalchemy as sa
from alembic import op

revision = "4"
down_revision = "3"

_NAME = sa.String(64).with_variant(sa.String(64, "utf8mb4_bin"), "mysql", "mariadb")


def upgrade() -> None:
    """Make the table of counts."""
    op.create_table(
        "counted",
        sa.Column("namespace", _NAME, primary_key=True),
        sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("messages", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
    )

"""Run by alembic for each command: on the connection that `schema.upgrade` passes."""

from alembic import context

from delaybridge.ledger.sql.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()

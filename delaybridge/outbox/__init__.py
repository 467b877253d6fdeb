"""The outbox: a message is scheduled if and only if the application's own transaction commits.

    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=42))
        outbox.schedule(connection, Message("rabbitmq:orders/timeout", b"42", delay="15m"))

`schedule` and `cancel` insert a row into the table `delaybridge_outbox`, in the transaction of the
given connection. `delaybridge outbox run` moves committed rows into Redis. See docs/outbox.md.
"""

from delaybridge.outbox.rows import SqlOutbox as Outbox
from delaybridge.outbox.rows import (
    cancel,
    cancel_async,
    create_table,
    create_table_async,
    schedule,
    schedule_async,
    statements,
)

__all__ = [
    "Outbox",
    "cancel",
    "cancel_async",
    "create_table",
    "create_table_async",
    "schedule",
    "schedule_async",
    "statements",
]

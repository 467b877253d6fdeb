"""For consumers: the effect of a message happens once, although the message may arrive twice.

`SqlDedup` (or `sql_once`) is exact: the mark is a row in the consumer's own transaction, so mark
and effect are committed together. `RedisDedup` and `AsyncRedisDedup` are for effects without such a
transaction: an e-mail, a call of another service. No effect is lost, but one may happen twice.

    dedup = RedisDedup("redis://localhost:6379/0")
    with dedup.once(message_id(properties)) as first:
        if first:
            send_the_email(body)
    channel.basic_ack(method.delivery_tag)

See docs/effectively-once.md.
"""

from delaybridge.dedup.claims import AsyncRedisDedup, ClaimLost, InProgress, RedisDedup
from delaybridge.dedup.ids import message_id
from delaybridge.dedup.rows import SqlDedup, sql_once, sql_once_async

__all__ = [
    "AsyncRedisDedup",
    "ClaimLost",
    "InProgress",
    "RedisDedup",
    "SqlDedup",
    "message_id",
    "sql_once",
    "sql_once_async",
]

"""Whether a queue of RabbitMQ is certainly empty.

A quorum queue cannot be deleted only if it is empty, and its numbers are 0 also where its leader
does not answer: only an answer of the leader itself counts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pika.exceptions import AMQPError
from pika.spec import Basic

from delaybridge.amqp.connection import WireConnection, close_channel, close_code, reason_of
from delaybridge.errors import ConfigError
from delaybridge.ingest.rabbitmq.connection import IntakeConnection

AGAIN_S = 0.05
ROUTED_S = 1.0  # in which a message that an exchange routed is in the queue
_ANSWER_S = 20.0  # that the queue has: a leader is chosen in less
_NOT_FOUND = 404


async def held_by(connection: IntakeConnection, queue: str) -> tuple[int, int]:
    """Messages of a queue that no consumer has, and its consumers; none if there is no such queue.

    Nothing is believed unproven: RabbitMQ says that a quorum queue has neither if its leader does
    not answer within 250 ms.
    """
    while not any(held := await count(connection, queue)):
        if await is_empty(connection, queue):
            return await count(connection, queue)
    return held


async def messages_waiting(connection: IntakeConnection, *queues: str) -> int:
    """Messages of the queues that no consumer has."""
    return sum([(await count(connection, queue))[0] for queue in queues])


async def count(connection: IntakeConnection, queue: str) -> tuple[int, int]:
    """The same as RabbitMQ says it at once, perhaps without the leader."""
    answer = await _asked(connection, queue)
    return (0, 0) if answer is None else (int(answer.message_count), int(answer.consumer_count))


async def has_queue(connection: WireConnection, queue: str) -> bool:
    """Whether there is such a queue; raises if the broker cannot say, as when its node is down."""
    return await _asked(connection, queue) is not None


async def _asked(connection: WireConnection, queue: str) -> Any:
    try:
        return await connection.call_alone("queue_declare", queue=queue, passive=True)
    except AMQPError as exc:
        if not _is_missing(exc):
            raise
        return None


async def is_empty(connection: IntakeConnection, queue: str) -> bool:
    """Ask a queue for a message; ConfigError if its leader does not say. A missing one is empty."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            if await _get(connection, queue) in (Basic.GetEmpty, None):
                return True
            while not any(await count(connection, queue)):
                await asyncio.sleep(AGAIN_S)  # the message is on its way back
            return False
    except (AMQPError, TimeoutError) as exc:
        raise ConfigError(
            f"queue {queue!r} does not say whether it is empty, and was not deleted: "
            f"{reason_of(exc)}"
        ) from exc


async def _get(connection: IntakeConnection, queue: str) -> Any:
    """The class of the answer, None without the queue; a message goes back with the channel."""
    channel = await connection.open_channel(lambda *_: None)
    answers = asyncio.Queue[Any]()
    channel.add_on_close_callback(lambda _, why: answers.put_nowait(why))
    # `basic_get` itself calls back with a whole message only, and nothing reads its content here.
    channel.add_callback(answers.put_nowait, [Basic.GetOk, Basic.GetEmpty])
    try:
        channel.basic_get(queue, lambda *_: None)
        answer = await answers.get()
    finally:
        close_channel(channel)
    if isinstance(answer, Exception):
        if _is_missing(answer):
            return None
        raise answer
    return type(answer.method)


def _is_missing(exc: Exception) -> bool:
    """Whether there is no such queue. For one whose node is down the code is the same."""
    closed = close_code(exc)
    return closed is not None and closed[0] == _NOT_FOUND and "no queue " in closed[1]

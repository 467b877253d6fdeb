"""Celery: tasks with an ETA, on Redis in kombu's envelopes, on RabbitMQ as messages.

On RabbitMQ they wait in their queues, or in those of native delayed delivery.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ChannelClosedByBroker
from redis.exceptions import RedisError

from delaybridge.carry.line import BadLine, Line
from delaybridge.errors import ConfigError, MessageError
from delaybridge.foreign.redis_source import Lines, Member, RedisSource
from delaybridge.foreign.source import PendingLine, Source, SourceError, failures, read
from delaybridge.message import RESERVED_PREFIX, Destination
from delaybridge.times import at_ms

_STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")  # kombu's priorities, one list for each
_TYPES = ("content_type", "content_encoding")
_ENVELOPE = ("body_encoding", "delivery_tag", "delivery_info")  # made for each delivery
_LEVELS = 28  # of the queues celery_delayed_N, each for one bit of the delay in seconds
# Headers that RabbitMQ adds when it dead-letters, or delivers again.
_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
_MOST_DELIVERIES = 10  # a quorum queue drops a message after 20, if its limit is the default
_ERRORS = (AMQPError, AMQPConnectorException, OSError)
_NOT_SENT = ("headers", "user_id", "cluster_id")


def task(
    source: Source, headers: Mapping[str, Any], queue: str, to: str, **fields: Any
) -> PendingLine | None:
    """The line of a message as Celery sent it; None: it has no ETA, so a worker takes it now."""
    if "task" not in headers:
        what = "missing; it is not Celery's, or of its protocol 1"
        raise MessageError("not_celery", "task", what)
    if headers.get("eta") is None:
        return None
    due = datetime.fromisoformat(headers["eta"])
    due = due if due.tzinfo else due.replace(tzinfo=UTC)  # Celery's default
    kept = {name: v for name, v in headers.items() if not name.startswith(RESERVED_PREFIX)}
    due_ms, name = at_ms(due, field="eta"), headers["task"]
    return source.found(headers["id"], queue, name, due_ms, to, headers=kept, **fields)


class CeleryRedis(RedisSource):
    """Tasks with an ETA, in queues and held by workers; all others are left alone."""

    def keys(self) -> Iterator[tuple[bytes, str]]:
        """What workers hold, or held when they were killed; then the queues, by priority."""
        yield f"{self.prefix}unacked".encode(), ""
        for queue in self.queues or ["celery"]:
            yield from ((f"{self.prefix}{queue}{step}".encode(), queue) for step in _STEPS)

    def page(self, key: bytes, queue: str, members: list[Member]) -> Lines:
        """The tasks in these envelopes."""
        for raw, field in members:
            name = field or raw[max(0, raw.find(b'"id"')) :]
            yield read(key, name, self._task, queue, raw, (key, field, raw))

    def _task(self, queue: str, raw: bytes, mark: Any) -> Line | None:
        envelope = json.loads(raw)
        if not queue:  # a worker's: [envelope, exchange, routing key]
            envelope, _, queue = envelope
            if self.queues and queue not in self.queues:
                return None
        headers, properties, body = envelope["headers"], envelope["properties"], envelope["body"]
        is_base64 = properties.get("body_encoding") == "base64"
        kept = {name: value for name, value in properties.items() if name not in _ENVELOPE}
        kept |= {name: envelope[name.replace("_", "-")] for name in _TYPES}
        content = b64decode(body, validate=True) if is_base64 else body.encode()
        fields = {"body_base64": content, "properties": kept, "mark": mark}
        return task(self, headers, queue, f"kombu:{queue}", **fields)

    def remove(self, marks: Sequence[Any]) -> None:
        """Exactly these envelopes, in one transaction."""
        with failures(RedisError):
            pipeline = self.redis.pipeline()
            for key, field, raw in marks:
                if field is None:
                    pipeline.lrem(key, -1, raw)
                    self.gone[key] += 1
                else:
                    pipeline.hdel(key, field).zrem(key + b"_index", field)
            pipeline.execute()


class CeleryRabbitMQ(Source):
    """Messages are read without being acknowledged, and go back to their places at the end."""

    def __init__(self, url: str, *given: Any) -> None:
        super().__init__(url, *given)
        try:
            parameters = pika.URLParameters(url)
        except Exception:  # whose text may hold the password
            raise ConfigError("URL: pika does not take it; leave out its options") from None
        with failures(*_ERRORS):
            self._connection: Any = pika.BlockingConnection(parameters)
        self._channels: list[Any] = []  # one for each queue; a missing queue closes its own

    def lines(self) -> Iterator[Line | BadLine]:
        """As of every source; of each queue as many as were ready when it was opened."""
        before = f"{self.prefix}_" if self.prefix else ""
        # From the longest delay to the shortest, the way that a message takes.
        delayed = [f"{before}celery_delayed_{level}" for level in reversed(range(_LEVELS))]
        with failures(*_ERRORS):
            for queue in delayed:
                yield from self._messages(queue, f"{before}celery_delayed_delivery")
            for queue in self.queues or ["celery"]:
                yield from self._messages(queue)

    def _messages(self, queue: str, exchange: str = "") -> Iterator[Line | BadLine]:
        """What a queue holds. exchange: of native delayed delivery, whose queues may be missing."""
        channel = self._connection.channel()
        try:
            state = channel.queue_declare(queue, passive=True).method
        except ChannelClosedByBroker as exc:
            if not exchange:
                yield BadLine(queue, "--queue", exc.reply_text)
            return
        self._channels.append(channel)
        if state.consumer_count:
            what = "workers consume it; stop them, since what they hold is not seen"
            yield BadLine(queue, "consumers", what)
        for number in range(state.message_count):
            name, message = b"message %d" % number, channel.basic_get(queue)
            line = read(queue.encode(), name, self._task, exchange, queue, channel, *message)
            if line is not None:
                yield line

    def _task(
        self, exchange: str, queue: str, channel: Any, method: Any, given: Any, body: bytes
    ) -> Line | None:
        if method is None:
            return None
        headers, key = given.headers or {}, queue
        if headers.get("x-delivery-count", 0) >= _MOST_DELIVERIES:
            what = "that RabbitMQ drops it soon; raise the delivery-limit of the queue first"
            raise SourceError(f"a message of {queue} was read so often {what}")
        if exchange:  # it is routed as at the end of the native delay
            key, queue = method.routing_key, method.routing_key[2 * _LEVELS :]
        sent = {n: v for n, v in vars(given).items() if v is not None and n not in _NOT_SENT}
        kept = {name: v for name, v in headers.items() if not name.startswith(_BROKERS)}
        to = str(Destination("rabbitmq", "rabbitmq", exchange, key))
        mark = channel, method.delivery_tag
        return task(self, kept, queue, to, body_base64=body, properties=sent, mark=mark)

    def remove(self, marks: Sequence[Any]) -> None:
        """Acknowledge them, each on the channel that has it."""
        with failures(*_ERRORS):
            for channel, tag in marks:
                channel.basic_ack(tag)
            self._connection.process_data_events(0)

    def close(self) -> None:
        """Put back what was not acknowledged. RabbitMQ 4.3 does not count that as a failure."""
        with suppress(AMQPError):
            for channel in self._channels:
                channel.basic_recover(requeue=True)
            self._connection.close()

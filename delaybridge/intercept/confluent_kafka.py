"""confluent_kafka with delays: `Producer`.

from delaybridge.intercept.confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "..."})
id = producer.produce("orders", b"...", key=b"42", on_delivery=stored, delay="15m")
producer.flush()
"""

from __future__ import annotations

import logging
import time
from typing import Any

import confluent_kafka

from delaybridge.client import Client
from delaybridge.gathering import Later
from delaybridge.intercept import (
    Timing,
    client_of_settings,
    is_timed,
    pairs,
    timing_of,
    without_instructions,
)
from delaybridge.intercept.kafka import check_record, message_of
from delaybridge.intercept.kafka_outbox import Outbox
from delaybridge.intercept.kafka_reports import Bounds, Callback, Produced
from delaybridge.times import At

__all__ = ["Producer"]

ANY_PARTITION = -1
# `poll` and `flush` wait for librdkafka and for the outbox in turns of this length, and of the
# longer one while nothing is being stored.
TURN_S, IDLE_TURN_S = 0.005, 0.1

_logger = logging.getLogger("delaybridge.intercept")
_plain_produce = confluent_kafka.Producer.produce
_plain_poll = confluent_kafka.Producer.poll


class Producer(confluent_kafka.Producer):
    """confluent_kafka's producer; `produce` accepts `delay` and `deliver_at`.

    client: stores the delayed messages; by default one made from the settings at the first delay
    and shared by the whole process. broker: the configured Kafka that these messages go to, if
    there are several. The other arguments are librdkafka's configuration. Delayed messages have a
    queue of their own, to which these settings apply as well: `message.timeout.ms` (at most ten
    minutes), `queue.buffering.max.messages`, `queue.buffering.max.kbytes`, `on_delivery`,
    `delivery.report.only.error` and `logger`.
    """

    def __init__(
        self, *args: Any, client: Client | None = None, broker: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        config = {**(args[0] if args else {}), **kwargs}
        self._client, self._broker = client, broker
        self._default_callback: Callback | None = config.get("on_delivery")
        self._only_error: bool = config.get("delivery.report.only.error", False)
        self._outbox = Outbox(Bounds.from_config(config), config.get("logger") or _logger)
        self._is_in_transaction = False

    def produce(  # type: ignore[override]
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = ANY_PARTITION,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
        timestamp: int = 0,
        headers: Any = None,
        *,
        delay: Later = None,
        deliver_at: At = None,
    ) -> str | None:
        """Produce now, as confluent_kafka does; or store a message with a delay until it is due.

        delay, deliver_at: when to deliver it, counted from this call; a header may give a delay
        instead. The workers choose the partition by the key, unless one is given here; they ignore
        `timestamp`.

        Returns None, or the id of a delayed message: that of the header `delaybridge-id`, else a
        new one. A thread stores it, and `poll` or `flush` then calls `on_delivery`. Without an
        error the message is stored, and not yet on Kafka. `_CONFLICT`: it was not stored, since its
        id is pending with other content; `_IN_PROGRESS`: since the message of its id is being
        delivered. `_PURGE_QUEUE`: it was not sent. `_MSG_TIMED_OUT`,
        `_PURGE_INFLIGHT`, `_FAIL`: it may be stored; cancel it by its id to be sure.

        Raises MessageError if the message is refused, also within a transaction; ConfigError;
        BufferError if the queue is full (`poll` and try again); RuntimeError if the producer is
        closed or was made before a fork. Nothing is queued then.
        """
        if callback is None:  # passed on as None, it would hide `on_delivery` from the library
            callback = on_delivery
        timing = None
        # Most messages have neither delay nor headers: these cost no call.
        if delay is not None or deliver_at is not None or (headers and is_timed(headers)):
            timing = timing_of(headers, delay, deliver_at)
        if timing is None:
            _plain_produce(self, topic, value, key, partition, callback, None, timestamp, headers)
            return None
        return self._delay(timing, callback, topic, value, key, partition, headers)

    def poll(self, timeout: float = -1) -> int:
        """Serve reports, also of delayed messages; returns how many."""
        if self._outbox.is_unused and 0 <= timeout <= IDLE_TURN_S:
            return _plain_poll(self, timeout)
        until_s = _until(timeout)
        while True:
            served = self._serve()
            left_s = 0.0 if served else max(0.0, until_s - time.monotonic())
            served += super().poll(min(left_s, TURN_S if self._outbox else IDLE_TURN_S))
            if served or left_s == 0.0:
                return served + self._serve()

    def flush(self, timeout: float = -1) -> int:
        """Wait until every message is delivered or stored, and reported; returns those left."""
        until_s = _until(timeout)
        while True:
            self._serve()
            left_s = max(0.0, until_s - time.monotonic())
            if self._outbox:
                plain = super().flush(min(left_s, TURN_S))
                if plain == 0:
                    self._outbox.wait(min(left_s, IDLE_TURN_S))
            else:
                plain = super().flush(timeout if timeout < 0 else left_s)
            self._serve()
            if left_s == 0.0 or not (plain or self._outbox):
                return plain + len(self._outbox)

    def __len__(self) -> int:
        """Messages waiting to be delivered or stored, and reports waiting to be served."""
        return super().__len__() + len(self._outbox)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Purge, also delayed messages; these are in flight while they are being stored."""
        super().purge(in_queue, in_flight, blocking)
        self._outbox.purge(in_queue=in_queue, in_flight=in_flight)

    def close(self) -> bool:
        """Flush without a time limit, and close; a client passed as `client=` stays open."""
        if not self._outbox.is_closed:
            self.flush()
            self._outbox.close()
        return super().close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        outbox = self.__dict__.get("_outbox")  # None if `__init__` failed
        # Closed at exit, its lock may be held by a thread that no longer runs.
        if outbox is not None and not outbox.is_closed:
            outbox.close()

    def begin_transaction(self) -> None:
        """Begin a transaction. Until it ends, delayed messages are refused: they cannot join it."""
        super().begin_transaction()
        self._is_in_transaction = True

    def commit_transaction(self, *args: Any, **kwargs: Any) -> None:
        """Commit the transaction; delayed messages are accepted again."""
        super().commit_transaction(*args, **kwargs)
        self._is_in_transaction = False

    def abort_transaction(self, *args: Any, **kwargs: Any) -> None:
        """Abort the transaction; delayed messages are accepted again."""
        super().abort_transaction(*args, **kwargs)
        self._is_in_transaction = False

    def _delay(
        self,
        timing: Timing,
        callback: Callback | None,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        partition: int,
        headers: Any,
    ) -> str:
        check_record(topic, is_in_transaction=self._is_in_transaction)
        client = self._client = self._client or client_of_settings()
        chosen = None if partition == ANY_PARTITION else partition
        kept = without_instructions(headers)
        message = message_of(client, self._broker, timing, topic, value, key, chosen, kept)
        accepted = client.accept(message)
        callback = callback or self._default_callback
        produced = Produced(
            topic, value, key, partition, pairs(headers), callback, self._only_error
        )
        self._outbox.put(client, accepted, produced)
        return accepted.id

    def _serve(self) -> int:
        """Call `on_delivery` for each report there is now; returns how many."""
        served = 0
        for _ in range(self._outbox.reports):  # not those of messages that a callback produces
            if (report := self._outbox.take_report()) is not None:
                served += 1
                report.serve()
        return served


def _until(timeout_s: float) -> float:
    return float("inf") if timeout_s < 0 else time.monotonic() + timeout_s

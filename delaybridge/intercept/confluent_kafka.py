"""confluent_kafka with delays: `Producer`.

from delaybridge.intercept.confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "..."})
id = producer.produce("orders", b"...", key=b"42", on_delivery=stored, delay="15m")
producer.flush()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka

from delaybridge.client import Client
from delaybridge.errors import MessageError
from delaybridge.intercept import (
    SIGNS,
    Timing,
    broker_of,
    client_of_settings,
    destination,
    timing_of,
    without_instructions,
)
from delaybridge.intercept.kafka_outbox import Bounds, Callback, Outbox, Produced
from delaybridge.message import Message
from delaybridge.times import At, Delay

__all__ = ["Producer"]

ANY_PARTITION = -1
# How late `poll` and `flush` notice what the other kind brings: librdkafka is waited for in
# turns of this length, and of the longer one while nothing is being stored.
TURN_S, IDLE_TURN_S = 0.005, 0.1

_logger = logging.getLogger("delaybridge.intercept")
_plain_produce = confluent_kafka.Producer.produce
_plain_poll = confluent_kafka.Producer.poll


class Producer(confluent_kafka.Producer):
    """confluent_kafka's, whose `produce` takes `delay` and `deliver_at`.

    client: who stores what is delayed; by default one of the settings, shared by the process and
    made at the first delay. broker: the configured Kafka that these messages go to, where there
    are several. All else is librdkafka's configuration. What is delayed has a queue of its own, for
    which these hold, too: `message.timeout.ms` (at most ten minutes),
    `queue.buffering.max.messages`, `queue.buffering.max.kbytes`, `on_delivery`,
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
        self._outbox = Outbox(Bounds.of(config), config.get("logger") or _logger)
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
        delay: Delay = None,
        deliver_at: At = None,
    ) -> str | None:
        """As confluent_kafka's; with `delay`, `deliver_at` or a delay in the headers, stored.

        A delayed message is checked and queued, and its id returned: that of the header
        `delaybridge-id`, else a new one. A thread stores it, and then `poll` or `flush` calls
        `on_delivery`; without an error: it is stored (not: it is on Kafka). With an error:
        `_CONFLICT`: the id is pending with other content, this was not stored; `_PURGE_QUEUE`: it
        was not sent; `_MSG_TIMED_OUT`, `_PURGE_INFLIGHT`, `_FAIL`: it may be stored; cancel it by
        its id to be sure. A delay counts from this call. The workers choose the partition by the
        key, unless one is given here; `timestamp` means nothing to them.

        MessageError: refused, as within a transaction; ConfigError; BufferError: the queue is full,
        `poll` and try again; RuntimeError: closed, or made before a fork. Nothing is queued then.
        """
        if callback is None:  # given as None, it would hide the other from the library
            callback = on_delivery
        timing = None
        if delay is not None or deliver_at is not None:
            timing = timing_of(headers, delay, deliver_at)
        elif headers:  # looked at here: what passes through shall cost nothing
            for pair in headers.items() if type(headers) is dict else headers:
                if pair[0] in SIGNS:
                    timing = timing_of(headers, None, None)
                    break
        if timing is None:
            _plain_produce(self, topic, value, key, partition, callback, None, timestamp, headers)
            return None
        return self._delay(timing, callback, topic, value, key, partition, headers)

    def poll(self, timeout: float = -1) -> int:
        """As confluent_kafka's; of delayed messages, too."""
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
        """Wait until all is delivered or stored, and reported; returns how many of both are not."""
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
        """As confluent_kafka's; a delayed message is in flight while it is being stored."""
        super().purge(in_queue, in_flight, blocking)
        self._outbox.purge(in_queue=in_queue, in_flight=in_flight)

    def close(self) -> bool:
        """Flush, without a time limit, and close; the client given stays open."""
        if not self._outbox.is_closed:
            self.flush()
            self._outbox.close()
        return super().close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_outbox" in self.__dict__:  # else its making failed
            self._outbox.close()

    def begin_transaction(self) -> None:
        """As confluent_kafka's. What is delayed takes no part in it and is refused meanwhile."""
        super().begin_transaction()
        self._is_in_transaction = True

    def commit_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As confluent_kafka's."""
        super().commit_transaction(*args, **kwargs)
        self._is_in_transaction = False

    def abort_transaction(self, *args: Any, **kwargs: Any) -> None:
        """As confluent_kafka's."""
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
        if self._is_in_transaction:
            raise MessageError("in_transaction", "delay", "produce it before or after it")
        if not isinstance(topic, str):
            raise TypeError(f"topic: must be str, not {type(topic).__name__}")
        client = self._client = self._client or client_of_settings()
        accepted = client.accept(
            Message(
                destination("kafka", broker_of(client, "kafka", self._broker), topic),
                value,
                delay=timing.delay,
                at=timing.at,
                id=timing.id,
                key=key,
                headers=without_instructions(headers),
                properties={} if partition == ANY_PARTITION else {"partition": partition},
            )
        )
        given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        called = callback or self._default_callback
        produced = Produced(topic, value, key, partition, given, called, self._only_error)
        self._outbox.put(client, accepted, produced)
        return accepted.id

    def _serve(self) -> int:
        """Report what is stored to whoever asked for it; how many."""
        served = 0
        for _ in range(self._outbox.reported):  # those of now: a callback may produce more
            if (report := self._outbox.take_report()) is not None:
                served += 1
                report.serve()
        return served


def _until(timeout_s: float) -> float:
    return float("inf") if timeout_s < 0 else time.monotonic() + timeout_s

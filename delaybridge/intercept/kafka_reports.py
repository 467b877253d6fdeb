"""The contents of a confluent_kafka producer's outbox: its bounds, messages and their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka import Message as KafkaMessage

from delaybridge.accept.accept import Accepted
from delaybridge.store.messages.scheduling import Patience

# The store recognizes a repeated call for ten minutes. Sent again later, it could undo a cancel.
MOST_TIMEOUT_S = 600.0
NO_TIMESTAMP = (0, -1)

Callback = Callable[[KafkaError | None, Any], Any]


class Bounds(NamedTuple):
    """Bounds that a producer's configuration sets, for librdkafka's queue and for the outbox."""

    messages: int = 100_000
    kbytes: int = 1_048_576
    timeout_s: float = 300.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read them from a configuration that librdkafka has accepted."""
        timeout_ms = 300_000
        for name, value in config.items():  # two names of one setting: the last one counts
            if name in ("message.timeout.ms", "delivery.timeout.ms"):
                timeout_ms = int(value)
        return cls(
            int(config.get("queue.buffering.max.messages", 100_000)),
            int(config.get("queue.buffering.max.kbytes", 1_048_576)),
            min(timeout_ms / 1000 or MOST_TIMEOUT_S, MOST_TIMEOUT_S),
        )


class Produced(NamedTuple):
    """The arguments of one `produce`, for its report."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None
    partition: int
    headers: list[tuple[str, Any]]
    callback: Callback | None
    only_error: bool

    def message(self, error: KafkaError | None, latency_s: float) -> KafkaMessage:
        """The message of a report, as librdkafka's reports have it, with its headers."""
        return KafkaMessage(
            topic=self.topic,
            value=_bytes(self.value),
            key=_bytes(self.key),
            headers=[(name, _bytes(value)) for name, value in self.headers],
            partition=self.partition,
            error=error,
            timestamp=NO_TIMESTAMP,
            latency=latency_s,
        )


class Waiting(NamedTuple):
    """One message that is not stored yet. since_s: of its `produce`, on the monotonic clock.

    patience: once its id was in flight. in_doubt: an earlier call may have stored it.
    """

    accepted: Accepted
    stamp: bytes
    since_s: float
    produced: Produced
    patience: Patience | None = None
    in_doubt: bool = False

    def call(self, now_s: float) -> tuple[bytes, Accepted]:
        """Its part of a call to the store: a delay counts from `produce`, so less of it is left."""
        accepted, waited_ms = self.accepted, int((now_s - self.since_s) * 1000)
        if accepted.when[0] == "+" and waited_ms:
            left_ms = max(0, int(accepted.when) - waited_ms)
            accepted = msgspec.structs.replace(accepted, when=f"+{left_ms}")
        return self.stamp, accepted


class Report(NamedTuple):
    """The outcome of one message; error None: it is stored."""

    waiting: Waiting
    error: KafkaError | None
    at_s: float

    def serve(self) -> None:
        """Call `on_delivery` of the message."""
        produced = self.waiting.produced
        if produced.callback is not None:
            latency_s = self.at_s - self.waiting.since_s
            produced.callback(self.error, produced.message(self.error, latency_s))


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text

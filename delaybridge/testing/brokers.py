"""Brokers in memory: they note what was delivered, and refuse what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from delaybridge.accept.destination import unknown_broker
from delaybridge.errors import MessageError
from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Fault, Outcome, Verdict
from delaybridge.publish.memory import MemoryPublisher
from delaybridge.store.namespace.rules import covers, place_of
from delaybridge.store.protocol.stored import headers_and_properties

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredMessage:
    """A message that a broker has. due: when it was to be delivered; at: when it was.

    headers: pairs, as `client.get` shows them. attempt: 1 if it was not tried before.
    """

    destination: str
    body: bytes | None
    id: str
    due: datetime
    at: datetime
    headers: list[tuple[str, Any]] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    key: bytes | None = None
    attempt: int = 1


class Arrivals:
    """What all brokers of a bridge have, in order, and which deliveries they are to refuse."""

    def __init__(self, kinds: Mapping[str, str], now_ms: Callable[[], int]) -> None:
        self.kinds, self._now_ms = kinds, now_ms
        self.all: list[DeliveredMessage] = []
        self._failures: dict[str, tuple[int | None, Outcome]] = {}  # place -> how many more

    def place(self, place: str) -> str:
        """The place as rules name it; MessageError if it cannot be one, or names no broker."""
        found = place_of(place, self.kinds)
        if found.partition(":")[0] not in self.kinds:
            what = unknown_broker(found, self.kinds)
            raise MessageError("unknown_destination", "destination", what)
        return found

    def at(self, place: str) -> list[DeliveredMessage]:
        """Those that arrived at a place, as `place` returns it."""
        return [each for each in self.all if covers(place, each.destination, self.kinds)]

    def fail(self, place: str, times: int | None, error: str) -> None:
        """Refuse that many deliveries to the place; None: all from now on; 0: none any more."""
        if times is not None and times < 0:
            raise ValueError(f"times: {times}; give 0 or more, or None for all")
        outcome = Outcome(Verdict.REFUSED, str(error), Fault.MESSAGE, answered=True)
        self._failures[self.place(place)] = times, outcome

    def answer_to(self, delivery: Delivery) -> Outcome:
        """A broker is handed this: note it, unless it is to be refused."""
        destination = str(delivery.destination)
        for place, (left, outcome) in self._failures.items():
            if left != 0 and covers(place, destination, self.kinds):
                self._failures[place] = left and left - 1, outcome
                return outcome
        record = delivery.record
        headers, properties = headers_and_properties(record)
        self.note(
            destination, record.body, id=delivery.given_id, due_ms=delivery.due_ms, key=record.key,
            attempt=delivery.attempt, headers=headers, properties=properties,
        )  # fmt: skip
        return CONFIRMED

    def publish(
        self, broker: str, exchange: str, routing_key: str, body: bytes, properties: Any
    ) -> None:
        """A client library has published this itself. properties: as pika has them."""
        about = {name: value for name, value in vars(properties).items() if value is not None}
        self.note(
            str(Destination(broker, "rabbitmq", exchange, routing_key)), body,
            id=about.get("message_id", ""), due_ms=self._now_ms(),
            headers=[*about.pop("headers", {}).items()], properties=about,
        )  # fmt: skip

    def note(self, destination: str, body: bytes | None, *, due_ms: int, **about: Any) -> None:
        """A broker has this now."""
        due, at = time_of(due_ms), time_of(self._now_ms())
        self.all.append(
            DeliveredMessage(destination=destination, body=body, due=due, at=at, **about)
        )


class NotingPublisher(MemoryPublisher):
    """The publisher of one broker. arrivals: of the whole bridge."""

    arrivals: Arrivals

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Note them, or refuse them."""
        if self.unavailable is None:
            self.next_outcomes.extend(map(self.arrivals.answer_to, deliveries))
        super().publish(deliveries)


def time_of(ms: int) -> datetime:
    """An instant of the bridge's clock."""
    return _EPOCH + timedelta(milliseconds=ms)

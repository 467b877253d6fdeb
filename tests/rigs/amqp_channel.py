"""One channel to RabbitMQ: the side that publishes, and a broker that settles when a test says so.

A real broker cannot be told when to ack, nack, return and close.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import Outcome
from delaybridge.publish.rabbitmq.channel import ExchangeLine


def delivery(id: str, body: bytes = b"body", key: str = "key", **record: Any) -> Delivery:
    """A delivery to exchange `x`."""
    destination = Destination("rabbitmq", "rabbitmq", "x", key)
    return Delivery(id, Record(str(destination), body, **record), destination, 1_800_000_000_000, 1)


class OutcomeRecorder:
    """Records outcomes; each delivery must be reported once."""

    def __init__(self) -> None:
        self.outcomes: dict[Delivery, Outcome] = {}

    def add(self, deliveries: Iterable[Delivery], outcome: Outcome) -> None:
        """In the place of `Reports.add`."""
        for one in deliveries:
            assert one not in self.outcomes, f"{one.id}: reported twice"
            self.outcomes[one] = outcome


class Channel:
    """A line, and the broker's side of it: tags and their deliveries."""

    def __init__(self) -> None:
        self.recorder = OutcomeRecorder()
        self.line = ExchangeLine(self.recorder)  # type: ignore[arg-type]
        self.tags: list[Delivery] = []
        self.settled: set[int] = set()
        self.returned: set[Delivery] = set()
        self.acked: set[Delivery] = set()
        self.nacked: set[Delivery] = set()
        self.written: list[Delivery] = []

    def unsettled(self) -> list[int]:
        return [tag for tag in range(1, len(self.tags) + 1) if tag not in self.settled]

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over, and write what may be written."""
        self.line.add(deliveries)
        self.pump()

    def pump(self) -> None:
        """Write what may be written now."""
        while batch := self.line.next_batch():
            self.line.wrote(batch, 0.0)
            self.tags += batch
            self.written += batch
            outstanding = [self.tags[tag - 1].id for tag in self.unsettled()]
            assert len(outstanding) == len(set(outstanding)), "one id twice on a channel"

    def settle(self, tag: int, multiple: bool, is_ack: bool) -> None:
        for one in self.unsettled() if tag <= len(self.tags) else []:  # else it was never written
            if one == tag or (multiple and (one <= tag or tag == 0)):
                self.settled.add(one)
                (self.acked if is_ack else self.nacked).add(self.tags[one - 1])
        self.line.settle(tag, multiple, confirmed=is_ack)
        self.pump()

    def give_back(self, tag: int) -> None:
        """The broker returns; its ack comes later."""
        self.returned.add(self.tags[tag - 1])
        self.line.returned(self.tags[tag - 1].id, "312 NO_ROUTE")

    def end(self) -> None:
        """The channel is gone; the next one counts from 1."""
        self.tags, self.settled = [], set()
        self.pump()

    def reason(self, one: Delivery) -> str:
        return self.recorder.outcomes[one].reason.split(":")[0]

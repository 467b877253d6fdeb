"""One channel of a consumer: the messages it delivered, and which of them to acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from pika.channel import Channel

from delaybridge.ingest.rabbitmq.connection import Deliveries, IntakeConnection, size_of
from delaybridge.ingest.rabbitmq.messages import Immediate, RawMessage
from delaybridge.message import Delivery


class Tags:
    """Which delivery tags of a channel are done, and not acknowledged yet."""

    def __init__(self) -> None:
        self._done: list[int] = []

    def done(self, tag: int) -> None:
        """The message with this tag is stored or published."""
        self._done.append(tag)

    def take(self, first: int | None, most: int) -> tuple[int, list[int]]:
        """(Acknowledge all up to this tag, or none if 0; acknowledge each of these).

        first: the lowest tag that is not done, if any. Tags after it wait for it, unless they are
        as many as `most`. No tag is returned twice: the broker would close the channel.
        """
        after = [] if first is None else [tag for tag in self._done if tag > first]
        upto = max((tag for tag in self._done if first is None or tag < first), default=0)
        self._done = after if len(after) < most else []
        return upto, [] if self._done else sorted(after)


class HeldMessage(msgspec.Struct, gc=False):
    """A message that was delivered and is not acknowledged.

    id: its own, or the one that it was given. entry: its `Entry`; None: it is published at once.
    since_s: when its id was first found in flight.
    """

    message: RawMessage
    stamp: bytes
    id: str
    entry: Any
    since_s: float = 0.0

    @property
    def origin(self) -> None:
        """No bucket remembers what it has read of a queue."""

    @property
    def blocks(self) -> bool:
        """Whether nothing may be stored before it."""
        return False


class ImmediateDelivery(Delivery):
    """A message without a delay, published at once. intake, channel, held: where it came from."""

    __slots__ = ("channel", "held", "intake")

    def __init__(
        self, immediate: Immediate, now_ms: int, intake: Any, channel: IntakeChannel,
        held: HeldMessage,
    ) -> None:  # fmt: skip
        super().__init__(*immediate, now_ms, 1)
        self.intake, self.channel, self.held = intake, channel, held


class IntakeChannel:
    """One channel of a consumer: the messages it delivered, which are done, and why it ended."""

    def __init__(self, connection: IntakeConnection, channel: Channel, most: int) -> None:
        """most: as `Tags.take` has it. held: messages taken, by tag, in their order."""
        self._connection, self.number = connection, int(channel.channel_number)
        self._most = most
        self.arrived = asyncio.Event()
        self.deliveries = Deliveries(self.arrived.set)
        self._tags = Tags()
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.held: dict[int, HeldMessage] = {}
        self.moved = asyncio.Event()  # fewer are held than before
        connection.take_deliveries(self.number, self.deliveries)
        channel.add_on_close_callback(lambda _, reason: self.end(reason))
        channel.add_on_cancel_callback(
            lambda _: self.end(ConnectionError("cancelled by the broker: the queue is gone"))
        )

    @property
    def in_hand(self) -> int:
        """Messages taken and not acknowledged; 0 once the channel has ended."""
        return 0 if self.ended.done() else len(self.held)

    def end(self, reason: Exception) -> None:
        """Deliver nothing more, and acknowledge nothing more."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        self._connection.take_deliveries(self.number, None)
        self._connection.release(self.deliveries.size)
        self.deliveries.messages.clear()
        self.arrived.set()
        self.moved.set()

    def take(self, most: int) -> list[RawMessage]:
        """The next messages; to be put into `held`."""
        taken = self.deliveries.messages[:most]
        del self.deliveries.messages[:most]
        return taken

    def done(self, messages: Sequence[HeldMessage]) -> None:
        """These messages are stored or published."""
        if self.ended.done():
            return
        size = 0
        for held in messages:
            message = held.message
            size += size_of(message)
            self._tags.done(message.tag)
            del self.held[message.tag]
        self.deliveries.size -= size
        self._connection.release(size)
        self.moved.set()

    def ack(self, *, at_once: bool = False) -> None:
        """Acknowledge the messages that are stored or published.

        at_once: also those after one that is not, as it may wait for long.
        """
        if self.ended.done() or not self._connection.is_open:
            return
        first = next(iter(self.held), None)  # tags ascend
        upto, single = self._tags.take(first, 1 if at_once else self._most)
        if upto:
            self._connection.ack(self.number, upto, multiple=True)
        for tag in single:
            self._connection.ack(self.number, tag, multiple=False)

"""One channel of a consumer: the messages it delivered, and which of them to acknowledge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pika.channel import Channel
from pika.exceptions import AMQPError

from delaybridge.ingest.rabbitmq.connection import OVERHEAD, Deliveries, IntakeConnection, size_of
from delaybridge.ingest.rabbitmq.messages import Immediate, RawMessage
from delaybridge.message import Delivery


class Tags:
    """Which delivery tags of a channel are done, and not acknowledged yet."""

    def __init__(self) -> None:
        self._done: list[int] = []

    def done(self, tags: Iterable[int]) -> None:
        """The messages with these tags are stored or published."""
        self._done += tags

    def take_tags(self, first: int | None, most: int) -> tuple[int, list[int]]:
        """Take the tags that are done: (all up to this one, or none if 0; and each of these).

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

    def __init__(
        self, connection: IntakeConnection, channel: Channel, queues: Sequence[str], prefetch: int
    ) -> None:
        """prefetch: messages of a queue that may be delivered and not acknowledged.

        held: messages taken, by tag, in their order.
        """
        self._connection, self.number = connection, int(channel.channel_number)
        self._channel, self._queues, self.prefetch = channel, queues, prefetch
        self._consumers: list[str] = []
        self._asking = asyncio.Lock()
        self._aside = 0  # bytes
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
        self._release_all()
        self.ended.set_result(reason)
        self._connection.take_deliveries(self.number, None)

    def drop_all(self) -> None:
        """Forget what is held and what arrives, until `consume` has returned it to the queues.

        Nothing of it may be on its way into the store or to its target.
        """
        self.ack(at_once=True)
        dropped = [*(each.message for each in self.held.values()), *self.deliveries.messages]
        self.deliveries.are_dropped = True
        self.deliveries.returned = len(dropped)
        self.deliveries.largest = max(map(size_of, dropped), default=0)
        self.held.clear()
        self._release_all()

    def _release_all(self) -> None:
        self._connection.release(self.deliveries.size)
        self.deliveries.size = 0
        self.deliveries.messages.clear()
        self.set_aside(0)

    async def consume(self, prefetch: int) -> None:
        """Ask for the queues' messages; also if they were asked for before.

        prefetch: or fewer, while messages come again that were returned: what is delivered must fit
        into the channel's share, whichever come first. If it does not, none can be returned.
        """
        ask, opened = self._connection.call, self._channel
        with contextlib.suppress(AMQPError):  # it has ended the channel
            async with self._asking:
                for consumer in self._consumers:
                    await ask(opened, "basic_cancel", consumer_tag=consumer)
                if self.deliveries.are_dropped:
                    self._connection.return_all(self.number)
                    self.deliveries.are_dropped = False
                if self.deliveries.returned:
                    prefetch = max(min(prefetch, self._share // self.deliveries.largest), 1)
                self.prefetch = prefetch
                await ask(opened, "basic_qos", prefetch_count=prefetch)
                self._consumers = [
                    (
                        await ask(opened, "basic_consume", queue=queue, on_message_callback=_never)
                    ).consumer_tag
                    for queue in self._queues
                ]

    def set_aside(self, size: int) -> None:
        """So many bytes of what is held are set aside now."""
        if not self.ended.done():
            self._connection.aside_bytes += size - self._aside
            self._aside = size
            self._connection.release(0)
        self.arrived.set()
        self.moved.set()

    @property
    def is_full(self) -> bool:
        """Whether so much is set aside that it must take no more: others need the window, too."""
        return self._aside > self._connection.share(self._aside)

    @property
    def may_return(self) -> bool:
        """Whether all that was returned has come again: what is returned now goes behind that."""
        return self.prefetch > 1 and not self.deliveries.returned

    @property
    def _share(self) -> int:
        """Bytes of each queue that may be set aside."""
        return self._connection.share(self._aside) // len(self._queues)

    def take_messages(self, most: int) -> list[RawMessage]:
        """Take the next messages; the caller puts them into `held`."""
        taken = self.deliveries.messages[:most]
        del self.deliveries.messages[:most]
        self.deliveries.returned = max(self.deliveries.returned - len(taken), 0)
        return taken

    def done(self, messages: Sequence[HeldMessage]) -> None:
        """These messages are stored or published."""
        if self.ended.done():
            return
        size, held_here = 0, self.held
        for held in messages:
            message = held.message
            size += len(message.header) + len(message.body) + OVERHEAD  # `size_of`
            del held_here[message.tag]
        self._tags.done([held.message.tag for held in messages])
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
        upto, single = self._tags.take_tags(first, 1 if at_once else self.prefetch // 2)
        if upto:
            self._connection.ack(self.number, upto, multiple=True)
        for tag in single:
            self._connection.ack(self.number, tag, multiple=False)


def _never(*_: object) -> None:
    """Deliveries are taken before pika sees them."""

"""One exchange's channel: opened when it is first needed, and again after the broker closed it.

`Openings` opens channels a few at a time, those of exchanges that work before all others. An
opening costs broker and worker about a millisecond: thousands at once, each for an exchange that
does not exist, would hold up the confirms of every other exchange of the connection for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Protocol

from pika.channel import Channel

from delaybridge.amqp.connection import WireConnection, close_channel, close_code, reason_of
from delaybridge.amqp.frames import Encoder
from delaybridge.errors import DETAIL_LIMIT, printable
from delaybridge.message import Delivery
from delaybridge.publish import Fault, Outcome, Verdict
from delaybridge.publish.link import Reports, broker_refusal
from delaybridge.publish.rabbitmq.channel import ExchangeLine, refusal

AT_ONCE = 6  # openings under way
PACE_S = 0.01  # after which one more is begun: a broker that is far away takes long to answer
AT_MOST = 256
MAX_CHANNELS = 1000  # that are open; a broker allows 2047 by default
_OTHERS_TURN = 4  # each fourth opening is for an exchange that was refused before
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts a task; what it raises ends the connection."""


class Opener(Protocol):
    """An exchange that needs a channel.

    was_refused: the broker refused its last opening. is_idle: it has no message. proved_s: when
    its last confirm came (loop time).
    """

    was_refused: bool
    proved_s: float

    @property
    def is_idle(self) -> bool: ...

    async def open_channel(self) -> None:
        """Open it; raises nothing but CancelledError."""

    def release(self) -> None:
        """Close the channel: another exchange needs one."""


class Openings:
    """The exchanges of one publisher whose channel is open, is being opened, or is to be opened.

    open: those that have a channel; they enter and leave it by themselves. most: how many may have
    one, if the connection allows fewer than MAX_CHANNELS.
    """

    def __init__(self, spawn: Spawn) -> None:
        self.open: dict[Opener, None] = {}
        self.most = MAX_CHANNELS
        self._spawn = spawn
        self._waiting: tuple[dict[Opener, None], dict[Opener, None]] = {}, {}  # the refused last
        self._under_way: dict[Opener, asyncio.Task[None]] = {}
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None  # set while some wait

    def is_planned(self, exchange: Opener) -> bool:
        """Whether its channel is being opened, or is to be."""
        return exchange in self._under_way or any(exchange in each for each in self._waiting)

    def plan(self, exchange: Opener) -> None:
        """Open its channel when its turn comes."""
        if not self.is_planned(exchange):
            self._waiting[exchange.was_refused][exchange] = None
            self._start()

    def drop(self, exchange: Opener) -> None:
        """Open no channel for it: its connection is lost."""
        for each in self._waiting:
            each.pop(exchange, None)
        if (task := self._under_way.pop(exchange, None)) is not None:
            task.cancel()

    def _start(self, at_once: int = AT_ONCE) -> None:
        while len(self._under_way) < at_once and any(self._waiting):
            if len(self.open) + len(self._under_way) >= min(self.most, MAX_CHANNELS):
                self._release()
            exchange = self._next()
            self._under_way[exchange] = self._spawn(self._open(exchange))
        if any(self._waiting) and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._start_one_more)

    def _start_one_more(self) -> None:
        self._timer = None
        self._start(min(len(self._under_way) + 1, AT_MOST))

    async def _open(self, exchange: Opener) -> None:
        try:
            await exchange.open_channel()
        finally:
            if self._under_way.get(exchange) is asyncio.current_task():
                del self._under_way[exchange]
            self._start()

    def _next(self) -> Opener:
        """The one that has waited longest of the healthy and new ones, or of the others."""
        self._turn += 1
        first, others = self._waiting
        is_their_turn = not first or not self._turn % _OTHERS_TURN
        queue = others if others and is_their_turn else first
        exchange = next(iter(queue))
        del queue[exchange]
        return exchange

    def _release(self) -> None:
        """Close the idle channels that have had no confirm for longest."""
        idle = sorted((each for each in self.open if each.is_idle), key=attrgetter("proved_s"))
        for exchange in idle[: max(1, min(self.most, MAX_CHANNELS) // 10)]:
            exchange.release()


ANSWER_TIMEOUT_S = 10.0  # for a channel to open; then the connection is given up
PROOF_TTL_S = 30.0  # without a confirm for longer, the exchange may have been deleted
MISSING_TTL_S = 1.0  # how long an exchange counts as missing before the broker is asked again


class ExchangeChannel:
    """Publishes the deliveries of one exchange, over one connection after the other.

    Before the first publish it asks the broker whether the exchange exists. The answer holds as
    long as confirms come; after 30 s without one the next message goes alone, as a probe.

    proved_s: when the last confirm came (loop time). was_refused: the broker refused to open the
    channel when it was asked last.
    """

    def __init__(
        self, name: str, reports: Reports, login: bytes, arm: Callable[[], None], openings: Openings
    ) -> None:
        self.name = name
        self.proved_s = 0.0
        self.was_refused = False
        self.line = ExchangeLine(reports)
        self._reports = reports
        self._login = login
        self._arm = arm  # starts the timer that calls `expire`
        self._connection: WireConnection | None = None
        self._channel: Channel | None = None
        self._encoder: Encoder | None = None
        self._openings = openings
        self._refusal: tuple[float, Outcome] | None = None  # until when, what

    @property
    def is_unused(self) -> bool:
        """Whether it has no channel and nothing to do."""
        return self._channel is None and self.is_idle and not self._openings.is_planned(self)

    @property
    def is_idle(self) -> bool:
        """Whether every delivery has its outcome."""
        return self.line.is_idle

    # on the way out

    def publish(self, deliveries: Sequence[Delivery], connection: WireConnection) -> None:
        """Write them after those that wait already, as soon as the channel is open."""
        self._connection = connection
        now_s = asyncio.get_running_loop().time()
        if self._refusal is not None:
            until_s, outcome = self._refusal
            if now_s < until_s:
                self.line.add(deliveries)
                self.line.refuse_waiting(outcome)
                return
            self._refusal = None
        if self._channel is not None and now_s - self.proved_s > PROOF_TTL_S:
            self.line.be_careful()
        self._write(deliveries)

    def _write(self, more: Sequence[Delivery] = ()) -> None:
        """Write what may go now. more: queued behind those that wait already."""
        self.line.add(more)
        connection, encoder = self._connection, self._encoder
        if connection is None or not connection.is_open:
            return  # `connection_lost` follows
        if encoder is None:
            self._openings.plan(self)
            return
        now_s = asyncio.get_running_loop().time()
        while batch := self.line.next_batch():
            written, frames = self._encoded(batch, encoder)
            self.line.wrote(written, now_s)
            try:
                connection.write(frames)
            except Exception as exc:
                connection.abort(f"write failed: {reason_of(exc)}")
                break
        self._arm()

    def _encoded(
        self, batch: Sequence[Delivery], encoder: Encoder
    ) -> tuple[list[Delivery], list[bytes]]:
        written, frames = [], []
        for delivery in batch:
            try:
                frames.append(encoder.frames(delivery))
            except Exception as exc:
                # Only this one is bad: it was not written, the others are.
                reason = str(exc) if type(exc) is ValueError else f"unencodable: {reason_of(exc)}"
                self._reports.add([delivery], Outcome(Verdict.REFUSED, reason))
            else:
                written.append(delivery)
        return written, frames

    # the channel

    async def open_channel(self) -> None:
        """Open the channel, and write what waits for it; or refuse that."""
        connection = self._connection
        if connection is None or not connection.is_open:
            return  # `connection_lost` follows
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                channel = await self._prepared(connection)
        except TimeoutError:
            if not connection.is_blocked:
                connection.abort(f"no answer within {ANSWER_TIMEOUT_S:g} s")
        except Exception as exc:
            self._not_opened(exc)
        else:
            self._opened(connection, channel)
        if self._channel is not None:
            self._write()

    async def _prepared(self, connection: WireConnection) -> Channel:
        """A channel in confirm mode, once the exchange is seen to exist. Raises if that fails."""
        channel = await connection.open_channel(self._on_closed)
        try:
            if self.name:
                await connection.look_up(channel, self.name)
            await connection.select_confirms(channel)
        except BaseException:
            close_channel(channel)
            raise
        return channel

    def _opened(self, connection: WireConnection, channel: Channel) -> None:
        number = int(channel.channel_number)
        self._channel, self.was_refused = channel, False
        self.line.channel_opened()
        self._openings.open[self] = None
        self._encoder = Encoder(number, connection.params.frame_max, self._login)
        self.proved_s = asyncio.get_running_loop().time()
        connection.listen(number, self)

    def _not_opened(self, reason: Exception) -> None:
        if (closed := close_code(reason)) is not None:
            outcome = refusal(*closed) or _refused_destination(reason)
        elif self._connection is not None and self._connection.is_open:
            outcome = _refused_destination(reason)  # no channel number is free
        else:
            return  # `connection_lost` follows
        self.was_refused = True
        self._refuse(outcome)

    def _refuse(self, outcome: Outcome) -> None:
        until_s = asyncio.get_running_loop().time() + MISSING_TTL_S
        self._refusal = (until_s, outcome)
        self.line.refuse_waiting(outcome)

    def _on_closed(self, channel: Channel, reason: Exception) -> None:
        if channel is not self._channel:
            return  # it never opened, or was dropped
        self._drop_channel()
        if (closed := close_code(reason)) is None:
            return  # `connection_lost` follows
        outcome = self.line.closed_by_broker(*closed)
        if outcome.fault is Fault.DESTINATION:
            self._refuse(Outcome(Verdict.REFUSED, outcome.reason, outcome.fault))
        elif self.line.has_waiting:
            self._write()

    def _drop_channel(self) -> None:
        if self._channel is not None and self._connection is not None:
            self._connection.listen(self._channel.channel_number, None)
        self._channel = self._encoder = None
        self._openings.open.pop(self, None)

    def release(self) -> None:
        """Close the channel, which has nothing to do: another exchange needs one."""
        if (channel := self._channel) is not None:
            self._drop_channel()
            close_channel(channel)

    # the broker's answers

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """The broker settled message number `tag`, or everything up to it (`multiple`)."""
        self.proved_s = asyncio.get_running_loop().time()
        if self.line.settle(tag, multiple, confirmed=is_ack):
            self._write()

    def on_return(self, id: str, reason: str) -> None:
        """The broker gave back the message with this `delaybridge-id`."""
        self.line.returned(id, reason)

    # answers that do not come

    def expire(self, before_s: float, outcome: Outcome) -> float | None:
        """Give up everything if the oldest unconfirmed message was written before `before_s`.

        Returns when the oldest one left was written, None if none is left. The channel is closed
        with all that is on it, so that a late ack confirms nothing.
        """
        oldest_s = self.line.oldest_s()
        if oldest_s is None or oldest_s > before_s:
            return oldest_s
        channel, connection = self._channel, self._connection
        self._drop_channel()
        self.line.lost(outcome)
        if channel is not None and connection is not None and connection.is_open:
            close_channel(channel)
            # Even with nothing to write: this tells a slow broker from one that is gone.
            self._openings.plan(self)
        return None

    def connection_lost(self, outcome: Outcome, *, is_suspicious: bool) -> None:
        """Unconfirmed deliveries end in `outcome`; waiting ones are refused with its reason."""
        self._drop_channel()
        self._connection = None
        self._openings.drop(self)
        self.line.lost(outcome, is_suspicious=is_suspicious)
        self.refuse_waiting(outcome.reason)

    def refuse_waiting(self, reason: str) -> None:
        """Refuse the deliveries that were never written: the broker is at fault."""
        self.line.refuse_waiting(broker_refusal(reason))


def _refused_destination(reason: Exception) -> Outcome:
    shown = printable(reason_of(reason))[:DETAIL_LIMIT]
    return Outcome(Verdict.REFUSED, f"no_channel: {shown}", Fault.DESTINATION)

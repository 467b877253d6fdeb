"""Channels that the front closes because it refuses a method of the client's.

The broker is asked to close the channel, and its close-ok becomes the close that the client gets:
so all that the broker has sent on it before comes before. What the client sends on it meanwhile is
dropped, as a broker drops it.
"""

from __future__ import annotations

from delaybridge.amqp.walker import Method
from delaybridge.front import methods
from delaybridge.front.counts import ShownConnection
from delaybridge.front.link import Refused
from delaybridge.front.sides import Side

_NOTHING = b""


class Channels:
    """The channels of one connection. muted: what the client sends on these is dropped.

    What it sends on one that the broker has closed, before it has heard of that, passes as it is:
    the broker answers nothing there.
    """

    __slots__ = ("_broker", "_client", "_closing", "_ended", "_shown", "muted")

    def __init__(self, client: Side, broker: Side, shown: ShownConnection) -> None:
        self._client, self._broker, self._shown = client, broker, shown
        self._closing: dict[int, bytes] = {}  # channel -> what the client gets in the end
        self._ended: set[int] = set()  # by the broker, and the client has not said that it knows
        self.muted: set[int] = set()

    def refuse(self, method: Method, refusal: Refused) -> None:
        """Close the channel of this method."""
        channel = method.channel
        close = methods.close(channel, refusal.code, refusal.text, method.id)
        self._closing[channel] = close
        self.muted.add(channel)
        self._broker.write(methods.close(channel, 200, "refused by the front"))

    def from_client(self, method: Method) -> bytes | None:
        """What the broker gets of a method on such a channel; None: the channel is another."""
        channel, muted = method.channel, self.muted
        if channel in self._ended and channel not in muted:
            if method.id in (methods.CHANNEL_OPEN, methods.CHANNEL_CLOSE_OK):
                self._ended.discard(channel)
            self._count(method, is_ended=True)
            return method.frame
        if channel not in muted:
            self._count(method)
            return None
        if method.id == methods.CHANNEL_OPEN:  # it has heard of the close before
            muted.discard(channel)
            self._count(method)
            return method.frame
        if method.id == methods.CHANNEL_CLOSE_OK:
            muted.discard(channel)
        elif method.id == methods.CHANNEL_CLOSE:  # both close it at the same time
            answer = methods.frame(channel, methods.CHANNEL_CLOSE_OK, b"")
            if channel in self._closing:
                self._closing[channel] = answer
            else:
                self._broker.inject(answer)
        return _NOTHING

    def from_broker(self, method: Method) -> bytes:
        """What the client gets of a channel.close or close-ok."""
        channel = method.channel
        if method.id == methods.CHANNEL_CLOSE_OK:
            if channel not in self._closing:
                return method.frame
            self._shown.channels -= 1
            return self._closing.pop(channel)
        if channel in self._closing:  # both close it at the same time: the close-ok follows
            self._client.inject(methods.frame(channel, methods.CHANNEL_CLOSE_OK, b""))
            return _NOTHING
        self._shown.channels -= 1
        self._ended.add(channel)
        return method.frame

    def _count(self, method: Method, is_ended: bool = False) -> None:
        if method.id == methods.CHANNEL_OPEN:
            self._shown.channels += 1
        elif method.id == methods.CHANNEL_CLOSE and not is_ended:
            self._shown.channels -= 1

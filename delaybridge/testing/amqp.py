"""A RabbitMQ that takes whatever is published at once, so that no client library needs a real one.

It opens connections and channels, agrees to every declaration, confirms and notes each message, and
never delivers any.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from pika import frame, spec

_FEATURES = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")
_PROPERTIES = {"product": "delaybridge.testing", "capabilities": dict.fromkeys(_FEATURES, True)}
_numbers = count(1)

Note = Callable[[str, str, bytes, spec.BasicProperties], None]


async def listen(note: Note) -> tuple[Callable[[], None], str]:
    """Listen on the running loop: what ends it and its connections, and the URL.

    note: called with exchange, routing key, body and properties of each message.
    """
    loop = asyncio.get_running_loop()
    opened = WeakSet[asyncio.Transport]()
    server = await loop.create_server(lambda: _Connection(note, opened), "127.0.0.1", 0)

    def close() -> None:
        server.close()
        for transport in [*opened]:
            transport.abort()

    return close, f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class _Connection(asyncio.Protocol):
    def __init__(self, note: Note, opened: WeakSet[asyncio.Transport]) -> None:
        self._note, self._opened, self._data = note, opened, b""
        self._channels = defaultdict[int, Any](SimpleNamespace)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._opened.add(transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (found := frame.decode_frame(self._data))[1] is not None:
            size, read = found
            self._data = self._data[size:]
            number = getattr(read, "channel_number", 0)
            if (answer := self._answer(read, self._channels[number])) is not None:
                self._transport.write(frame.Method(number, answer).marshal())

    def _answer(self, read: Any, channel: Any) -> Any:
        if isinstance(read, frame.ProtocolHeader):
            return spec.Connection.Start(server_properties=_PROPERTIES)
        if isinstance(read, frame.Method):
            channel.asked = read.method
            if isinstance(read.method, spec.Channel.Open | spec.Confirm.Select):
                channel.confirms, channel.tag = isinstance(read.method, spec.Confirm.Select), 0
            return _agreed(read.method)
        if isinstance(read, frame.Header):
            channel.header, channel.body = read, b""
        elif isinstance(read, frame.Body):
            channel.body += read.fragment
        if isinstance(read, frame.Heartbeat) or len(channel.body) < channel.header.body_size:
            return None
        properties, asked = channel.header.properties, channel.asked
        self._note(asked.exchange, asked.routing_key, channel.body, properties)
        channel.tag += 1
        return spec.Basic.Ack(delivery_tag=channel.tag) if channel.confirms else None


def _agreed(asked: Any) -> Any:
    """The answer that agrees to a request, if it has any: what the client named, or a new name."""
    if isinstance(asked, spec.Connection.StartOk):
        return spec.Connection.Tune(channel_max=2047, frame_max=131_072, heartbeat=0)
    if isinstance(asked, spec.Basic.Get):
        return spec.Basic.GetEmpty()
    group, _, verb = asked.NAME.partition(".")
    kind = getattr(getattr(spec, group), f"{verb}Ok", None)
    if kind is None or getattr(asked, "nowait", False):
        return None
    answer = kind()
    for name in vars(answer):
        empty = 0 if name.endswith("_count") else f"amq.gen-{next(_numbers)}"
        setattr(answer, name, getattr(asked, name, None) or empty)
    return answer

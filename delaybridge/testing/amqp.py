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

from pika import frame, spec

from delaybridge.message import Destination

_FEATURES = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")
_PROPERTIES = {"product": "delaybridge.testing", "capabilities": dict.fromkeys(_FEATURES, True)}
_FRAME_BYTES = 131_072
_numbers = count(1)

Note = Callable[[Destination, bytes, spec.BasicProperties], None]


async def listen(note: Note, broker: str) -> tuple[asyncio.Server, str]:
    """A server of that broker on the running loop, and its URL. note: called with each message."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(note, broker), "127.0.0.1", 0)
    return server, f"amqp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class _Connection(asyncio.Protocol):
    def __init__(self, note: Note, broker: str) -> None:
        self._note, self._broker = note, broker
        self._data = b""
        self._channels = defaultdict[int, Any](lambda: SimpleNamespace(tag=0, confirms=False))

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            size, read = frame.decode_frame(self._data)
            if read is None:
                return
            self._data = self._data[size:]
            if isinstance(read, frame.ProtocolHeader):
                self._send(0, spec.Connection.Start(server_properties=_PROPERTIES))
            elif not isinstance(read, frame.Heartbeat):
                self._read(read, self._channels[read.channel_number])

    def _read(self, read: Any, channel: Any) -> None:
        number = read.channel_number
        if isinstance(read, frame.Method):
            if isinstance(read.method, spec.Basic.Publish):
                channel.publish = read.method
            else:
                self._answer(number, read.method, channel)
            return
        if isinstance(read, frame.Header):
            channel.header, channel.body = read, b""
        else:
            channel.body += read.fragment
        if len(channel.body) < channel.header.body_size:
            return
        asked = channel.publish
        where = Destination(self._broker, "rabbitmq", asked.exchange, asked.routing_key)
        self._note(where, channel.body, channel.header.properties)
        if channel.confirms:
            channel.tag += 1
            self._send(number, spec.Basic.Ack(delivery_tag=channel.tag))

    def _answer(self, number: int, asked: Any, channel: Any) -> None:
        if isinstance(asked, spec.Connection.StartOk):
            tune = spec.Connection.Tune(channel_max=2047, frame_max=_FRAME_BYTES, heartbeat=0)
            self._send(0, tune)
        elif isinstance(asked, spec.Basic.Get):
            self._send(number, spec.Basic.GetEmpty())
        elif not getattr(asked, "nowait", False):
            group, _, verb = asked.NAME.partition(".")
            if (kind := getattr(getattr(spec, group), f"{verb}Ok", None)) is not None:
                self._send(number, _filled(kind(), asked))
        if isinstance(asked, spec.Channel.Close):
            del self._channels[number]
        channel.confirms |= isinstance(asked, spec.Confirm.Select)

    def _send(self, number: int, method: Any) -> None:
        self._transport.write(frame.Method(number, method).marshal())


def _filled(answer: Any, asked: Any) -> Any:
    """The answer with what the request says of its fields; an empty name is chosen here."""
    for name in vars(answer):
        is_chosen = name in ("queue", "consumer_tag")
        empty = f"amq.gen-{next(_numbers)}" if is_chosen else 0 if name.endswith("_count") else ""
        setattr(answer, name, getattr(asked, name, None) or empty)
    return answer

"""A pika connection on which publishes and confirms pass as bytes.

This is the only module that uses pika's private parts, which is why pika is pinned. pika does the
handshake, TLS, heartbeats and channels. Publishes and confirms bypass it:

- Out: a batch's frames are joined and written at once. pika's `basic_publish` costs four times the
  CPU, and its header encoder refuses floats and changes integers and byte arrays.
- In: acks, nacks and returns are read here. pika would decode a returned message's headers, and a
  time stamp beyond the year 9999 in them would end the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils.io_services_utils import _AsyncPlaintextTransport
from pika.channel import Channel
from pika.connection import Parameters
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    IncompatibleProtocolError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from delaybridge.amqp.decoding import decode_table, split_content_header
from delaybridge.amqp.frames import OWN_ID
from delaybridge.amqp.walker import BODY_ID, HEADER_ID, FrameReader, Part
from delaybridge.errors import DETAIL_LIMIT, DecodeError, PublishUnavailable, printable
from delaybridge.stranger import RABBITMQ, wrong_server

READ_BYTES = 120 * 1024  # below what malloc maps for each read, at 15 us
SILENT_S = 2.0  # then it may be no RabbitMQ
GIVE_UP_S = 5.0  # after pika should have said how a connection went
GOODBYE_S = 1.0  # that the broker has to answer
WRITE_BYTES = 128 * 1024  # at a time: pika copies whatever the socket did not take

PROXY_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"  # of PROXY protocol 2
_PROXIED = PROXY_SIGNATURE + b"\x20\x00\x00\x00"  # the sender itself connects
_ACK, _NACK, _RETURN = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78", b"\x00\x3c\x00\x32"
_CONFIRM = struct.Struct(">QB")


Connection = TypeVar("Connection", bound="WireConnection")


class Listener(Protocol):
    """Receives the confirms and returns of one channel."""

    def on_confirm(self, tag: int, multiple: bool, is_ack: bool) -> None:
        """The broker settled the publish with number `tag`, or all up to it."""

    def on_return(self, id: str, reason: str) -> None:
        """The broker gave back the message with this `delaybridge-id`."""


class WireConnection(AsyncioConnection):  # type: ignore[misc]  # pika has no types
    """One TCP connection: pika's, with publishes and confirms as bytes.

    opened: done once it is open, or failed. lost: done when the open connection ends, with the
    reason. is_blocked: the broker reads nothing, not even a method, until its alarm is over.
    """

    WATCHED = frozenset([_ACK, _NACK, _RETURN, HEADER_ID, BODY_ID])

    def __init__(self, parameters: Parameters, loop: asyncio.AbstractEventLoop) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception] = loop.create_future()
        self.is_blocked = False
        self._is_plain = False
        self._loop = loop
        self._listeners: dict[int, Listener] = {}
        self._returning: dict[int, str] = {}
        self._reader = FrameReader(self._pass_to_pika, self._take)
        super().__init__(
            parameters,
            on_open_callback=lambda _: _set(self.opened, None),
            on_open_error_callback=lambda _, error: _fail(self.opened, error),
            on_close_callback=lambda _, error: _set(self.lost, error),
            custom_ioloop=loop,
        )
        if getattr(parameters, "proxy_protocol", False):
            self._begin_with(_PROXIED)

    def _begin_with(self, data: bytes) -> None:
        """Send this first, even before TLS begins. pika connects in the loop's next turn."""
        begin = self._nbio.create_streaming_connection

        def send_and_begin(*, sock: socket.socket, **more: Any) -> Any:
            with contextlib.suppress(OSError):  # pika finds the same error
                sock.send(data)
            return begin(sock=sock, **more)

        self._nbio.create_streaming_connection = send_and_begin

    def _on_connection_workflow_done(self, made: Any) -> None:
        # If it is closed meanwhile, pika passes the class of the error, not an instance.
        super()._on_connection_workflow_done(made() if isinstance(made, type) else made)

    # channels

    def listen(self, channel: int, listener: Listener | None) -> None:
        """Send the channel's confirms to this listener from now on; None: drop them."""
        if listener is None:
            self._listeners.pop(channel, None)
        else:
            self._listeners[channel] = listener

    async def open_channel(self, on_closed: Callable[[Channel, Exception], None]) -> Channel:
        """A new channel. If it is closed before it is open, raises the reason."""
        opened: asyncio.Future[None] = self._loop.create_future()

        def closed(channel: Channel, reason: Exception) -> None:
            _fail(opened, reason)
            on_closed(channel, reason)

        channel = self.channel(on_open_callback=lambda _: _set(opened, None))
        channel.add_on_close_callback(closed)
        try:
            await opened
        except asyncio.CancelledError:
            close_channel(channel)
            raise
        return channel

    async def select_confirms(self, channel: Channel) -> None:
        """Put the channel into confirm mode."""
        await self.call(channel, "confirm_delivery", ack_nack_callback=_nothing)

    async def look_up(self, channel: Channel, exchange: str) -> None:
        """Return if the exchange exists; otherwise the broker closes the channel, which raises."""
        await self.call(channel, "exchange_declare", exchange=exchange, passive=True)

    async def call(self, channel: Channel, method: str, **arguments: Any) -> Any:
        """The broker's answer to a method of the channel.

        Raises the reason if the channel is closed instead.
        """
        answered: asyncio.Future[Any] = self._loop.create_future()
        channel.add_on_close_callback(lambda _, reason: _fail(answered, reason))
        try:
            getattr(channel, method)(callback=lambda to: _set(answered, to.method), **arguments)
        except AMQPError:
            if not answered.done():
                raise
        return await answered

    async def call_alone(self, method: str, **arguments: Any) -> Any:
        """`call` on a channel of its own, which no other call loses if the broker closes it."""
        channel = await self.open_channel(_nothing)
        try:
            return await self.call(channel, method, **arguments)
        finally:
            close_channel(channel)

    def abort(self, reason: str) -> None:
        """End the connection at once, for a broker that does not answer."""
        if not (self.is_closed or self.lost.done()):
            self._terminate_stream(AMQPError(reason))

    # publishing

    def write(self, frames: Iterable[bytes]) -> None:
        """Write encoded frames in this order."""
        gathered: list[bytes] = []
        size = 0
        for each in frames:
            gathered.append(each)
            size += len(each)
            if size >= WRITE_BYTES:
                self._output_marshaled_frames([b"".join(gathered)])
                gathered, size = [], 0
        if gathered:
            self._output_marshaled_frames([b"".join(gathered)])

    def _proto_connection_made(self, transport: Any) -> None:
        """Read and write a plain socket directly; pika handles errors and the end of the stream.

        pika writes in the loop's next turn, and reads 4 KiB at a time until the socket is empty:
        two turns and an exception for each publish that comes alone.
        """
        self._is_plain = isinstance(transport, _AsyncPlaintextTransport)
        if self._is_plain:
            self._loop.add_reader(transport._sock.fileno(), self._on_readable, transport)
        super()._proto_connection_made(transport)

    def _on_readable(self, transport: Any) -> None:
        try:
            data = transport._sock.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            transport._on_socket_readable()
            return
        try:
            self._proto_data_received(data)
        except Exception as exc:
            transport._initiate_abort(exc)

    def _adapter_emit_data(self, data: bytes) -> None:
        transport = self._transport
        was_empty = self._is_plain and transport.get_write_buffer_size() == 0
        super()._adapter_emit_data(data)
        if was_empty:
            transport._on_socket_writable()

    def _on_data_available(self, data_in: bytes) -> None:
        """Read confirms and returns here; pass everything else to pika."""
        self._reader.read(data_in, self.WATCHED)

    def _pass_to_pika(self, data: Part) -> None:
        super()._on_data_available(bytes(data))

    def _take(self, channel: int, id: bytes, data: bytes, start: int, end: int) -> None:
        self.bytes_received += end - start  # pika's heartbeat check reads it
        if id in (_ACK, _NACK):
            tag, bits = _CONFIRM.unpack_from(data, start + 11)
            if listener := self._listeners.get(channel):
                listener.on_confirm(tag, bool(bits & 1), id == _ACK)
        elif id == _RETURN:
            code = int.from_bytes(data[start + 11 : start + 13], "big")
            text = data[start + 14 : start + 14 + data[start + 13]]
            self._returning[channel] = f"{code} {text.decode(errors='replace')}"
        elif id == HEADER_ID:  # only returns have content here
            self._read_returned(channel, data[start + 7 : end - 1])

    def _read_returned(self, channel: int, payload: bytes) -> None:
        reason = self._returning.pop(channel, "")
        if listener := self._listeners.get(channel):
            id = returned_id(payload)
            if id is not None:
                listener.on_return(id, reason)


def returned_id(payload: bytes) -> str | None:
    """The delaybridge-id in a returned message's content header; None if it has none."""
    try:
        table = decode_table(split_content_header(payload).table)
    except DecodeError:
        return None
    # If the sender set one as well, ours is the last: it is appended to the sender's headers.
    ids = [value for name, value in table if name == OWN_ID and isinstance(value, str)]
    return ids[-1] if ids else None


async def open_connection(parameters: Parameters, make: Callable[..., Connection]) -> Connection:
    """An open connection; PublishUnavailable with the reason if that fails."""
    # Where the system has no descriptor left, pika raises in a callback and says nothing, for ever.
    try:
        socket.socket().close()
    except OSError as exc:
        raise PublishUnavailable(f"unreachable: {reason_of(exc)}") from exc
    connection = make(parameters, asyncio.get_running_loop())
    own_s = parameters.socket_timeout + parameters.stack_timeout  # then pika itself gives up
    try:
        async with asyncio.timeout(own_s + GIVE_UP_S):
            await asyncio.wait([connection.opened], timeout=SILENT_S)
            if not connection.opened.done():  # Redis, for one, waits for the end of a line
                await _refuse_stranger(parameters)
            await connection.opened
    except (TimeoutError, PublishUnavailable) as exc:
        connection.opened.cancel()
        with contextlib.suppress(AMQPError):
            connection.close()
        why = exc if isinstance(exc, PublishUnavailable) else "unreachable: no answer, and no error"
        raise PublishUnavailable(str(why)) from exc
    except Exception as exc:
        if isinstance(exc, IncompatibleProtocolError):
            await _refuse_stranger(parameters)
        raise PublishUnavailable(_refusal(exc, parameters)) from exc
    except asyncio.CancelledError:
        if not connection.is_closed:
            connection.close()
        raise
    return connection


async def _refuse_stranger(parameters: Parameters) -> None:
    """Raise PublishUnavailable if what answers there is known, and is no RabbitMQ."""
    at = parameters.host, parameters.port
    if not parameters.ssl_options and (why := await wrong_server(*at, RABBITMQ)):
        raise PublishUnavailable(why)


def _refusal(exc: Exception, parameters: Parameters) -> str:
    """Why the connection could not be opened."""
    if isinstance(exc, ProbableAuthenticationError):
        user = getattr(parameters.credentials, "username", "")
        return f"login_refused: the broker refused user {printable(user)}"[:DETAIL_LIMIT]
    why = reason_of(exc)
    if isinstance(exc, ProbableAccessDeniedError):  # ... (530) 'NOT_ALLOWED - vhost x not found'
        return f"vhost_refused: {why.partition(' - ')[2][:-1] or why}"
    if "Timeout while setting up" in why:  # pika's own words are long, and are cut
        why = "it takes connections, and does not answer"
    return f"unreachable: {why}"


async def close_connection(connection: WireConnection) -> None:
    """Close it, whether or not the broker answers, and though the caller is cancelled meanwhile."""
    await asyncio.shield(asyncio.ensure_future(_say_goodbye(connection)))


async def _say_goodbye(connection: WireConnection) -> None:
    try:
        if connection.is_open:
            connection.close()
            await asyncio.wait([connection.lost], timeout=GOODBYE_S)
    finally:
        connection.abort("closed")
    await asyncio.wait([connection.lost], timeout=GOODBYE_S)


def close_channel(channel: Channel) -> None:
    """Ask the broker to close the channel, unless it is closing already."""
    if not (channel.is_closed or channel.is_closing):
        channel.close()


def close_code(reason: BaseException) -> tuple[int, str] | None:
    """Code and text with which the broker closed the channel; None if something else did."""
    if isinstance(reason, ChannelClosedByBroker):
        return reason.reply_code, reason.reply_text
    return None


def reason_of(exc: BaseException) -> str:
    """An error of pika or the socket in one printable line."""
    causes: Sequence[Any] = ()
    # pika wraps the cause in one or two exceptions of its own, as an attribute.
    while causes := (
        getattr(exc, "exceptions", None) or [getattr(exc, "exception", None), *exc.args[:1]]
    ):
        if not isinstance(causes[-1], BaseException):
            break
        exc = causes[-1]
    code = getattr(exc, "reply_code", None)
    text = f"{code} {getattr(exc, 'reply_text', '')}" if code is not None else str(exc)
    name = type(exc).__name__
    return printable(f"{name}: {text}" if text else name)[:DETAIL_LIMIT]


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marks it as retrieved: asyncio would log it if no one waits any more


def _nothing(*_: object) -> None:
    """A callback of pika's that has nothing to do."""

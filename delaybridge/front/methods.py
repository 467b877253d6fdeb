"""The methods of AMQP 0-9-1 that the front looks into: read, and written with another name."""

from __future__ import annotations

import struct
from typing import NamedTuple

from delaybridge.amqp.decoding import cut, entries
from delaybridge.amqp.encoding import LONG
from delaybridge.amqp.frames import FRAME, METHOD
from delaybridge.amqp.walker import Method
from delaybridge.errors import DecodeError

FRAME_END = b"\xce"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
DELAYED_TYPE = b"x-delayed-message"
TYPE_ARGUMENT = "x-delayed-type"

_ID = struct.Struct(">HH")
_CODE = struct.Struct(">H")

START, START_OK = _ID.pack(10, 10), _ID.pack(10, 11)
TUNE = _ID.pack(10, 30)
OPEN, OPEN_OK = _ID.pack(10, 40), _ID.pack(10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = _ID.pack(10, 50), _ID.pack(10, 51)
CHANNEL_OPEN = _ID.pack(20, 10)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = _ID.pack(20, 40), _ID.pack(20, 41)
DECLARE, DECLARE_OK = _ID.pack(40, 10), _ID.pack(40, 11)
DELETE, DELETE_OK = _ID.pack(40, 20), _ID.pack(40, 21)
EXCHANGE_BIND, EXCHANGE_UNBIND = _ID.pack(40, 30), _ID.pack(40, 40)
QUEUE_BIND, QUEUE_UNBIND = _ID.pack(50, 20), _ID.pack(50, 50)
RETURN, DELIVER, GET_OK = _ID.pack(60, 50), _ID.pack(60, 60), _ID.pack(60, 71)

BINDS = frozenset((EXCHANGE_BIND, EXCHANGE_UNBIND, QUEUE_BIND, QUEUE_UNBIND))
CONTENTS = frozenset((RETURN, DELIVER, GET_OK))

PASSIVE, DURABLE, INTERNAL, _NO_WAIT = 1, 2, 8, 16  # flags of an exchange.declare
_DELETE_NO_WAIT = 2
TEXT_BYTES = 255


class Declare(NamedTuple):
    """An exchange.declare. arguments: the table as it was encoded, with its size."""

    exchange: bytes
    type: bytes
    flags: int
    arguments: bytes

    def has(self, flag: int) -> bool:
        """Whether a flag is set, such as `PASSIVE`."""
        return bool(self.flags & flag)


def read_declare(method: Method) -> Declare:
    """The fields of an exchange.declare; DecodeError if it is broken."""
    data = method.arguments
    exchange, at = shortstr(data, 2)
    type, at = shortstr(data, at)
    flags = cut(data, at, 1, "flags")[0]
    return Declare(exchange, type, flags, data[at + 1 :])


def declare(channel: int, exchange: bytes, type: bytes, flags: int, table: bytes) -> bytes:
    """The frame of an exchange.declare that is answered, of an exchange that is not internal."""
    flags &= ~(_NO_WAIT | INTERNAL)
    parts = b"\0\0", _packed(exchange), _packed(type), bytes([flags]), table
    return frame(channel, DECLARE, b"".join(parts))


def read_delete(method: Method) -> tuple[bytes, int]:
    """The exchange and the flags of an exchange.delete; DecodeError if it is broken."""
    exchange, at = shortstr(method.arguments, 2)
    return exchange, cut(method.arguments, at, 1, "flags")[0]


def delete(channel: int, exchange: bytes, flags: int) -> bytes:
    """The frame of an exchange.delete that is answered."""
    return frame(channel, DELETE, b"\0\0" + _packed(exchange) + bytes([flags & ~_DELETE_NO_WAIT]))


def is_answered(method: Method) -> bool:
    """Whether the client of an exchange.declare or exchange.delete expects an answer."""
    if method.id == DECLARE:
        return not read_declare(method).has(_NO_WAIT)
    return not read_delete(method)[1] & _DELETE_NO_WAIT


def source_of(method: Method) -> tuple[bytes, int]:
    """The exchange that a bind or unbind takes from, and where it stands in the arguments."""
    _, at = shortstr(method.arguments, 2)
    return shortstr(method.arguments, at)[0], at


def exchange_of(method: Method) -> tuple[bytes, int]:
    """The exchange of a deliver, get-ok or return, and where it stands in the arguments."""
    data, at = method.arguments, 9
    try:
        if method.id == DELIVER:
            at = data[0] + 10
        elif method.id == RETURN:
            at = data[2] + 3
        return data[at + 1 : at + 1 + data[at]], at
    except IndexError:
        raise DecodeError("undecodable", "name", "the method is cut short") from None


def renamed(method: Method, at: int, name: bytes) -> bytes:
    """The frame with another text at this place of the arguments."""
    data = method.arguments
    rest = data[at + 1 + data[at] :]
    return frame(method.channel, method.id, data[:at] + _packed(name) + rest)


def close(channel: int, code: int, text: str, about: bytes = b"\0\0\0\0") -> bytes:
    """The frame of a channel.close, of channel 0 of a connection.close. about: the id of the method
    that failed."""
    encoded = text.encode()[:TEXT_BYTES].decode(errors="ignore").encode()
    id = CHANNEL_CLOSE if channel else CONNECTION_CLOSE
    return frame(channel, id, _CODE.pack(code) + _packed(encoded) + about)


def read_close(method: Method) -> tuple[int, str, bytes]:
    """Code, text and failed method of a close; DecodeError if it is broken."""
    (code,) = _CODE.unpack(cut(method.arguments, 0, 2, "code"))
    text, at = shortstr(method.arguments, 2)
    return code, text.decode(errors="replace"), method.arguments[at : at + 4]


def frame(channel: int, id: bytes, arguments: bytes) -> bytes:
    """The frame of a method."""
    return FRAME.pack(METHOD, channel, 4 + len(arguments)) + id + arguments + FRAME_END


def shortstr(data: bytes, at: int) -> tuple[bytes, int]:
    """The short text at this place, and where it ends; DecodeError if it is cut short."""
    size = cut(data, at, 1, "text")[0]
    return cut(data, at + 1, size, "text"), at + 1 + size


def longstr(data: bytes, at: int) -> tuple[bytes, int]:
    """The long text, or the table, at this place, and where it ends; DecodeError as above."""
    size = int.from_bytes(cut(data, at, 4, "text"), "big")
    return cut(data, at + 4, size, "text"), at + 4 + size


def _packed(text: bytes) -> bytes:
    if len(text) > TEXT_BYTES:
        raise DecodeError("undecodable", "text", f"a name has at most {TEXT_BYTES} bytes")
    return bytes([len(text)]) + text


def without_type(table: bytes) -> tuple[bytes | None, bytes]:
    """The text of `x-delayed-type` in an encoded table with its size, and the table without it.

    None: it has none, or one that is no text. DecodeError if the table is broken.
    """
    inner, end = longstr(table, 0)
    found, kept = None, b""
    for name, start, at, stop in entries(inner):
        if name == TYPE_ARGUMENT.encode():
            found = longstr(inner, at + 1)[0] if inner[at : at + 1] == b"S" else None
        else:
            kept += inner[start:stop]
    return found, LONG.pack(len(kept)) + kept + table[end:]

"""The delay of a message that was delayed, as its consumer sees it: negative.

A consumer that copies the headers into another publish would delay it again, for ever; what is
negative is published at once. The plugin does the same.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from delaybridge.amqp.decoding import decode_value, entries
from delaybridge.amqp.encoding import LONG

_DELAYS = frozenset((b"x-delay", b"x-opt-delivery-delay"))
_KEPT = b"Vt"  # nothing, and false: they delay no message
_SIGNED = {
    b"b": ">cb", b"s": ">ch", b"U": ">ch", b"I": ">ci", b"l": ">cq", b"L": ">cq", b"f": ">cf",
    b"d": ">cd",
}  # fmt: skip
_SIZE = 5  # of kind and length, before a text


def negated(table: bytes) -> bytes:
    """The headers of a message that one of them delays: that is negative, of the same type.

    A type without sign becomes one of 64 bits with sign. All other headers keep their bytes.
    """
    return b"".join(_pieces(table))


def _pieces(table: bytes) -> Iterator[bytes]:
    since = 0
    for name, _, at, end in entries(table):
        if name in _DELAYS and table[at] not in _KEPT:
            yield table[since:at]
            yield _negative(table[at:end])
            since = end
    yield table[since:]


def _negative(value: bytes) -> bytes:
    kind = value[:1]
    if kind in (b"S", b"x"):
        return kind + LONG.pack(len(value) - _SIZE + 1) + b"-" + value[_SIZE:]
    if kind == b"D":  # one byte for the decimals, then the digits
        digits = int.from_bytes(value[2:], signed=True)
        return value[:2] + (-digits).to_bytes(len(value) - 2, signed=True)
    number = -decode_value(value, 0, "x-delay")
    if kind not in _SIGNED:
        return struct.pack(">cq", b"l", number)
    return struct.pack(_SIGNED[kind], kind, number)

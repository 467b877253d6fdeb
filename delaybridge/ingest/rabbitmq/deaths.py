"""Messages that expired in an intake queue, as they were before RabbitMQ dead-lettered them.

RabbitMQ notes in `x-death`, and in six headers more, that the message died in the intake queue, and
moves `expiration` there. Deaths in other queues are kept to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from delaybridge.amqp.decoding import cut, decode_table, entries, spans_of
from delaybridge.amqp.encoding import AFTER_HEADERS, EXPIRATION_FLAG, encode_property, encode_table
from delaybridge.ingest.routes import Route
from delaybridge.message import ContentHeader

_DEATHS = b"x-death"
_LAST = b"x-last-death-"
_ABOUT = frozenset(
    f"x-{which}-death-{what}".encode()
    for which in ("first", "last")
    for what in ("exchange", "queue", "reason")
)
_SIZED = struct.Struct(">cI")
_EXPIRATION, _KEYS = "original-expiration", "routing-keys"
_BEFORE_EXPIRATION = ("delivery_mode", "priority", "correlation_id", "reply_to")


def expired(route: Route) -> str:
    """The exchange and the queue for messages that expired in the intake queue."""
    return f"{route.queue}.expired"


class _Death(NamedTuple):
    encoded: bytes
    about: dict[str, Any]


def has_died(table: bytes) -> bool:
    """Whether a message with these headers may have been dead-lettered. Cheap."""
    return _DEATHS in table


def undone(
    content: ContentHeader, key: bytes, queues: Collection[str]
) -> tuple[ContentHeader, bytes]:
    """Message and routing key as before it died in one of these queues; the same if it did not.

    A policy may give dead letters another routing key. MessageError if the headers are broken.
    """
    table = content.table
    spans = list(entries(table))
    deaths = [
        death for name, _, at, end in spans if name == _DEATHS for death in _deaths(table[at:end])
    ]
    others = [death for death in deaths if not _was_in(queues, death)]
    if len(others) == len(deaths):
        return content, key
    kept = b"".join(_kept(name, table[start:end], others) for name, start, _, end in spans)
    for death in deaths:
        if death in others:
            continue
        if (given := death.about.get(_EXPIRATION)) is not None:
            content = with_expiration(content, given)
        match death.about.get(_KEYS):
            case [str(first), *_]:
                key = first.encode()
            case [bytes(first), *_]:
                key = first
    return content._replace(table=kept), key


def _was_in(queues: Collection[str], death: _Death) -> bool:
    queue = death.about.get("queue")
    return isinstance(queue, str) and queue in queues


def _deaths(value: bytes) -> Iterator[_Death]:
    """The entries of `x-death`, the latest first; nothing if the broker did not write it."""
    at = _SIZED.size if value[:1] == b"A" else len(value)
    while value[at : at + 1] == b"F":
        _, size = _SIZED.unpack(cut(value, at, _SIZED.size, "x-death"))
        table = cut(value, at + _SIZED.size, size, "x-death")
        end = at + _SIZED.size + size
        yield _Death(value[at:end], dict(decode_table(table)))
        at = end


def _kept(name: bytes, entry: bytes, others: list[_Death]) -> bytes:
    """A header as it was when only the other deaths had happened."""
    if name == _DEATHS and others:
        array = b"".join(death.encoded for death in others)
        return bytes([len(name)]) + name + _SIZED.pack(b"A", len(array)) + array
    if name == _DEATHS or (name in _ABOUT and not others):
        return b""
    if name in _ABOUT and name.startswith(_LAST):
        what = name.removeprefix(_LAST).decode()
        return encode_table([(name.decode(), others[0].about.get(what))])
    return entry


def with_expiration(content: ContentHeader, expiration: Any) -> ContentHeader:
    """The message with this `expiration`, if it has none. MessageError if it is not valid."""
    if content.flags & EXPIRATION_FLAG:
        return content
    at = 0
    for name, _, end in spans_of(content.flags, content.after, AFTER_HEADERS):
        if name in _BEFORE_EXPIRATION:
            at = end
    after = content.after[:at] + encode_property("expiration", expiration, "s") + content.after[at:]
    return content._replace(flags=content.flags | EXPIRATION_FLAG, after=after)

"""Messages of a form seen before: they differ in routing key, body, id and the properties after it.

A producer sends the same headers all the time. What they ask for is read once; of each further
message only the id and the body's size are checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import astuple

from delaybridge.accept.accept import Accepted
from delaybridge.ingest.entries import Schedule
from delaybridge.ingest.instructions import Instructions
from delaybridge.ingest.names import Names
from delaybridge.message import (
    ConflictPolicy,
    ContentHeader,
    Destination,
    Limits,
    OnConflict,
    Record,
    encode_record,
    planned,
)

_FORMS = 1000
# In a content header: where the flags and the properties begin.
_FLAGS_AT, _PROPERTIES_AT = 12, 14
_TYPE_BIT, _ENCODING_BIT = 0x80, 0x40  # in the first byte of the flags
_MODE_FLAG, _PRIORITY_FLAG, _ID_FLAG = 1 << 12, 1 << 11, 1 << 7
_TEXTS_BEFORE_ID = 1 << 10 | 1 << 9 | 1 << 8  # correlation_id, reply_to, expiration
_CONSUMER_AT = 11  # in a delivery's frame
_AFTER_PROPERTIES = 4  # of a record's items


class Shape:
    """What messages that follow each other have in common on the wire, up to their properties.

    parts: what cuts them; the bytes before the delivery's tag and after it;
    their form, as `Forms` keeps it; where the content header begins; channel and key. known:
    the form, the destination and where the headers end, once they are known.
    """

    known: tuple[Form, str, int] | None = None

    def __init__(self, channel: int, key: bytes, header: bytes, before: bytes) -> None:
        """before: the delivery, and the start of the header's frame."""
        at = _CONSUMER_AT + 1 + before[_CONSUMER_AT]
        start, middle, form = before[:at], before[at + 8 : -4], header[_FLAGS_AT : ends_at(header)]
        cut = struct.Struct(f">{at}sQ{len(middle)}sI4xQ{len(form)}s")
        self.parts = cut.unpack_from, start, middle, form, len(before), channel, key


def ends_at(header: bytes) -> int:
    """Where the headers end in a content header, if it has any and is whole."""
    at, flags = _PROPERTIES_AT, header[_FLAGS_AT:_PROPERTIES_AT]
    for bit in (_TYPE_BIT, _ENCODING_BIT):
        at += (1 + header[at]) if flags and flags[0] & bit and at < len(header) else 0
    return at + 4 + int.from_bytes(header[at : at + 4], "big")


class Form(msgspec.Struct, frozen=True, gc=False):
    """What all messages of a form have in common.

    id_at: where the id begins, counted from the end of the headers. table: the headers to be kept.
    rest: what of a record comes after its properties.
    """

    id_at: int
    flags: int
    before: bytes
    table: bytes
    rest: tuple[Any, ...]
    when: str
    rank: int
    policy: ConflictPolicy
    is_loose: bool


class Forms:
    """The forms that one delay exchange has seen."""

    def __init__(
        self,
        routes: Mapping[bytes, tuple[Destination, str]],
        limits: Limits,
        reach: str,
        names: Names,
        is_loose: bool,
    ) -> None:
        """routes: routing key -> destination and its text, of the keys seen so far. is_loose: as
        `Schedule` has it, of those that name no policy."""
        self._routes, self._reach, self._names = routes, reach, names
        self._is_loose, self._prefix, self._has_bounds = is_loose, names.prefix, names.has_bounds
        self._id_bytes, self._body_bytes = limits.id_bytes - len(names.prefix), limits.body_bytes
        self._forms: dict[bytes, Form] = {}  # by flags, properties before the headers, and headers

    def learn(self, header: bytes, content: ContentHeader, asked: Instructions, when: str) -> None:
        """Remember the form of a message that is to be stored, if more of it can be read here.

        header: as delivered, for the first time. content: its parts, with the headers to be kept.
        """
        flags = content.flags
        if not flags & _ID_FLAG or flags & _TEXTS_BEFORE_ID:
            return
        if asked.name is not None or asked.destination is not None:
            return
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        end = len(header) - len(content.after)
        id_at = 1 + bool(flags & _MODE_FLAG) + bool(flags & _PRIORITY_FLAG)
        key, ttl_ms, once = asked.key, asked.ttl_ms, asked.at_most_once
        record = Record("", None, (), None, key, None, ttl_ms, once)
        record = planned(record, asked.retry, self._names.tenant)
        self._forms[header[_FLAGS_AT:end]] = Form(
            id_at, flags, content.before, content.table, astuple(record)[_AFTER_PROPERTIES:],
            when, asked.rank, asked.policy or OnConflict.FAIL,
            self._is_loose and asked.policy is None,
        )  # fmt: skip

    def read(self, message: Any, stamp: bytes) -> Schedule | None:
        """The same entry as `MessageReader.read_carefully`; None: it must read the message.

        Not for a message that is delivered again: the broker may have added headers.
        """
        shape, header, body = message.shape, message.header, message.body
        try:
            known = None if shape is None else shape.known
            if known is None:
                end = ends_at(header)
                known = (
                    self._forms[header[_FLAGS_AT:end]],
                    self._routes[message.routing_key][1],
                    end,
                )
                if shape is not None:
                    shape.known = known
            form, destination, end = known
            start = end + form.id_at
            size = header[start - 1]
            id = header[start : start + size].decode("ascii")
        except (LookupError, UnicodeDecodeError):
            return None
        is_plain = 0 < len(id) == size <= self._id_bytes and id.isprintable() and " " not in id
        if not is_plain or len(body) > self._body_bytes:
            return None
        if self._has_bounds and not self._names.may_name(id := self._prefix + id):
            return None
        # As a record is encoded, without making one.
        properties = form.flags, form.before, header[end:]
        payload = encode_record((destination, body, form.table, properties, *form.rest))
        key = form.rest[0]
        shard_key = id.encode() if key is None else key
        accepted = Accepted(id, shard_key, form.when, form.rank, payload)
        return Schedule(
            accepted, stamp, form.policy, payload, "", -1, self._reach, False, form.is_loose
        )

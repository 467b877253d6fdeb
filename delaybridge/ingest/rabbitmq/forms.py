"""Messages of a form seen before: they differ in routing key, body, id and the properties after it.

A producer sends the same headers all the time. What they ask for is read once; of each further
message only the id and the body's size are checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.ingest.entries import Schedule
from delaybridge.ingest.instructions import Instructions
from delaybridge.ingest.names import Names
from delaybridge.message import (
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
_SIZE = struct.Struct(">I")


class Form(msgspec.Struct, frozen=True, gc=False):
    """What all messages of a form have in common.

    id_at: where the id begins, counted from the end of the headers. table: the headers to be kept.
    """

    id_at: int
    flags: int
    before: bytes
    table: bytes
    asked: Instructions
    when: str


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
        self._routes, self._limits, self._reach, self._names = routes, limits, reach, names
        self._is_loose = is_loose
        self._id_bytes = limits.id_bytes - len(names.prefix)
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
        form = Form(id_at, flags, content.before, content.table, asked, when)
        self._forms[header[_FLAGS_AT:end]] = form

    def read(self, header: bytes, routing_key: bytes, body: bytes, stamp: bytes) -> Schedule | None:
        """The same entry as `MessageReader.read_carefully`; None: it must read the message.

        Not for a message that is delivered again: the broker may have added headers.
        """
        try:
            at, first = _PROPERTIES_AT, header[_FLAGS_AT]
            if first & _TYPE_BIT:
                at += 1 + header[at]
            if first & _ENCODING_BIT:
                at += 1 + header[at]
            (size,) = _SIZE.unpack_from(header, at)
            end = at + _SIZE.size + size  # of the headers, if there are any
            form = self._forms[header[_FLAGS_AT:end]]
            _, destination = self._routes[routing_key]
            start = end + form.id_at
            size = header[start - 1]
            id = header[start : start + size].decode("ascii")
        except (struct.error, LookupError, UnicodeDecodeError):
            return None
        names = self._names
        is_plain = id.isprintable() and " " not in id and 0 < len(id) == size <= self._id_bytes
        if not is_plain or len(body) > self._limits.body_bytes:
            return None
        if not names.may_name(id := names.prefix + id):
            return None
        asked = form.asked
        properties = form.flags, form.before, header[end:]
        key, ttl_ms, once = asked.key, asked.ttl_ms, asked.at_most_once
        record = Record(destination, body, form.table, properties, key, None, ttl_ms, once)
        payload = encode_record(planned(record, asked.retry, names.tenant))
        shard_key = id.encode() if key is None else key
        accepted = Accepted(id, shard_key, form.when, asked.rank, payload)
        policy, reach = asked.policy or OnConflict.FAIL, self._reach
        is_loose = self._is_loose and asked.policy is None
        return Schedule(accepted, stamp, policy, payload, reach=reach, is_loose=is_loose)

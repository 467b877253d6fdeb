"""Plain messages: accepted by a short look, and encoded later, while Redis works.

A plain message has a small body of bytes, and no key, headers, properties, ttl, retry plan or
tenant. Apart from the body, its record is the same for every message of its destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any

import msgspec

from delaybridge.accept.accept import (
    Accepted,
    accept,
    check_id,
    check_priority,
    tenant_of_topic,
    when,
)
from delaybridge.accept.destination import DestinationCache
from delaybridge.accept.headers import NO_HEADERS
from delaybridge.message import Limits, Message, Record, encode_record, rank_of

PLAIN_BYTES = 2**15  # of a plain body; with a larger one, the time goes into copying it
_SHORT = [b"\xc4%c" % size for size in range(256)]
_NO_PROPERTIES: dict[str, Any] = {}
_WITHOUT_HEADERS = (_NO_PROPERTIES, ())
_ID_TYPES = (str, type(None))
_IMMUTABLE = (str, int, float, timedelta)
_AT = object()  # the delay in the mould of a message with a time: no other message has it


class Mould(msgspec.Struct, frozen=True, gc=False):
    """What plain messages of one destination, delay and priority have in common.

    The first three are as the caller passed them. before, after: the record without its body.
    when, rank: as in `Accepted`.
    """

    destination: object
    delay: object
    priority: object
    before: bytes
    after: bytes
    when: str
    rank: int


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A checked plain message, not encoded yet. id: None until one is drawn."""

    id: str | None
    body: bytes
    mould: Mould

    def accepted(self, id: str) -> Accepted:
        """The message encoded, with this id."""
        body, mould = self.body, self.mould
        size = len(body)
        header = _SHORT[size] if size < 256 else b"\xc5" + size.to_bytes(2, "big")
        payload = mould.before + header + body + mould.after
        return Accepted(id, id.encode(), mould.when, mould.rank, payload)


class Drafting:
    """Checks messages for one set of brokers. Thread-safe."""

    def __init__(self, kinds: Mapping[str, str], limits: Limits, draw: Callable[[], str]) -> None:
        """draw: makes the id of a message that is not plain and has none."""
        self._kinds, self._limits, self._draw = kinds, limits, draw
        self._destinations = DestinationCache()
        self._most_bytes = min(limits.body_bytes, PLAIN_BYTES)
        self._last = Mould(object(), None, None, b"", b"", "", 0)  # of no message

    def drafts(self, messages: Iterable[Message]) -> list[Draft | Accepted]:
        """The messages checked; those that are plain as drafts. Raises the errors of `accept`."""
        found: list[Draft | Accepted] = []
        mould, most_bytes = self._last, self._most_bytes
        for message in messages:
            if (
                type(message) is not Message
                or message.key is not None
                or message.ttl is not None
                or message.at_most_once is not False
                or message.retry is not None
                or message.tenant
                or message.headers not in _WITHOUT_HEADERS
                or message.properties != _NO_PROPERTIES
                or type(body := message.body) is not bytes
                or len(body) > most_bytes
                or type(message.id) not in _ID_TYPES
            ):
                found.append(self.accept(message))
                continue
            if (id := message.id) is not None:
                check_id(id, self._limits)
            if (
                message.delay is not mould.delay
                or message.destination is not mould.destination
                or message.priority is not mould.priority
                or message.at is not None
            ):
                made = self._mould(message)
                if made is None:
                    found.append(self.accept(message))
                    continue
                mould = made
            found.append(Draft(id, body, mould))
        return found

    def accept(self, message: Message) -> Accepted:
        """The message checked and encoded, with an id."""
        return accept(message, self._kinds, self._limits, self._destinations, self._draw)

    def _mould(self, message: Message) -> Mould | None:
        """None: the message is not plain, because its destination gives it a tenant."""
        destination, canonical = self._destinations.parse(message.destination, self._kinds)
        if tenant_of_topic(destination):
            return None
        mould = Mould(
            message.destination,
            message.delay if message.at is None else _AT,
            message.priority,
            *_around_body(canonical, destination.kind),
            when(message.delay, message.at, self._limits),
            rank_of(check_priority(message.priority)),
        )
        # It serves the next message only if that passes the same objects and they cannot change.
        if (
            type(message.destination) is str
            and type(message.delay) in _IMMUTABLE
            and type(message.priority) is int
        ):
            self._last = mould
        return mould


@lru_cache(10_000)
def _around_body(destination: str, kind: str) -> tuple[bytes, bytes]:
    """The record of a plain message, before and after its body."""
    headers, properties = NO_HEADERS.get(kind, ((), None))
    empty = encode_record(Record(destination, b"", headers, properties))
    at = 1 + len(encode_record(destination))  # after the array's header and its first item
    return empty[:at], empty[at + 2 :]

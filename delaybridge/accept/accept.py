"""The validation that every entrance uses, before anything is written.

It needs neither broker nor store. Each refusal is a `MessageError` with a code, the field and the
remedy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, cast

import msgspec

from delaybridge import times
from delaybridge.accept.destination import (
    check_tenant,
    of_tenant,
    parse_destination,
    plan_of,
    tenant_of_topic,
)
from delaybridge.accept.headers import NO_HEADERS, encode_headers, partition_of
from delaybridge.accept.json_body import with_json_body
from delaybridge.errors import DelayOutOfRange, MessageError, quoted
from delaybridge.gathering import Gathering
from delaybridge.message import (
    MAX_PRIORITY,
    PULL,
    Destination,
    Limits,
    Message,
    Record,
    encode_record,
    id_as_given,
    id_in_store,
    new_id,
    planned,
)


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A checked message, ready for `schedule`.

    when: epoch ms, or `+` and a delay in ms, or the word of a gathering.
    """

    id: str
    shard_key: bytes
    when: str
    rank: int
    payload: bytes


def accept(
    message: Message,
    kinds: Mapping[str, str],
    limits: Limits,
    cache: DestinationCache | None = None,
    draw: Callable[[], str] = new_id,
) -> Accepted:
    """Check everything that can be checked without a broker; MessageError names the first fault.

    kinds: name of each configured broker -> its kind. cache: of the same kinds. draw: makes
    the id of a message that has none.
    """
    tenant, delay = message.tenant and check_tenant(message.tenant), cast(Any, message.delay)
    id, gathering = _named(message, limits, tenant, draw)
    cache = DestinationCache() if cache is None else cache
    destination, canonical = cache.parse(message.destination, kinds)
    if destination.kind == PULL and (owner := tenant or tenant_of_topic(destination)):
        # No other tenant could finish it there.
        destination, canonical = cache.parse(of_tenant(canonical, owner), kinds)
        id, tenant = check_id(id_as_given(id, owner), limits, owner), owner
    key = _short_key(message.key, limits)
    if message.json is not msgspec.UNSET:
        message = with_json_body(message, destination.kind)
    record = Record(
        canonical,
        body_bytes(message.body, destination, limits),
        *encode_headers(message, destination, limits),
        key,
        partition_of(message.properties) if destination.kind == "kafka" else None,
        None if message.ttl is None else times.delay_ms(message.ttl, field="ttl"),
        _flag(message.at_most_once, "at_most_once"),
    )
    if destination.kind == PULL and message.at_most_once:
        what = "a pull topic has none: finish each message as soon as it is received"
        raise MessageError("bad_destination", "at_most_once", what)
    plan = None if message.retry is None else plan_of(message, kinds, destination)
    if plan or tenant or gathering:
        record = planned(record, plan, tenant, gathering)
    return Accepted(
        id,
        id.encode() if key is None else key,
        gathering.word(limits.delay_ms) if gathering else when(delay, message.at, limits),
        _rank(message.priority),
        encode_record(record),
    )


def _named(
    message: Message, limits: Limits, tenant: str, draw: Callable[[], str]
) -> tuple[str, Gathering | None]:
    if not isinstance(message.delay, Gathering):
        return check_id(draw() if message.id is None else message.id, limits, tenant), None
    if message.at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and at are given; give one")
    return check_id(message.delay.key, limits, tenant, "key"), message.delay


def when(delay: timedelta | float | str | None, at: datetime | str | None, limits: Limits) -> str:
    """The due time as the scripts take it: `+` and ms for a delay, epoch ms for a time.

    MessageError unless exactly one of the two is given and valid; DelayOutOfRange if it is further
    ahead than `limits` allow.
    """
    if delay is not None and at is not None:
        raise MessageError("time_ambiguous", "delay", "both delay and at are given; give one")
    if delay is not None:
        if type(delay) in times.CACHED:  # nearly always
            wait_ms = times.cached_delay_ms(delay, "delay")
        else:
            wait_ms = times.delay_ms(delay)
        check_delay(wait_ms, limits, "delay")
        return f"+{wait_ms}"
    if at is not None:
        due_ms = times.at_ms(at)
        check_delay(due_ms - time.time_ns() // 1_000_000, limits, "at")
        return str(due_ms)
    raise MessageError("time_required", "delay", "neither delay nor at is given; give one")


def check_id(id: object, limits: Limits | None = None, tenant: str = "", field: str = "id") -> str:
    """The id as it is stored: 1 to 255 bytes of printable UTF-8, no space at either end; of a
    tenant with its name in front, which counts. Else `bad_id` of this field."""
    most = (limits or Limits()).id_bytes - (len(id_in_store("", tenant)) if tenant else 0)
    if not isinstance(id, str):
        raise MessageError("bad_id", field, f"got {type(id).__name__}; give text")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_id", field, "not valid UTF-8") from None
    if not 1 <= size <= most:
        raise MessageError("bad_id", field, f"{size} bytes; give 1 to {most}")
    if not id.isprintable() or id != id.strip():
        raise MessageError(
            "bad_id", field, f"{id!r} holds an unprintable character, or a space at an end"
        )
    return id_in_store(id, tenant) if tenant else id


def _short_key(key: object, limits: Limits) -> bytes | None:
    found = check_key(key)
    if found is not None and len(found) > limits.body_bytes:
        most = limits.body_bytes
        what = f"{len(found):,} bytes; limits.body_bytes, {most:,}, also limits the key"
        raise MessageError("key_too_large", "key", what)
    return found


def check_delay(wait_ms: int, limits: Limits, name: str) -> None:
    """DelayOutOfRange if a due time is further ahead than `limits` allow."""
    if wait_ms > limits.delay_ms:
        ahead, most = map(times.format_duration, (wait_ms, limits.delay_ms))
        raise DelayOutOfRange("too_far", name, f"{ahead} ahead, more than limits.delay, {most}")


def check_key(key: object) -> bytes | None:
    """The key as bytes; MessageError `bad_key`."""
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise MessageError("bad_key", "key", "not valid UTF-8; give bytes") from None
    raise MessageError("bad_key", "key", f"got {type(key).__name__}; give text or bytes")


def body_bytes(body: object, destination: Destination, limits: Limits) -> bytes | None:
    """The body as bytes, or None; MessageError if the destination does not take it."""
    if isinstance(body, bytes):
        pass
    elif body is None:
        if destination.kind != "kafka":
            raise MessageError("null_body", "body", "only Kafka takes null; give an empty body")
        return None
    elif isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            what = "text with a lone surrogate; give bytes"
            raise MessageError("bad_body", "body", what) from None
    elif isinstance(body, bytearray | memoryview):
        body = bytes(body)
    elif body is msgspec.UNSET:
        raise MessageError("body_required", "body", "neither body nor json is given; give one")
    else:
        what = f"got {type(body).__name__}; give bytes or text, or json="
        raise MessageError("bad_body", "body", what)
    check_body_size(body, destination.broker, limits)
    return body


def check_body_size(body: bytes, broker: str, limits: Limits) -> None:
    """MessageError `body_too_large` if it exceeds `limits.body_bytes`."""
    if len(body) > limits.body_bytes:
        raise MessageError(
            "body_too_large",
            "body",
            f"{len(body)} bytes for {broker}; the limit (limits.body_bytes) is {limits.body_bytes}",
        )


def _rank(priority: object) -> int:
    """As `rank_of`, of a priority that is checked."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 255:
        raise MessageError("bad_priority", "priority", f"got {quoted(priority)}; give 0 to 255")
    return MAX_PRIORITY - priority


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise MessageError("bad_flag", name, f"got {quoted(value)}; give true or false")
    return value


_MAX_CACHED = 10_000


class DestinationCache(dict[str, tuple[Destination, str]]):
    """Text -> the parsed destination and its canonical text, for one set of brokers. Bounded."""

    def parse(self, text: str, kinds: Mapping[str, str]) -> tuple[Destination, str]:
        """`parse_destination`, once for each text."""
        found = self.get(text) if isinstance(text, str) else None
        if found is None:
            destination = parse_destination(text, kinds)
            if len(self) >= _MAX_CACHED:  # routing keys are unbounded
                self.clear()
            found = self[text] = destination, str(destination)
        return found


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
        (one,) = encoded((self,), (id,))
        return one


def encoded(drafts: Iterable[Draft], ids: Iterable[str]) -> Iterator[Accepted]:
    """The messages encoded, each with its id of these."""
    mould, size, before, after, when, rank = None, -1, b"", b"", "", 0
    for draft, id in zip(drafts, ids, strict=False):
        body = draft.body
        if draft.mould is not mould or len(body) != size:  # else as the one before
            mould, size = draft.mould, len(body)
            header = _SHORT[size] if size < 256 else b"\xc5" + size.to_bytes(2, "big")
            before, after, when, rank = mould.before + header, mould.after, mould.when, mould.rank
        yield Accepted(id, id.encode(), when, rank, before + body + after)


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
                or message.json is not msgspec.UNSET
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

    def again(
        self, destination: object, body: object, delay: object, id: object, priority: object
    ) -> Draft | None:
        """A message with nothing else, if it is plain and to be sent as the one before."""
        mould = self._last
        if (
            delay is not mould.delay
            or destination is not mould.destination
            or priority is not mould.priority
            or type(body) is not bytes
            or len(body) > self._most_bytes
        ):
            return None
        return Draft(None if id is None else check_id(id, self._limits), body, mould)

    def accept(self, message: Message) -> Accepted:
        """The message checked and encoded, with an id."""
        return accept(message, self._kinds, self._limits, self._destinations, self._draw)

    def _mould(self, message: Message) -> Mould | None:
        """None: it is not plain: it is gathered, or its destination gives it a tenant."""
        destination, canonical = self._destinations.parse(message.destination, self._kinds)
        if isinstance(message.delay, Gathering) or (
            destination.kind == PULL and tenant_of_topic(destination)
        ):
            return None
        mould = Mould(
            message.destination,
            message.delay if message.at is None else _AT,
            message.priority,
            *_around_body(canonical, destination.kind),
            when(message.delay, message.at, self._limits),
            _rank(message.priority),
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

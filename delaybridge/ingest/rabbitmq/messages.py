"""Reads the instructions in a message from a delay exchange; its bytes are kept unchanged.

Only headers addressed to delaybridge are decoded, and of the properties only `message_id`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from time import time_ns
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from delaybridge.accept.accept import Accepted, check_body_size
from delaybridge.accept.destination import parse_destination
from delaybridge.accept.headers import check_header_sizes
from delaybridge.amqp.decoding import decode_value, entries, message_id, split_content_header
from delaybridge.errors import MessageError
from delaybridge.ingest.entries import INGRESS, Change, Quarantine, Schedule, reason_of, when_of
from delaybridge.ingest.instructions import (
    ID,
    INSTRUCTIONS,
    PLUGIN_DELAY,
    Instructions,
    instructions,
    is_instruction,
)
from delaybridge.ingest.names import NOBODYS, Names
from delaybridge.ingest.negated import negated
from delaybridge.ingest.rabbitmq.deaths import expired, has_died, undone
from delaybridge.ingest.rabbitmq.forms import Forms, Shape
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route
from delaybridge.message import (
    OWN_HEADERS,
    RESERVED_PREFIX,
    ContentHeader,
    Destination,
    Limits,
    OnConflict,
    Record,
    encode_record,
    new_id,
    planned,
)

_log = logging.getLogger("delaybridge")
_WATCHED = frozenset(name.encode() for name in (*INSTRUCTIONS, *OWN_HEADERS))
_RESERVED = RESERVED_PREFIX.encode()
_ID = ID.encode()
_STAMP = b"timestamp_in_ms"  # RabbitMQ's, if its message_interceptors are set
_COUNTS = frozenset(
    (b"x-delivery-count", b"x-acquired-count")
)  # RabbitMQ adds these when it redelivers
_ROUTES = 10_000
_CUT_OFF = timedelta(milliseconds=999)
# Many producers send the same few headers all the time: they are read once.
_TABLES, _PLAIN_BYTES = 1000, 256


class RawMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as RabbitMQ handed it over. header: the content header frame's payload.

    shape: which it has, if the one before it had that, too.
    """

    tag: int
    redelivered: bool
    routing_key: bytes
    header: bytes
    body: bytes
    shape: Shape | None = None


def content_of(message: RawMessage, queues: Collection[str]) -> tuple[ContentHeader, bytes]:
    """Properties, headers and routing key as the producer sent them; MessageError if broken.

    queues: where it may have been redelivered, or have expired, before it was read.
    """
    before = content = split_content_header(message.header)
    key = message.routing_key
    if has_died(content.table):
        content, key = undone(content, key, queues)
    if message.redelivered or content is not before:
        content = _uncounted(content)
    return content, key


def _uncounted(content: ContentHeader) -> ContentHeader:
    table = content.table
    kept = (table[start:end] for name, start, _, end in entries(table) if name not in _COUNTS)
    return content._replace(table=b"".join(kept))


class Immediate(NamedTuple):
    """A message without a delay, to be published at once."""

    id: str
    record: Record
    destination: Destination


class MessageReader:
    """Reads the messages of one delay exchange."""

    def __init__(
        self,
        route: Route,
        kinds: Mapping[str, str],
        limits: Limits,
        allowed: AllowList,
        delay_exchanges: Collection[str],
        reach: str = "",
        names: Names = NOBODYS,
        negates: bool = False,
        trusts_stamp: bool = False,
    ) -> None:
        """delay_exchanges: those of the broker; a message forwarded to one is not delayed twice.

        reach: as `reach_of` gives it; empty: all destinations. names: the ids that it may name.
        negates: consumers get the delay as a negative number, as they always do of an exchange that
        a front made. trusts_stamp: a delay counts from the broker's own stamp, if there is one.
        near_misses: how often a header was named almost like an instruction. without_id: messages
        without an id.
        """
        self.route, self._kinds, self._limits, self._allowed = route, kinds, limits, allowed
        self._delay_exchanges, self.reach = frozenset(delay_exchanges), reach
        self._names = names
        self._negates, self._trusts_stamp = negates or route.is_fronted, trusts_stamp
        self.queues = frozenset((route.queue, expired(route)))
        self._destinations: dict[bytes, tuple[Destination, str]] = {}
        self._tables: dict[bytes, tuple[Instructions, bytes]] = {}  # seen before
        self._forms = Forms(self._destinations, limits, reach, names, route.is_fronted)
        self.near_misses = self.without_id = 0

    def read(
        self, message: RawMessage, stamp: bytes, known_id: str | None = None
    ) -> Schedule | Change | Quarantine | Immediate:
        """The entry for a message, or the message to publish at once.

        stamp: unique to the message, and the same when it is delivered again. known_id: the id it
        was given at its first delivery if it has none of its own; None: give it a new one.
        """
        if not message.redelivered:
            entry = self._forms.read(message, stamp)
            if entry is not None:
                return entry
        return self.read_carefully(message, stamp, known_id)

    def read_carefully(
        self, message: RawMessage, stamp: bytes, known_id: str | None = None
    ) -> Schedule | Change | Quarantine | Immediate:
        """`read`, for messages of any form."""
        content = None
        try:
            content, key = content_of(message, self.queues)
            if key != message.routing_key:
                message = replace(message, routing_key=key)
            return self._read(message, content, stamp, known_id)
        except MessageError as exc:
            return self.quarantine(message, content, stamp, reason_of(exc))
        except Exception as exc:  # whatever a message holds, the others are read
            _log.error(
                "%s: reading a message raised %s", self.route, type(exc).__name__, exc_info=exc
            )
            return self.quarantine(
                message, None, stamp, f"{INGRESS}undecodable {type(exc).__name__}"
            )

    def quarantine(
        self, message: RawMessage, content: ContentHeader | None, stamp: bytes, reason: str
    ) -> Quarantine:
        """Keep it unchanged, addressed to where it would have gone."""
        content = content or ContentHeader(len(message.body), 0, b"", b"", b"")
        key = message.routing_key.decode(errors="backslashreplace")
        route = self.route
        target = Destination(route.broker, route.kind, route.target, key)
        payload = self._encoded(target, message.body, content)
        return Quarantine.with_own_id(self._own_id(content), stamp, payload, reason)

    def _read(
        self, message: RawMessage, content: ContentHeader, stamp: bytes, known_id: str | None
    ) -> Schedule | Change | Quarantine | Immediate:
        known = self._tables.get(content.table)
        asked, table = known or self._instructions(content.table)
        is_loose = self.route.is_fronted and asked.name is None and asked.policy is None
        own = self._own_id(content) if is_loose else self._checked_id(content, asked)
        if own is None:
            self.without_id += 1
        if asked.cancel or asked.reschedule:
            return self._change(own, asked, stamp)
        first, second = (known_id, own) if is_loose else (own, known_id)
        id = first or second or self._names.prefix + new_id()
        destination, text = self._destination(message.routing_key, asked)
        check_body_size(message.body, destination.broker, self._limits)
        encoded = content.flags, content.before, content.after
        key, ttl_ms, once = asked.key, asked.ttl_ms, asked.at_most_once
        record = Record(text, message.body, table, encoded, key, None, ttl_ms, once)
        if not asked.needs_store and destination.broker == self.route.broker:
            return Immediate(id, planned(record, None, self._names.tenant), destination)
        payload = encode_record(planned(record, asked.retry, self._names.tenant, asked.gathering))
        shard_key = id.encode() if key is None else key
        when = when_of(asked, self._limits)
        # The second of these headers: more are to come.
        if known and not message.redelivered and not has_died(message.header):
            self._forms.learn(message.header, content._replace(table=table), asked, when)
        accepted = Accepted(id, shard_key, when, asked.rank, payload)
        policy, reach = asked.policy or OnConflict.FAIL, self.reach
        return Schedule(accepted, stamp, policy, payload, reach=reach, is_loose=is_loose)

    def _checked_id(self, content: ContentHeader, asked: Instructions) -> str | None:
        """The id that the producer gave it; MessageError if it cannot be one."""
        given = asked.name if asked.name is not None else message_id(content.flags, content.after)
        return None if given is None else self._id(given)

    def _change(self, id: str | None, asked: Instructions, stamp: bytes) -> Change:
        if id is None:
            raise MessageError("bad_id", "delaybridge-id", "missing; name the message")
        when = when_of(asked, self._limits) if asked.reschedule else ""
        return Change(id, asked.key, stamp, when=when, reach=self.reach)

    def _encoded(self, destination: Destination, body: bytes, content: ContentHeader) -> bytes:
        properties = (content.flags, content.before, content.after)
        record = Record(str(destination), body, content.table, properties)
        return encode_record(planned(record, None, self._names.tenant))

    def _own_id(self, content: ContentHeader) -> str | None:
        """The id that its producer gave it, if that is readable."""
        with suppress(MessageError):
            given: Any = message_id(content.flags, content.after)
            for name, _, at, _ in entries(content.table):
                if name == _ID:
                    given = decode_value(content.table, at, ID)
            return None if given is None else self._id(given)
        return None

    def _instructions(self, table: bytes) -> tuple[Instructions, bytes]:
        """The instructions in the headers, and the headers without those of delaybridge."""
        found: list[tuple[str, Any]] = []
        kept: list[bytes] = []
        count = since = 0
        is_plain = len(table) <= _PLAIN_BYTES and not self._trusts_stamp
        for name, start, at, end in entries(table):
            count += 1
            if name in _WATCHED or name.startswith(_RESERVED):
                text = name.decode(errors="backslashreplace")
                found.append((text, self._meant(text, decode_value(table, at, text))))
                if is_instruction(text) or self._is_delayed_again(text):
                    kept.append(table[since:start])
                    since = end
            elif name.lower() in _WATCHED:
                is_plain = False
                self.near_misses += 1
        check_header_sizes(count, len(table), self._limits)
        rest = b"".join((*kept, table[since:])) if since else table
        answer = self._delayed(table, instructions(found), rest) if found else (_NOTHING, rest)
        if is_plain:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[table] = answer
        return answer

    def _delayed(
        self, table: bytes, asked: Instructions, rest: bytes
    ) -> tuple[Instructions, bytes]:
        """The same of a message that has a delay: since when it counts, and what is shown of it."""
        if asked.delay_ms is None:
            return asked, rest
        if self._trusts_stamp and (stamp_ms := _stamp_of(table)) is not None:
            due_ms = min(stamp_ms, time_ns() // 1_000_000) + asked.delay_ms  # none from the future
            asked = asked._replace(delay_ms=None, due_ms=due_ms)
        return asked, negated(rest) if self._negates else rest

    def _meant(self, name: str, value: Any) -> Any:
        """What the producer meant; to the plugin `true` is no delay."""
        if value is True and name == PLUGIN_DELAY and self.route.is_fronted:
            return False
        return _not_early(value)

    def _is_delayed_again(self, name: str) -> bool:
        return name == PLUGIN_DELAY and self.route.target in self._delay_exchanges

    def _id(self, given: str | bytes) -> str:
        try:
            id = given.decode() if isinstance(given, bytes) else given
        except UnicodeDecodeError:
            raise MessageError("bad_id", "message_id", "not valid UTF-8") from None
        return self._names.stored(id, self._limits)

    def _destination(self, routing_key: bytes, asked: Instructions) -> tuple[Destination, str]:
        if asked.destination is not None:
            destination = parse_destination(asked.destination, self._kinds)
            self._allowed.check(destination, self.route)
            self._check_not_back(destination)
            return destination, str(destination)
        known = self._destinations.get(routing_key)
        if known is None:
            known = self._route_for(routing_key)
            if len(self._destinations) >= _ROUTES:  # routing keys are unbounded
                self._destinations.clear()
            self._destinations[routing_key] = known
        return known

    def _route_for(self, routing_key: bytes) -> tuple[Destination, str]:
        try:
            key = routing_key.decode()
        except UnicodeDecodeError:
            raise MessageError("bad_destination", "routing key", "not valid UTF-8") from None
        route = self.route
        text = str(Destination(route.broker, route.kind, route.target, key))
        destination = parse_destination(text, self._kinds)
        self._check_not_back(destination)
        return destination, text

    def _check_not_back(self, destination: Destination) -> None:
        """MessageError if it would return to its own exchange or queue: an endless loop."""
        source, queue = self.route.source, self.route.queue
        if destination.broker == self.route.broker and (
            destination.address == source
            or (not destination.address and destination.routing_key == queue)
        ):
            raise MessageError(
                "self_loop", "delaybridge-destination", f"{source} is the source itself"
            )


def _not_early(value: Any) -> Any:
    """A timestamp, moved to the end of its second: the broker cut off its milliseconds."""
    return value + _CUT_OFF if isinstance(value, datetime) else value


def _stamp_of(table: bytes) -> int | None:
    """When RabbitMQ got the message, in epoch milliseconds, if it says so."""
    for name, _, at, _ in entries(table):
        if name == _STAMP and type(stamp_ms := decode_value(table, at, "")) is int and stamp_ms > 0:
            return stamp_ms
    return None


_NOTHING = Instructions()

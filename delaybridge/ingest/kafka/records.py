"""Reads the instructions in a record: our headers, or those of etf1's kafka-message-scheduler.

In etf1's dialect the record's key is the id, the same key replaces, a null value cancels, and the
headers name epoch (seconds), target topic and target key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import methodcaller
from time import time_ns
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec

from delaybridge.accept.accept import Accepted, check_body_size, check_delay
from delaybridge.accept.destination import parse_destination
from delaybridge.accept.headers import check_header_sizes
from delaybridge.errors import MessageError
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule, reason_of, when_of
from delaybridge.ingest.instructions import ID, Instructions, instructions, is_instruction
from delaybridge.ingest.names import NOBODYS, Names
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route
from delaybridge.message import (
    MAX_PRIORITY,
    OWN_HEADERS,
    ConflictPolicy,
    Destination,
    HeaderPairs,
    Limits,
    OnConflict,
    Record,
    encode_record,
    planned,
)
from delaybridge.times import epoch_ms

ETF1_EPOCH = "scheduler-epoch"
ETF1_TOPIC = "scheduler-target-topic"
ETF1_KEY = "scheduler-target-key"
_ETF1_PREFIX = "scheduler-"
_OFFSET_DIGITS = 19
_PLACE = f"%s%0{_OFFSET_DIGITS}d"
_ID_REST = 9  # of an id: two dashes, five digits of the partition, and ~1 where it is quarantined

Headers = Sequence[tuple[str, bytes | None]]
# For a name that is not UTF-8 confluent_kafka returns half a list and sets an exception. The
# interpreter notices after every call, except one written as message.headers().
_headers_of = methodcaller("headers")
# Many producers send the same few headers all the time: they are read once.
_KNOWN, _KNOWN_BYTES = 1000, 256


class RawRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as it was read. headers None: they cannot be decoded. timestamp_ms: -1 if none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int = -1

    @classmethod
    def from_message(cls, message: Any, before: Headers | None = None) -> RawRecord:
        """A record as confluent_kafka gives it. before: headers that it shares if equal."""
        try:
            headers = _headers_of(message) or ()
        except (UnicodeDecodeError, SystemError):  # a name; then the values are lost, too
            headers = None
        partition, offset, stamp_ms = message.partition(), message.offset(), message.timestamp()[1]
        headers = before if headers == before else headers
        return cls(partition, offset, message.key(), message.value(), headers, stamp_ms)


class Understood(msgspec.Struct, gc=False):
    """The instructions in the headers. kept: the headers without those of delaybridge.

    to, when: destination and due time of all records with these headers, once they are checked.
    is_usual: all else that they ask for is the same for each record.
    """

    asked: Instructions
    kept: HeaderPairs
    is_etf1: bool
    to: tuple[Destination, str] | None = None
    when: str = ""
    is_usual: bool = False


class Partition(NamedTuple):
    """The common parts of a partition's records.

    source: the name under which the store remembers the highest offset read; empty: it does not.
    """

    place: str
    seed: int
    source: str


class RecordReader:
    """Reads the records of one delay topic."""

    def __init__(
        self,
        route: Route,
        topic_id: str,
        kinds: Mapping[str, str],
        limits: Limits,
        allowed: AllowList,
        *,
        keep_partition: bool,
        reach: str = "",
        names: Names = NOBODYS,
    ) -> None:
        """topic_id: tells the topic from an earlier one of the same name; empty if unknown.

        reach: whose messages may be changed, as `reach_of` gives it; empty: all. names: the ids
        that it may name. near_misses: how often a header was named almost like an instruction.
        """
        self.route, self._topic_id = route, topic_id
        self._kinds, self._limits, self._allowed = kinds, limits, allowed
        self._keep_partition, self._reach, self._names = keep_partition, reach, names
        self.topic = route.source
        self.near_misses = 0
        self._own: tuple[Destination, str] | None = None
        self._partitions: dict[int, Partition] = {}
        self._known: dict[tuple[bool, Headers], Understood] = {}  # headers seen before
        self._latest, self._latest_headers = _ETF1S, cast(Headers, None)  # of a value

    def read(self, record: RawRecord) -> Entry:
        """The entry for a record."""
        try:
            return self._read(record)
        except MessageError as exc:
            return self.quarantine(record, reason_of(exc))

    def read_all(self, records: Sequence[RawRecord]) -> list[Entry]:
        """The entries for records, in order."""
        entries: list[Entry] = []
        while len(entries) < len(records):
            first = records[len(entries)]
            entries.append(self.read(first))
            if first.headers == self._latest_headers and self._latest.is_usual:
                entries += self._alike(first, islice(records, len(entries), None))
        return entries

    def _alike(self, first: RawRecord, others: Iterable[RawRecord]) -> Iterator[Entry]:
        """The entries of the first ones that differ only in offset, key and body from `first`."""
        number, headers, most = first.partition, first.headers, self._limits.body_bytes
        understood, (place, seed, source) = self._latest, self._partition(first)
        asked, kept, text = understood.asked, understood.kept, cast(Any, understood.to)[1]
        policy, when, rank = asked.policy or OnConflict.FAIL, understood.when, asked.rank
        last = number if self._keep_partition else None, asked.ttl_ms, asked.at_most_once
        for one in others:
            body, key, offset = one.value, one.key, one.offset
            if one.headers is not headers or one.partition != number:
                return
            if body is None or len(body) > most:
                return
            id = _PLACE % (place, offset)
            payload = encode_record((text, body, kept, None, key, *last))
            accepted = Accepted(id, id.encode() if key is None else key, when, rank, payload)
            stamp = crc32(offset.to_bytes(8, "big"), seed).to_bytes(4, "big")
            yield Schedule(accepted, stamp, policy, payload, source, offset, self._reach)

    def place(self, record: RawRecord) -> str:
        """Topic, partition and offset, of fixed width: such ids sort as they were read."""
        return _PLACE % (self._partition(record).place, record.offset)

    def _partition(self, record: RawRecord) -> Partition:
        return self._partitions.get(record.partition) or self._first_of(record.partition)

    def _first_of(self, number: int) -> Partition:
        topic, born = self.route.source, f"-{self._topic_id}" if self._topic_id else ""
        prefix = self._names.prefix
        # An id has at most 255 bytes, and a topic's name may have 249.
        taken = len(prefix) + len(born) + _OFFSET_DIGITS + _ID_REST
        room = max(self._limits.id_bytes - taken, 0)
        partition = self._partitions[number] = Partition(
            f"{prefix}{topic[:room]}{born}-{number:05}-",
            crc32(f"{self.topic}:{self._topic_id}:{number}".encode()),
            f"{self._topic_id}:{number}" if self._topic_id else "",
        )
        return partition

    def quarantine(self, record: RawRecord, reason: str) -> Quarantine:
        """Keep it unchanged, addressed to where it would have gone."""
        to = str(Destination(self.route.broker, self.route.kind, self.route.target))
        kept = Record(to, record.value, tuple(record.headers or ()), None, record.key)
        own_id = self._own_id(record)
        stamp = _stamp(self._partition(record), record.offset)
        payload = encode_record(planned(kept, None, self._names.tenant))
        return Quarantine.with_own_id(own_id, stamp, payload, reason)

    def _own_id(self, record: RawRecord) -> str:
        """The id that its producer gave it, if that is readable; otherwise its place."""
        headers = dict(record.headers or ())
        given = record.key if any(map(_is_etf1, headers)) else headers.get(ID)
        with suppress(MessageError, UnicodeDecodeError):
            if given is not None:
                return self._names.stored(given.decode(), self._limits)
        return self.place(record)

    def _read(self, record: RawRecord) -> Entry:
        headers = record.headers
        if headers is None:
            raise MessageError("bad_header", "headers", "a header's name is not valid UTF-8")
        understood = self._latest
        # Comparing takes a third of hashing, and most records have the headers of the one before.
        if headers != self._latest_headers or record.value is None:
            same = record.value is None, tuple(headers)
            known = self._known.get(same)
            understood = known or self._understood(same)
            if known and record.value is not None:
                self._latest, self._latest_headers = understood, headers
        asked = understood.asked
        if understood.is_etf1:
            return self._etf1(record, headers)
        if asked.cancel or asked.reschedule:
            return self._asked_change(record, asked)
        entry = self._schedule(record, understood)
        if record.value is None and record.key and not headers:
            # A tombstone: etf1's clients cancel with it. If nothing is pending it is a message.
            with suppress(UnicodeDecodeError):
                id = self._names.prefix + record.key.decode()
                if self._names.may_name(id):
                    return self._change(id, record.key, record, otherwise=entry)
        return entry

    def _understood(self, given: tuple[bool, Headers]) -> Understood:
        """The instructions in the headers of a record whose value is null or not."""
        is_null, headers = given
        size = sum(len(name) + len(value or b"") for name, value in headers)
        check_header_sizes(len(headers), size, self._limits)
        names = {name for name, _ in headers}
        is_etf1 = ETF1_EPOCH in names or (is_null and any(map(_is_etf1, names)))
        understood = _ETF1S if is_etf1 else _understand(headers)
        if understood.asked.near_miss is not None:
            self.near_misses += 1  # not remembered, so that each is counted
        elif size <= _KNOWN_BYTES:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[given] = understood
        return understood

    def _asked_change(self, record: RawRecord, asked: Instructions) -> Change:
        if asked.id is None:
            raise MessageError("bad_id", ID, "missing; name the message")
        when = when_of(asked, self._limits) if asked.reschedule else ""
        key = record.key if asked.key is None else asked.key
        return self._change(self._names.stored(asked.id, self._limits), key, record, when=when)

    def _schedule(self, record: RawRecord, understood: Understood) -> Schedule:
        asked = understood.asked
        names, given = self._names, asked.name
        partition, offset = self._partition(record), record.offset
        id = (
            _PLACE % (partition.place, offset)
            if given is None
            else names.stored(given, self._limits)
        )
        key = record.key if asked.key is None else asked.key
        to = understood.to or self._destination(asked.destination)
        payload = self._payload(record, to, understood.kept, key, asked)
        if understood.to is None:
            understood.to, understood.when = to, when_of(asked, self._limits)
            own = given, asked.key, asked.retry, asked.gathering
            understood.is_usual = own == (None,) * 4 and not names.tenant
        shard_key = key if key is not None else id.encode()
        accepted = Accepted(id, shard_key, understood.when, asked.rank, payload)
        policy, stamp = asked.policy or OnConflict.FAIL, _stamp(partition, offset)
        return Schedule(accepted, stamp, policy, payload, partition.source, offset, self._reach)

    def _etf1(self, record: RawRecord, headers: Headers) -> Entry:
        if not record.key:
            raise MessageError(
                "bad_id", "key", "missing or empty; with scheduler-epoch the record's key is the id"
            )
        try:
            id = self._names.stored(record.key.decode(), self._limits)
        except UnicodeDecodeError:
            raise MessageError("bad_id", "key", "not valid UTF-8") from None
        if record.value is None:
            return self._change(id, id.encode(), record)
        given = {name: value for name, value in reversed(headers) if value is not None}
        target = given.get(ETF1_TOPIC)
        if not target:
            raise MessageError("bad_destination", ETF1_TOPIC, "missing or empty; name a topic")
        topic = target.decode(errors="backslashreplace")
        stamps = (
            ("scheduler-timestamp", b"%d" % (record.timestamp_ms // 1000)),
            ("scheduler-key", record.key),
            ("scheduler-topic", self.route.source.encode()),
        )
        payload = self._payload(
            record,
            self._destination(f"{self.route.broker}:{topic}"),
            (*((n, v) for n, v in headers if n not in OWN_HEADERS), *stamps),
            given.get(ETF1_KEY),
            _NOTHING,
        )
        due_ms = _seconds(given.get(ETF1_EPOCH, b"")) * 1000
        check_delay(due_ms - time_ns() // 1_000_000, self._limits, ETF1_EPOCH)
        # The id decides the bucket: the null value that cancels has only that.
        accepted = Accepted(id, id.encode(), str(due_ms), MAX_PRIORITY, payload)
        return self._sourced(accepted, OnConflict.REPLACE, record)

    def _sourced(self, accepted: Accepted, policy: ConflictPolicy, record: RawRecord) -> Schedule:
        partition, offset = self._partition(record), record.offset
        stamp, source = _stamp(partition, offset), partition.source
        return Schedule(accepted, stamp, policy, accepted.payload, source, offset, self._reach)

    def _change(
        self,
        id: str,
        shard_key: bytes | None,
        record: RawRecord,
        otherwise: Schedule | None = None,
        when: str = "",
    ) -> Change:
        partition, offset = self._partition(record), record.offset
        stamp, source = _stamp(partition, offset), partition.source
        return Change(id, shard_key, stamp, source, offset, otherwise, when, self._reach)

    def _payload(
        self,
        record: RawRecord,
        destination: tuple[Destination, str],
        headers: HeaderPairs,
        key: bytes | None,
        asked: Instructions,
    ) -> bytes:
        to, text = destination
        check_body_size(record.value or b"", to.broker, self._limits)
        partition = record.partition if self._keep_partition else None
        ttl_ms, once, plan = asked.ttl_ms, asked.at_most_once, asked.retry
        kept = text, record.value, headers, None, key, partition, ttl_ms, once
        if plan is None and asked.gathering is None and not self._names.tenant:
            return encode_record(kept)  # as the record is encoded
        return encode_record(planned(Record(*kept), plan, self._names.tenant, asked.gathering))

    def _destination(self, asked: str | None) -> tuple[Destination, str]:
        route = self.route
        if asked is None:
            if self._own is None:
                own = parse_destination(f"{route.broker}:{route.target}", self._kinds)
                self._own = own, str(own)
            return self._own
        destination = parse_destination(asked, self._kinds)
        if (destination.broker, destination.address) == (route.broker, route.source):
            raise MessageError(
                "self_loop", "delaybridge-destination", f"{route.source} is the source itself"
            )
        self._allowed.check(destination, route)
        return destination, str(destination)


_NOTHING = Instructions()
_ETF1S = Understood(_NOTHING, (), is_etf1=True)


def _stamp(partition: Partition, offset: int) -> bytes:
    """The same whenever the record is read again; another record very rarely has it."""
    return crc32(offset.to_bytes(8, "big"), partition.seed).to_bytes(4, "big")


def _understand(headers: Headers) -> Understood:
    for name, value in headers:
        if value is None and is_instruction(name):
            raise MessageError("bad_header", name, "null; give a value as text")
    kept = tuple(pair for pair in headers if not is_instruction(pair[0]))
    return Understood(instructions(headers), kept, is_etf1=False)


def _is_etf1(name: str) -> bool:
    return name.startswith(_ETF1_PREFIX)


def _seconds(text: bytes) -> int:
    if not text.isdigit() or len(text) > 11:
        raise MessageError(
            "bad_time", ETF1_EPOCH, f"got {text[:40]!r}; give seconds since 1970 as digits"
        )
    return epoch_ms(int(text) * 1000, field=ETF1_EPOCH) // 1000

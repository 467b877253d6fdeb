"""What Redis answers about delayed messages, with those of the cold tier among them.

Each command that reads `due` gets the ledger's part: a page in the order of score and id, a count,
a sample in proportion. The ledger is read first: a message that is promoted meanwhile may be seen
twice, but not missed; on a page it is once. While the ledger does not answer, pages and counts are
of what Redis has; a single message that Redis does not know is then neither there nor not.

Counts of many cold messages take the database a while: they are read again after twenty times as
long as they took. Of very many, workers keep the totals of buckets (`ledger/sql/counts.py`). Small
counts are never cached: there, one message matters.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from delaybridge.errors import LedgerUnavailable, StoreError, text_of
from delaybridge.ledger.comparing.lost import absent_of
from delaybridge.ledger.recording.ledger_rows import STAMP_BYTES, bucket_in
from delaybridge.ledger.sql.opening import READ_AGAIN, SLOW_S
from delaybridge.ledger.sql.rows import COLD, DEAD, EXPIRED, LedgerRow
from delaybridge.store.messages.foreseen import is_foreseen
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.cold import ColdRecords, ColdSpan
    from delaybridge.ledger.sql.counts import ColdTotals

_DUE = ":due"
_DELAYED, _DEAD = 0, 3  # states, as `get` answers
_BRIEF = 1  # a page: only where messages are bound for
_HEAD = struct.Struct(">Bd")
_DRAWN = 2000  # numbers of rows that are looked up for a sample
_AT_A_TIME_S = 1.0
_MANY = 1000  # messages: a count that may be old
_NEVER_MS = -(2**62)  # nothing is due before
_RANGES = ("ZCARD", "ZCOUNT", "ZRANGE")
_Reply = Any


def reads_cold(command: RedisCommand[Any]) -> bool:
    """Whether the cold tier has a part in the answer."""
    if command.is_plain:
        return command.name in _RANGES and str(command.args[0]).endswith(_DUE)
    if command.name == "page":
        return command.keys[0].endswith(_DUE) and int(command.args[6]) <= _BRIEF
    if command.name == "tally":
        return command.keys[0].endswith(_DUE)
    return command.name in ("get", "sample")


@dataclass(slots=True)
class ColdCounts:
    """The last counts, as long as they are good enough. Of one process."""

    known: dict[ColdSpan, tuple[int, float]] = field(default_factory=dict)  # good until then

    def good(self) -> dict[ColdSpan, int | None]:
        """Those that are good now; others are forgotten."""
        now_s = time.monotonic()
        self.known = {span: seen for span, seen in self.known.items() if seen[1] > now_s}
        return {span: count for span, (count, _) in self.known.items()}

    def keep(self, counted: Mapping[ColdSpan, int | None], took_s: float) -> None:
        """Keep these counts, with the time that they took."""
        if took_s > SLOW_S:
            until_s = time.monotonic() + READ_AGAIN * took_s
            numbers = {span: each or 0 for span, each in counted.items() if not span.is_first}
            many = {span: each for span, each in numbers.items() if each >= _MANY}
            self.known |= {span: (each, until_s) for span, each in many.items()}


class ColdReads:
    """Adds the ledger's part to the commands of one pipeline."""

    def __init__(
        self,
        cold: ColdRecords,
        totals: ColdTotals,
        counts: ColdCounts,
        commands: Sequence[RedisCommand[Any]],
    ) -> None:
        self._cold, self._counts, self._totals = cold, counts, totals
        self.commands = [*commands]
        self._namespace = cold.records.namespace
        self._places = [i for i, command in enumerate(self.commands) if reads_cold(command)]

    def read_ledger(self) -> LedgerSteps[None]:
        """Read the ledger; `commands` then add what it has to their replies."""
        places = [i for i in self._places if self.commands[i].name != "get"]
        if not places:
            return
        try:
            counts = yield from self._counted(places)
            merges = (yield Work(partial(self._merges, counts))) if counts else {}
        except LedgerUnavailable:
            return
        for i, merge in merges.items():
            command = self.commands[i]
            parse = partial(_parse_merged, command.parse, merge)
            self.commands[i] = msgspec.structs.replace(command, parse=parse)

    def find(self, answers: list[Any]) -> LedgerSteps[None]:
        """Look for messages that no bucket knew, and give them to the one that asked for them."""
        absent = self._absent(answers)
        if not absent:
            return
        try:
            rows = yield Work(lambda on: self._cold.records.live(on, [*absent]))
            yield from self._give(self._asking(absent, rows), answers)
        except StoreError as exc:
            for i in (i for own in absent.values() for i in own):
                answers[i] = exc

    def _asking(
        self, absent: Mapping[str, Sequence[int]], rows: Sequence[LedgerRow]
    ) -> dict[int, LedgerRow]:
        """The row that each command is about: a cold one, if there is any."""
        buckets = {i: bucket_in(self.commands[i], self._namespace) for i in self._places}
        names = {i: (buckets[i], id) for id, own in absent.items() for i in own}
        asked_as = self._cold.records.numbers.asked_as([*names.values()])
        return {
            i: row
            for row in sorted(rows, key=lambda row: row.tier)
            for i in absent[row.id]
            if names[i] in asked_as(row)
        }

    def _give(self, asking: Mapping[int, LedgerRow], answers: list[Any]) -> LedgerSteps[None]:
        hot = [i for i, row in asking.items() if row.tier != COLD]
        # They were promoted meanwhile; or Redis has lost them.
        again = (yield [self.commands[i] for i in hot]) if hot else []
        for i, answer in zip(hot, again, strict=True):
            answers[i] = answer
        foreseen = [i for i in hot if answers[i] is None and is_foreseen(self.commands[i])]
        absent = yield from absent_of(self._cold.records, [asking[i] for i in foreseen])
        for i, row in asking.items():
            if row.tier == COLD or (i in foreseen and row.name in absent):
                state = _DEAD if row.state in (DEAD, EXPIRED) else _DELAYED
                answers[i] = self.commands[i].parse([state, _record(row), b"", b"", b"", 0])

    def _absent(self, answers: Sequence[Any]) -> dict[str, list[int]]:
        """Ids that no bucket knew -> the places of the commands that asked for them."""
        asked: dict[str, list[int]] = {}
        for i in self._places:
            if self.commands[i].name == "get":
                asked.setdefault(str(self.commands[i].args[0]), []).append(i)
        return {id: own for id, own in asked.items() if all(answers[i] is None for i in own)}

    def _merges(
        self, counts: Mapping[int, int | None], on: Connection
    ) -> Mapping[int, Callable[[_Reply], _Reply]]:
        return {i: self._merge(on, self.commands[i], count) for i, count in counts.items()}

    def _counted(self, places: Sequence[int]) -> LedgerSteps[dict[int, int | None]]:
        """For each command, how many cold messages are in its span, or when the first is due.

        Empty: none is cold. A transaction is not held, nor is an answer awaited, for as long as it
        takes to count all of very many.
        """
        spans = {i: _span(self.commands[i], self._namespace) for i in places}
        known, began_s = self._counts.good(), time.monotonic()
        unknown = [span for span in dict.fromkeys(spans.values()) if span not in known]
        counted: dict[ColdSpan, int | None] = {}
        while len(counted) < len(unknown):
            found = yield Work(partial(self._some_counted, unknown[len(counted) :]))
            if not found:
                return {}
            counted |= found
        self._counts.keep(counted, time.monotonic() - began_s)
        known |= counted
        return {i: known[span] for i, span in spans.items()}

    def _some_counted(
        self, spans: Sequence[ColdSpan], on: Connection
    ) -> dict[ColdSpan, int | None]:
        """The first of these spans, as many as a second is enough for; none: nothing is cold."""
        found: dict[ColdSpan, int | None] = {}
        if self._cold.is_empty(on):
            return found
        totals = self._totals.known(on)
        began_s, many = time.monotonic(), 1
        while len(found) < len(spans) and time.monotonic() - began_s < _AT_A_TIME_S:
            some, since_s = spans[len(found) : len(found) + many], time.monotonic()
            found |= zip(some, self._numbers(on, some, totals), strict=True)
            many = many * 4 if time.monotonic() - since_s < SLOW_S else 1
        return found

    def _numbers(
        self, on: Connection, spans: Sequence[ColdSpan], totals: Mapping[int, int]
    ) -> list[int | None]:
        """As `ColdRecords.counted`. What a span without an end has is the rest of the total."""
        asked = [_before(span) if _is_rest(span, totals) else span for span in spans]
        numbers = zip(spans, self._cold.counted(on, asked), strict=True)
        return [
            max(0, totals[span.bucket] - (number or 0)) if _is_rest(span, totals) else number
            for span, number in numbers
        ]

    def _merge(
        self, on: Connection, command: RedisCommand[Any], counted: int | None
    ) -> Callable[[_Reply], _Reply]:
        """counted: how many are in the span of the command, or when the first is due."""
        if command.name in ("ZCARD", "ZCOUNT"):
            return lambda reply: int(reply) + (counted or 0)
        if command.name == "ZRANGE":
            return lambda reply: _first(reply, counted)
        if not counted:
            return lambda reply: reply
        if command.name == "page":
            return self._page(on, command)
        drawn, listed = self._drawn(on, command, counted)
        if command.name == "tally":
            return lambda reply: _tallied(reply, drawn, listed)
        bounds = int(command.args[1]), int(command.args[2])
        return lambda reply: _sampled(reply, drawn, listed, *bounds)

    def _page(self, on: Connection, command: RedisCommand[Any]) -> Callable[[_Reply], _Reply]:
        from delaybridge.ledger.sql.cold import ColdSlice

        low, high, score, id, limit, most_bytes, brief = command.args[:7]
        after = (float(score), text_of(id)) if score != "" else None
        asked = ColdSlice(
            bucket_in(command, self._namespace), int(limit),
            None if low == "-inf" else float(low), None if high == "+inf" else float(high), after,
        )  # fmt: skip
        rows, more = self._cold.slice(on, asked, int(most_bytes))
        entries = [_entry(row, brief=bool(brief)) for row in rows]
        return lambda reply: _paged(reply, entries, int(limit), more=more)

    def _drawn(
        self, on: Connection, command: RedisCommand[Any], counted: int
    ) -> tuple[list[LedgerRow], int]:
        """Some cold messages of the bucket at random, all if there are few; how many there are."""
        from delaybridge.ledger.sql.cold import ColdSlice

        bucket = bucket_in(command, self._namespace)
        limit = int(command.args[0])
        if counted <= limit:
            rows, _ = self._cold.slice(on, ColdSlice(bucket, limit), 2**62)
            return rows, len(rows)
        first, last = self._cold.numbers(on)
        draw = random.Random(int(command.args[2]) if command.name == "tally" else None)
        numbers = {draw.randint(first, last) for _ in range(_DRAWN)}
        rows = self._cold.drawn(on, bucket, [*numbers])
        if not rows:  # there are many others
            rows, _ = self._cold.slice(on, ColdSlice(bucket, limit), 2**62)
        return rows[:limit], counted


def _parse_merged(
    parse: Callable[[_Reply], Any], merge: Callable[[_Reply], _Reply], reply: _Reply
) -> Any:
    return parse(merge(reply))


def _span(command: RedisCommand[Any], namespace: str) -> ColdSpan:
    """The messages that a command counts, or is about."""
    from delaybridge.ledger.sql.cold import ColdSpan

    if not command.is_plain:
        # Of a page only whether there is anything.
        return ColdSpan(bucket_in(command, namespace), is_first=command.name == "page")
    key, *args = command.args
    bucket = bucket_in(msgspec.structs.replace(command, keys=(str(key),)), namespace)
    if command.name == "ZCOUNT":
        return ColdSpan(bucket, _bound(args[0]), _bound(args[1]))
    is_first = command.name == "ZRANGE"
    return ColdSpan(bucket, _bound(args[0]) if "BYSCORE" in args else None, is_first=is_first)


def _is_rest(span: ColdSpan, totals: Mapping[int, int]) -> bool:
    return span.bucket in totals and span.high_ms is None and not span.is_first


def _before(span: ColdSpan) -> ColdSpan:
    """What is due before a span."""
    return span._replace(low_ms=None, high_ms=_NEVER_MS if span.low_ms is None else span.low_ms)


def _bound(text: object) -> int | None:
    plain = str(text).removeprefix("(")
    return None if plain.endswith("inf") else int(plain)


def _first(reply: Sequence[bytes], first_ms: int | None) -> Sequence[bytes]:
    if first_ms is None or (reply and float(reply[1]) <= first_ms):
        return reply
    return [b"", str(first_ms).encode()]


def _record(row: LedgerRow) -> bytes:
    """The row as Redis would have it."""
    return _HEAD.pack(1, row.score) + row.stamp.to_bytes(STAMP_BYTES, "big") + row.payload


def _entry(row: LedgerRow, *, brief: bool) -> list[Any]:
    """The row as a page has it: id, score, and the rest."""
    front = [row.id.encode(), repr(row.score).encode()]
    return [*front, row.destination.encode()] if brief else [*front, _record(row), b"", b"", 0]


def _paged(reply: list[Any], cold: list[list[Any]], limit: int, *, more: bool) -> list[Any]:
    """One page of both, by score and id, up to where one that has more was cut off."""
    if not cold:
        return reply
    size = len(cold[0])
    hot = [reply[i : i + size] for i in range(1, len(reply), size)]
    known = {each[0] for each in hot}
    merged = sorted([*hot, *(each for each in cold if each[0] not in known)], key=_place)
    ends = [_place(each[-1]) for each, cut in ((hot, reply[0] == 1), (cold, more)) if cut and each]
    page = [each for each in merged if not ends or _place(each) <= min(ends)][:limit]
    is_part = len(page) < len(merged) or bool(ends)
    return [int(is_part), *(value for each in page for value in each)]


def _place(entry: Sequence[Any]) -> tuple[float, bytes]:
    return float(entry[1]), entry[0]


def _tallied(reply: list[Any], cold: Sequence[LedgerRow], listed: int) -> list[Any]:
    """The tally of both: the one that was read in smaller part decides how much counts."""
    if not cold:  # the count is older than the rows
        return reply
    size, read, listed = reply[0], reply[1], max(listed, len(cold))
    share = min(read / size if size else 1.0, len(cold) / listed)
    counts: dict[bytes, list[float]] = {}
    for i in range(2, len(reply), 3):
        counts[reply[i]] = [reply[i + 1] * share * size / read, float(reply[i + 2])]
    for row in cold:
        found = counts.setdefault(row.destination.encode(), [0.0, row.score])
        found[0] += share * listed / len(cold)
        found[1] = min(found[1], row.score)
    rounded = [(name, max(1, round(many)), first) for name, (many, first) in counts.items()]
    total = sum(many for _, many, _ in rounded)
    flat: Iterable[Any] = (
        value for name, many, first in rounded for value in (name, many, repr(first).encode())
    )
    return [size + listed, size + listed if share == 1.0 else total, *flat]


def _sampled(
    reply: list[Any], cold: Sequence[LedgerRow], listed: int, beginning: int, end: int
) -> list[Any]:
    """The sample of both: as many of each as they have messages, in proportion.

    beginning, end: bytes of each record's two ends.
    """
    if not cold:
        return reply
    listed = max(listed, len(cold))
    hot = [reply[i : i + 4] for i in range(1, len(reply), 4)]
    share = min(len(hot) / reply[0] if reply[0] else 1.0, len(cold) / listed)
    found = hot[: max(1, round(share * reply[0]))] if hot else []
    for row in cold[: max(1, round(share * listed))]:
        ends, score = (row.payload[:beginning], row.payload[-end:]), repr(row.score).encode()
        found.append([ends[0], len(row.payload), score, ends[1]])
    return [reply[0] + listed, *(value for each in found for value in each)]

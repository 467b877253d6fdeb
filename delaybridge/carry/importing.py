"""An import: lines become messages, in batches, however many there are.

A line that is no message is told and left out. Imported again, a line is a duplicate while its
message is pending or dead. Nothing here does I/O: the caller runs each batch with his client.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from delaybridge.accept.accept import Accepted, DestinationCache, accept, check_id, check_key, when
from delaybridge.carry.line import BadLine, Line
from delaybridge.errors import DecodeError, MessageError, printable
from delaybridge.message import CARRIED, Answer, Limits, OnConflict, State, decode_record, rank_of
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import receipts
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import HEAD_SIZE, ORPHANED, Carried, ForDeadSet
from delaybridge.store.protocol.verbs import Each, Steps, bucket_of, new_stamp

BATCH_MESSAGES = 100  # of one pipeline: so few that what is doubled after a crash is little
_BATCH_BYTES = 4 * 2**20
_MOST_DESTINATIONS = 200
_REASON_CHARS = 2000
_QUARANTINED = re.compile(r"~[1-9]\Z")
_STORED = (Answer.CREATED, Answer.DUPLICATE)
_WHY = {
    Answer.CONFLICT: "another message with this id is pending or dead here; it stays",
    Answer.IN_FLIGHT: "a message with this id is being delivered here; import it again later",
}


class Ready(msgspec.Struct, gc=False):
    """A line ready to be stored. number, place: of the line. dead: what it is in the dead set."""

    number: int
    place: str
    line: Line
    message: Accepted
    dead: ForDeadSet | None


class Import:
    """One import into one namespace.

    counts: lines by what became of them: `created`, `duplicate`, `conflict`, `in_flight` (left
    out), `bad`. bound: those that are stored now, by destination: how many, and when the first and
    the last is due; of very many destinations all others as one. dry: nothing is stored. number:
    of the last line that was read.
    """

    def __init__(
        self, kinds: Mapping[str, str], limits: Limits, *, tell: Callable[[BadLine], None],
        takes_in_flight: bool = False, dry: bool = False, noun: str = "line",
    ) -> None:  # fmt: skip
        """tell: gets each line that is left out. noun: what a line is, as errors name it.

        takes_in_flight: also what was in flight when it was exported, and may have been delivered.
        """
        self._kinds, self._limits, self._cache = kinds, limits, DestinationCache()
        self._tell, self._takes_in_flight, self._noun, self.dry = tell, takes_in_flight, noun, dry
        self.counts, self.number = Counter[str](), 0
        self.bound: dict[str, tuple[int, int, int]] = {}

    def batches(self, lines: Iterable[tuple[int, Line | BadLine]]) -> Iterator[list[Ready]]:
        """The lines that are messages, in batches. lines: with their numbers."""
        batch: list[Ready] = []
        size = 0
        for self.number, line in lines:
            if (ready := self._ready(line)) is not None:
                batch.append(ready)
                size += len(ready.message.payload)
            if len(batch) >= BATCH_MESSAGES or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _ready(self, line: Line | BadLine) -> Ready | None:
        if isinstance(line, BadLine):
            self._leave_out("bad", line)
        elif line.state is State.IN_FLIGHT and not self._takes_in_flight:
            self.counts["in_flight"] += 1
        else:
            place = f"{self._noun} {self.number}, {line.id[:80]}"
            try:
                return Ready(self.number, place, line, *self._accepted(line))
            except MessageError as exc:
                self._leave_out("bad", BadLine(place, exc.field, f"{exc.code}: {exc.detail}"))
        return None

    def _leave_out(self, word: str, bad: BadLine) -> None:
        self.counts[word] += 1
        self._tell(bad)

    def _accepted(self, line: Line) -> tuple[Accepted, ForDeadSet | None]:
        """The message, a `Carried` if it was tried, and what it is if it is dead. MessageError.

        What was in flight may have been delivered since.
        """
        if line.record_base64 is None:
            message = accept(line.message(), self._kinds, self._limits, self._cache)
        else:
            message = self._as_stored(line, line.record_base64)
        is_maybe = line.maybe_delivered or line.state is State.IN_FLIGHT
        tried = failing = ""
        if line.attempts or is_maybe or line.first_due_ms is not None:
            tried = f"{line.attempts}:{int(is_maybe)}:{line.first_due_ms or ''}"
        if (reason := _reason(line)) is not None:
            if reason.startswith("ingress"):  # it lies in the bucket of the id it had
                own = _QUARANTINED.sub("", line.id).encode()
                message = msgspec.structs.replace(message, shard_key=own)
            at = (
                int(message.when) + message.rank / 256,
                "" if line.dead_ms is None else line.dead_ms,
            )
            one = new_stamp(), message.id, message.payload, reason, *at, tried
            return message, ForDeadSet(*one)
        if line.last_error is not None and line.failing_since_ms is not None:
            error = printable(line.last_error)
            failing = f"{line.failing_since_ms}\n{line.destination}\n{error}"
        if tried or failing:
            fields = msgspec.structs.asdict(message)
            message = Carried(**fields, tried=tried or "0:0:", failing=failing)
        return message, None

    def _as_stored(self, line: Line, payload: bytes) -> Accepted:
        """The record as it was exported, if it agrees with the line, and can be delivered."""
        check_id(line.id, self._limits)
        key, due = check_key(line.shard_key()), when(None, line.at(), self._limits)
        try:
            record = decode_record(payload)
            if (record.destination, record.key, record.tenant) != (
                line.destination,
                key,
                line.tenant,
            ):
                what = "record_base64 has another destination, key or tenant; leave it out"
                raise MessageError("bad_line", "record_base64", what)
            if line.state is not State.DEAD:
                destination, _ = self._cache.parse(record.destination, self._kinds)
                if not record.suits(destination.kind):
                    what = f"it is not of a broker of kind {destination.kind}; leave it out"
                    raise MessageError("bad_line", "record_base64", what)
        except DecodeError:
            if line.state is not State.DEAD:
                raise
        shard_key = line.id.encode() if key is None else key
        return Accepted(line.id, shard_key, due, rank_of(line.priority), payload)

    def store(self, calls: Calls, batch: Sequence[Ready]) -> Steps[list[Ready]]:
        """Store a batch, or look what would become of it; those that are stored now.

        StoreError: some may be stored; the same batch again stores the others.
        """
        answers = yield from (_foreseen if self.dry else _stored)(calls, batch)
        for ready, answer in zip(batch, answers, strict=True):
            if answer not in _STORED:
                self._leave_out("conflict", BadLine(ready.place, "id", _WHY[answer]))
                continue
            self.counts[answer.value] += 1
            to, due_ms = ready.line.destination, int(ready.message.when)
            if to not in self.bound and len(self.bound) >= _MOST_DESTINATIONS:
                to = "others"
            count, first_ms, last_ms = self.bound.get(to, (0, due_ms, due_ms))
            self.bound[to] = count + 1, min(first_ms, due_ms), max(last_ms, due_ms)
        return [one for one, answer in zip(batch, answers, strict=True) if answer in _STORED]


def _reason(line: Line) -> str | None:
    """Why it is dead here; None: it is to be delivered.

    A parked one is due: its destination may take it here. One that was parked for the operator is
    dead, so that it waits for him.
    """
    if line.state is State.DEAD:
        return printable(line.reason or "imported")[:_REASON_CHARS]
    if line.state is State.PARKED and (line.last_error or "").startswith(ORPHANED):
        return f"{ORPHANED}: it waited for the operator where it was exported"
    return None


def _stored(calls: Calls, batch: Sequence[Ready]) -> Steps[list[Answer]]:
    answers: dict[int, Answer] = {}
    for kind, policy in ((Accepted, OnConflict.FAIL), (Carried, CARRIED)):
        alive = {
            i: e.message for i, e in enumerate(batch) if not e.dead and type(e.message) is kind
        }
        found = yield from calls.schedule_each([*alive.values()], policy)
        answers |= zip(alive, (each.answer for each in receipts(found)), strict=True)
    if dead := {i: one.dead for i, one in enumerate(batch) if one.dead}:
        yield from calls.open(again=True)
        buckets = [_bucket(calls, batch[i]) for i in dead]
        asked = zip(buckets, dead.values(), strict=True)
        replies = yield Each(bucket.quarantine([one], first=True) for bucket, one in asked)
        yield from calls.check(buckets, replies)
        if None in replies:
            raise calls.wiped()
        answers |= zip(dead, (answer for (answer,) in replies), strict=True)
    return [answers[i] for i in range(len(batch))]


def _foreseen(calls: Calls, batch: Sequence[Ready]) -> Steps[list[Answer]]:
    """What `_stored` would answer now; of ids that were delivered lately it may say `created`."""
    yield from calls.open()
    rows = yield [_bucket(calls, one).get(one.message.id) for one in batch]
    answers: list[Answer] = []
    for one, row in zip(batch, rows, strict=True):
        own = row.record[HEAD_SIZE:] if row else b""
        # Of one that was overdue when it came its time follows.
        known = Answer.DUPLICATE if one.message.payload in (own, own[:-8]) else Answer.CONFLICT
        met = Answer.IN_FLIGHT if row and row.fired else known
        answers.append(met if row else Answer.CREATED)
    return answers


def _bucket(calls: Calls, one: Ready) -> Bucket:
    return calls.buckets[bucket_of(one.message.shard_key, len(calls.buckets))]

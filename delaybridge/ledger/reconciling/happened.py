"""What happened to messages, until the ledger has it.

What was delivered Redis keeps as well (`gone`). But if it is wiped, or comes back with an older
past, while the ledger has not heard of it, only this worker can say so.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from array import array
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.sql.rows import (
    DEAD,
    DELAYED,
    EXPIRED,
    IN_FLIGHT,
    OVER,
    PUBLISHED,
    RowName,
    Step,
)
from delaybridge.scan.leases.exits import ExitReport, Exits, SentMessage
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work
from delaybridge.worker.eventlog import say

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records

_MOST_STEPS = 100_000  # history that waits for the ledger; more is left out
_PAGE = 5000  # messages in one transaction
_PAGE_STEPS = 1000  # of history: each burial may have an error of its own
_MOST_BYTES = 64 * 2**20
_BATCH_BYTES = 350  # besides what its messages take
_END = "\0"  # no id contains it


class Delivered(NamedTuple):
    """A message that left. due_ms: when it was due then; at_ms: when it left."""

    name: RowName
    due_ms: int
    at_ms: int


class Burial(NamedTuple):
    """A message that was given up. stamp: of the call that scheduled it."""

    step: Step
    stamp: int

    @property
    def name(self) -> RowName:
        """Its row: a later call of the same id may have one by now."""
        return self.step.bucket, self.step.id, self.stamp


class _Batch(NamedTuple):
    """Messages that left a bucket together. number: grows from batch to batch."""

    number: int
    ids: str
    stamps: bytes
    due_ms: array[int]
    at_ms: int

    @property
    def size(self) -> int:
        return len(self.ids) + len(self.stamps) + 8 * len(self.due_ms) + _BATCH_BYTES

    def names(self, bucket: int) -> Iterator[RowName]:
        stamps = struct.unpack(f">{len(self.due_ms)}I", self.stamps)
        return zip(repeat(bucket), self.ids.split(_END), stamps)


class Happened:
    """A worker keeps it when its scanner starts again.

    steps, dead: history that the ledger is to get. messages: how many are remembered.
    silence: of the ledger.
    """

    def __init__(self, worker: str, most_bytes: int = _MOST_BYTES) -> None:
        self.worker, self._most_bytes = worker, most_bytes
        self.steps: list[Step] = []
        self.dead: list[Burial] = []
        self._telling = asyncio.Lock()  # history
        self.messages = self._bytes = self._number = 0
        self.silence = Silence()
        self._is_full = False
        self._batches = defaultdict[int, deque[_Batch]](deque)
        self._exits: dict[int, Exits] = {}  # of the last sessions that might claim

    def exits_stored(self, session: Session, report: ExitReport, now_ms: int) -> None:
        """The store has these exits."""
        self.left(session.bucket.number, report.published, now_ms)
        who = self.worker, session.bucket.number
        for item, delay_ms, _, error in report.retried:
            if delay_ms is not None:
                reason = error.partition("\n")[2]
                self.steps.append(Step(item.id, IN_FLIGHT, DELAYED, now_ms, *who, error=reason))
        for item, _, _, reason in report.buried:
            if item.stamp:  # else no row is known to be its own
                state = EXPIRED if reason.startswith(EXPIRED) else DEAD
                step = Step(item.id, IN_FLIGHT, state, now_ms, *who, error=reason)
                self.dead.append(Burial(step, int.from_bytes(item.stamp, "big")))
        for kept in (self.steps, self.dead):
            if len(kept) > _MOST_STEPS:
                del kept[: len(kept) - _MOST_STEPS]

    # what was delivered

    def left(self, bucket: int, copies: Sequence[SentMessage], now_ms: int) -> None:
        """These are delivered, or not to be delivered again."""
        if not copies:
            return
        self._number += 1
        batch = _Batch(
            self._number, _END.join([copy.id for copy in copies]),
            b"".join([copy.stamp for copy in copies]),
            array("q", [copy.due_ms for copy in copies]), now_ms,
        )  # fmt: skip
        self._batches[bucket].append(batch)
        self._bytes += batch.size
        self.messages += len(copies)
        while self._bytes > self._most_bytes:
            self._drop(max(self._batches.values(), key=len))
            if not self._is_full:
                hint = "if Redis is wiped before the ledger answers, some come twice"
                say(logging.WARNING, "ledger_memory_full", messages=self.messages, hint=hint)
            self._is_full = True

    def last(self, bucket: int) -> int:
        """The number of the last batch so far; to be passed to `forget`."""
        batches = self._batches.get(bucket)
        return batches[-1].number if batches else 0

    def forget(self, bucket: int, last: int) -> None:
        """The ledger has everything up to this batch, or is to hear of it from `gone`."""
        batches = self._batches.get(bucket, deque[_Batch]())
        while batches and batches[0].number <= last:
            self._drop(batches)
        if not batches:
            self._batches.pop(bucket, None)
        self._is_full = self._is_full and bool(self._batches)

    def _drop(self, batches: deque[_Batch]) -> None:
        batch = batches.popleft()
        self._bytes -= batch.size
        self.messages -= len(batch.due_ms)

    @property
    def buckets(self) -> Sequence[int]:
        """Those of which something is remembered."""
        return [*self._batches]

    @property
    def known(self) -> set[int]:
        """Those of which something may have to be told if they were lost."""
        return {*self._batches, *self._exits}

    def of_bucket(self, bucket: int) -> list[Delivered]:
        """What is remembered of a bucket."""
        found: list[Delivered] = []
        for batch in self._batches.get(bucket, ()):
            found += map(Delivered, batch.names(bucket), batch.due_ms, repeat(batch.at_ms))
        return found

    def times(self, bucket: int) -> dict[RowName, int]:
        """When each of them left."""
        found: dict[RowName, int] = {}
        for batch in self._batches.get(bucket, ()):
            found |= dict.fromkeys(batch.names(bucket), batch.at_ms)
        return found

    async def tell(self, ledger: Ledger, records: Records, bucket: int) -> None:
        """Have the ledger know what is remembered of a bucket, which Redis may have forgotten.

        Asks it also if that is nothing.
        """
        last, found = self.last(bucket), self.of_bucket(bucket)
        for first in range(0, max(1, len(found)), _PAGE):
            work = partial(_hand_over, records, self.worker, found[first : first + _PAGE])
            await ledger.run_async(Work(work))
        self.forget(bucket, last)

    async def tell_history(self, ledger: Ledger, records: Records) -> None:
        """Have the ledger know what else happened; returns when all of it is told."""
        async with self._telling:
            while self.steps or self.dead:
                page = self.steps[:_PAGE_STEPS], self.dead[:_PAGE_STEPS]
                del self.steps[:_PAGE_STEPS], self.dead[:_PAGE_STEPS]
                try:
                    await ledger.run_async(Work(partial(_note, records, *page)))
                except (Exception, asyncio.CancelledError):
                    self.steps[:0], self.dead[:0] = page
                    raise

    # sessions

    def is_owner(self, session: Session) -> None:
        """It goes on with its bucket as the one before it left it."""
        self._exits[session.bucket.number] = session.exits

    def has_lost(self, bucket: int, now_ms: int) -> None:
        """Redis forgot what became of a bucket.

        So what brokers confirmed to its last session counts, whether or not Redis has heard of it.
        """
        if (exits := self._exits.pop(bucket, None)) is not None:
            self.left(bucket, exits.untold, now_ms)


def _hand_over(records: Records, worker: str, found: Sequence[Delivered], on: Any) -> None:
    """Have the ledger know what was delivered of a bucket that may have forgotten it.

    Not of what was moved since: by another due time, it is to come again.
    """
    known = records.states(on, [each.name for each in found])
    new: dict[RowName, Step] = {}
    for name, due_ms, at_ms in found:
        state, row_due_ms = known.get(name, (PUBLISHED, 0))
        if state not in OVER and row_due_ms == due_ms:
            new[name] = Step(name[1], IN_FLIGHT, PUBLISHED, at_ms, worker, name[0])
    if new:
        records.change(on, [*new], PUBLISHED, max(step.at_ms for step in new.values()))
        records.note(on, [*new.values()])


def _note(records: Records, steps: Sequence[Step], dead: Sequence[Burial], on: Any) -> None:
    records.note(on, [*steps, *(each.step for each in dead)])
    alike = defaultdict[tuple[str, str], list[Burial]](list)
    for each in dead:
        alike[each.step.after, each.step.error].append(each)
    for (state, error), some in alike.items():
        at_ms = max(each.step.at_ms for each in some)
        records.change(on, [each.name for each in some], state, at_ms, error=error)

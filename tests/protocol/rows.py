"""The ledger's rows beside a bucket, in traces: what is committed, told, and read.

A call and the commit of its row are one step here; `ledger.py` explores their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from delaybridge.message import Answer
from tests.protocol.bucket import Bucket
from tests.protocol.calls import ClientCall, Lacking, OwnerCall, Reading

_MOST = 2  # readings that somebody may still restore by
_STORED = (Answer.CREATED, Answer.REPLACED)
_MOVING = ("reschedule", "kick", "extend", "release")


class Row(NamedTuple):
    """is_refused: its call was not accepted, and it is to be withdrawn."""

    id: int
    stamp: int
    score: int
    is_live: bool = True
    is_dead: bool = False
    is_refused: bool = False


class Rows(NamedTuple):
    """rows: in the order of their stamps. readings: of which any may be restored, also twice.

    comparisons: how many names were given.
    """

    rows: tuple[Row, ...] = ()
    readings: tuple[Reading, ...] = ()
    comparisons: int = 0

    @property
    def live(self) -> list[Row]:
        return [row for row in self.rows if row.is_live]

    def of(self, stamp: int) -> Row | None:
        return next((row for row in self.rows if row.stamp == stamp), None)

    def with_row(self, row: Row) -> Rows:
        kept = [each for each in self.rows if each.stamp != row.stamp]
        return self._replace(rows=tuple(sorted([*kept, row], key=lambda each: each.stamp)))

    def without(self, stamp: int) -> Rows:
        return self._replace(rows=tuple(each for each in self.rows if each.stamp != stamp))

    def ended(self, stamp: int) -> Rows:
        row = self.of(stamp)
        return self if row is None else self.with_row(row._replace(is_live=False))

    def read(self, bucket: Bucket) -> Rows:
        """Somebody reads how the bucket stands, and rows. Of an id the first call is brought."""
        firsts: dict[int, int] = {}
        for row in self.live:
            firsts.setdefault(row.id, row.stamp)
        rows = tuple(
            Lacking(row.id, row.stamp, row.score, firsts[row.id] == row.stamp, row.is_dead)
            for row in self.live
        )
        reading = Reading(bucket.generation, bucket.healed, rows)
        return self._replace(readings=(*self.readings, reading)[-_MOST:])

    def told(self, bucket: Bucket, generation: int) -> Rows:
        """The ledger gets what left up to this generation."""
        told = self
        for each in bucket.gone:
            if each.generation <= generation:
                told = told.ended(each.stamp)
        return told

    def after(self, call: ClientCall | OwnerCall, answer: Any, bucket: Bucket) -> Rows:
        """What is committed of a call."""
        if isinstance(call, OwnerCall):
            return self._after_bury(call) if call.verb == "bury" and answer else self
        if call.verb == "schedule":
            return self._after_schedule(call, answer)
        if call.verb == "cancel" and isinstance(answer, tuple):
            return self.ended(answer[1])
        return self._after_move(bucket) if call.verb in _MOVING else self

    def _after_schedule(self, call: ClientCall, answers: list[Answer]) -> Rows:
        after = self
        for target, answer in zip(call.targets, answers, strict=True):
            is_refused = answer not in _STORED
            before = after.of(target.stamp)
            if before is None:
                row = Row(*target[:1], target.stamp, target.score, is_refused=is_refused)
                after = after.with_row(row)
            elif before.is_live:
                after = after.with_row(before._replace(is_refused=is_refused))
        return after

    def _after_move(self, bucket: Bucket) -> Rows:
        after = self
        for id, record in enumerate(bucket.messages):
            row = None if record is None else self.of(record.stamp)
            if row is not None and record is not None and row.is_live:
                is_dead = bucket.dead[id]
                after = after.with_row(row._replace(score=record.score, is_dead=is_dead))
        return after

    def _after_bury(self, call: OwnerCall) -> Rows:
        after = self
        for copy in call.copies:
            row = self.of(copy.stamp)
            if row is not None and row.is_live:
                after = after.with_row(row._replace(is_dead=True))
        return after

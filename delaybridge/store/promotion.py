"""Promotion: messages of the cold tier, which are in the ledger alone, go into Redis in time.

A row is restored as any other that Redis lacks, and then counts as one that is there. Until then it
stays cold: whoever schedules, cancels or reschedules its id brings it, or ends it, himself, and the
promoter finds it here, or gone. So promoters may work side by side, and begin again after a crash;
each bucket has one anyway, the worker that holds it. No row is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge import failpoints
from delaybridge.ledger.rows import COLD, HOT, LedgerRow, Name
from delaybridge.ledger.work import Work
from delaybridge.store.agreement import bring
from delaybridge.store.command import LedgerSteps
from delaybridge.store.healing import standing
from delaybridge.store.verbs import Bucket

if TYPE_CHECKING:
    from delaybridge.ledger.cold import ColdRecords

_PAGE = 1000


def promote_due(bucket: Bucket, cold: ColdRecords, until_ms: int) -> LedgerSteps[int]:
    """Bring a bucket's cold messages that are due by then into Redis; how many there were."""
    total, after = 0, (-1, -1)
    while True:
        (as_of,) = yield [standing(bucket)]
        rows = yield Work(partial(_due, cold, bucket.number, until_ms, after))
        yield from _bring(bucket, cold, as_of, rows)
        total += len(rows)
        if len(rows) < _PAGE:
            return total
        after = rows[-1].due_ms, rows[-1].number


def promote(
    bucket: Bucket, cold: ColdRecords, names: Sequence[Name], *, tier: int = COLD
) -> LedgerSteps[int]:
    """Bring these messages of a bucket into Redis; how many are live, of this tier or a higher one.

    HOT: also those that Redis should have, but may lack.
    """
    (as_of,) = yield [standing(bucket)]
    rows = yield Work(partial(_live, cold, names, tier))
    yield from _bring(bucket, cold, as_of, rows)
    return len(rows)


def _bring(
    bucket: Bucket, cold: ColdRecords, as_of: Any, rows: Sequence[LedgerRow]
) -> LedgerSteps[None]:
    names = [row.name[:2] for row in rows]
    while rows and (yield from bring(bucket, as_of, rows)) is None:
        (as_of,) = yield [standing(bucket)]
        rows = yield Work(partial(_live, cold, names, HOT))
    if failpoints.ARE_SET:
        failpoints.reach("ledger.promoted")
    if rows:
        yield Work(partial(_arrived, cold, rows))


def _due(
    cold: ColdRecords, bucket: int, until_ms: int, after: tuple[int, int], on: Any
) -> list[LedgerRow]:
    return cold.due(on, bucket, until_ms, after, _PAGE)


def _live(cold: ColdRecords, names: Sequence[Name], tier: int, on: Any) -> list[LedgerRow]:
    return cold.live(on, names, tier=tier)


def _arrived(cold: ColdRecords, rows: Sequence[LedgerRow], on: Any) -> None:
    cold.arrived(on, rows)

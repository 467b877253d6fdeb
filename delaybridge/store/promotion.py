"""Promotion: messages of the cold tier, which are in the ledger alone, go into Redis in time.

A row is marked as on its way, restored as any other that Redis lacks, and then counts as one that
is in Redis. Until then it stays cold for everyone else: whoever schedules its id brings it himself.
From the mark on nobody reschedules it in the ledger. If the process dies in between, the next one
begins again. So promoters may work side by side.
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
    total = 0
    while True:
        (as_of,) = yield [standing(bucket)]
        rows = yield Work(partial(_take_due, cold, bucket.number, until_ms))
        if failpoints.ARE_SET:
            failpoints.reach("ledger.promoting")
        yield from _bring(bucket, cold, as_of, rows)
        total += len(rows)
        if len(rows) < _PAGE:
            return total


def promote(
    bucket: Bucket, cold: ColdRecords, names: Sequence[Name], *, tier: int = COLD
) -> LedgerSteps[int]:
    """Bring these messages of a bucket into Redis; how many are live, of this tier or a higher one.

    HOT: also those that Redis should have, but may lack.
    """
    (as_of,) = yield [standing(bucket)]
    rows = yield Work(lambda on: cold.take(on, names, tier=tier))
    yield from _bring(bucket, cold, as_of, rows)
    return len(rows)


def _bring(
    bucket: Bucket, cold: ColdRecords, as_of: Any, rows: Sequence[LedgerRow]
) -> LedgerSteps[None]:
    while rows and (yield from bring(bucket, as_of, rows)) is None:
        names = [row.name[:2] for row in rows]
        (as_of,) = yield [standing(bucket)]
        rows = yield Work(partial(_take, cold, names))
    if rows:
        yield Work(lambda on: cold.arrived(on, rows))


def _take_due(cold: ColdRecords, bucket: int, until_ms: int, on: Any) -> list[LedgerRow]:
    return cold.take_due(on, bucket, until_ms, _PAGE)


def _take(cold: ColdRecords, names: Sequence[Name], on: Any) -> list[LedgerRow]:
    return cold.take(on, names, tier=HOT)

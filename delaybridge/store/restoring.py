"""Restoring what Redis lacks, by the ledger, in all buckets: on request of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaybridge.ledger.rows import HOT
from delaybridge.ledger.work import Work
from delaybridge.store.agreement import Looked, OnPage, WantedRows, restore_missing
from delaybridge.store.calls import Calls
from delaybridge.store.command import LedgerSteps

if TYPE_CHECKING:
    from delaybridge.ledger.records import Records


def restore_all(
    calls: Calls, records: Records, wanted: WantedRows, on_page: OnPage
) -> LedgerSteps[Looked]:
    """Restore the messages that Redis lacks; how many rows were looked at, and were missing."""
    total = Looked()
    numbers: set[int] | None = None
    buckets = yield from calls.open()
    if (ids := wanted.ids) is not None:
        rows = yield Work(lambda on: records.live(on, ids))
        rows = [row for row in rows if row.tier == HOT and wanted.has(row)]
        if not rows:
            return total
        numbers, dues = {row.bucket for row in rows}, [row.due_ms for row in rows]
        wanted = wanted._replace(from_ms=min(dues), to_ms=max(dues))
    for bucket in buckets:
        if numbers is None or bucket.number in numbers:
            one = yield from restore_missing(bucket, records, wanted, on_page)
            total = Looked(total.rows + one.rows, total.absent + one.absent)
    return total

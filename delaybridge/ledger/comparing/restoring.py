"""Restoring by the ledger's record: what Redis lacks, in all buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delaybridge.ledger.comparing.agreement import Looked, OnPage, WantedRows, restore_missing
from delaybridge.ledger.comparing.along import regrouped
from delaybridge.ledger.sql.rows import HOT
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import LedgerSteps, Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records
    from delaybridge.ledger.sql.rows import LedgerRow


def restore_all(
    calls: Calls, records: Records, wanted: WantedRows, on_page: OnPage
) -> LedgerSteps[Looked]:
    """Restore the messages that Redis lacks; how many rows were looked at, and were missing."""
    buckets: Sequence[Bucket] = yield from calls.every_bucket()
    yield from regrouped(records)
    if (ids := wanted.ids) is not None:
        rows: list[LedgerRow] = yield Work(lambda on: records.live(on, ids))
        kept = [r for r in rows if r.tier == HOT and r.due_ms >= wanted.from_ms and wanted.has(r)]
        numbers, dues = {row.bucket for row in kept}, [row.due_ms for row in kept]
        buckets = [bucket for bucket in buckets if bucket.number in numbers]
        if dues:
            wanted = wanted._replace(from_ms=min(dues), to_ms=max(dues))
    total = Looked()
    for bucket in buckets:
        one = yield from restore_missing(bucket, records, wanted, on_page)
        total = Looked(total.rows + one.rows, total.absent + one.absent)
    return total

"""What operators do by the ledger's record, in all buckets: restore what Redis lacks, purge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaybridge.ledger.rows import HOT
from delaybridge.ledger.work import Work
from delaybridge.message import State
from delaybridge.store.agreement import Looked, OnPage, WantedRows, restore_missing
from delaybridge.store.calls import Calls
from delaybridge.store.command import LedgerSteps
from delaybridge.store.selection import Selected

if TYPE_CHECKING:
    from delaybridge.ledger.records import Records
    from delaybridge.ledger.rows import LedgerRow

_PAGE_ROWS = 10_000


def restore_all(
    calls: Calls, records: Records, wanted: WantedRows, on_page: OnPage
) -> LedgerSteps[Looked]:
    """Restore the messages that Redis lacks; how many rows were looked at, and were missing."""
    buckets = yield from calls.open()
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


def recorded(
    _: Calls, *, records: Records, place: str, after: int, dead: bool
) -> LedgerSteps[tuple[list[Selected], int | None]]:
    """A page of the unfinished messages of a destination, and after which number the next begins.

    None: this was the last one. dead: dead messages, too.
    """
    rows = yield Work(lambda on: records.of_place(on, place, after, _PAGE_ROWS, dead=dead))
    found = [Selected(id, bucket, State.DELAYED) for bucket, id, _ in rows]
    return found, rows[-1][2] if len(rows) == _PAGE_ROWS else None

"""Promotion: messages of the cold tier, which are in the ledger alone, go into Redis in time.

A row is restored as any other that Redis lacks, and then counts as one that is there. Until then it
stays cold: whoever schedules, cancels or reschedules its id brings it, or ends it, himself, and the
promoter finds it here, or gone. So promoters may work side by side, and begin again after a crash;
each bucket has one anyway, the worker that holds it. No row is locked.

Of several calls for an id only the first that is live is brought: the others may not have been
answered yet. tests/protocol explores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge import failpoints
from delaybridge.ledger.comparing.agreement import bring
from delaybridge.ledger.comparing.healing import Presence, standing
from delaybridge.ledger.sql.rows import COLD, LedgerRow, Name
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Each, LedgerSteps, Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords

_PAGE = 500  # rows: to read them keeps the interpreter for about a millisecond
_THERE = (Presence.ABSENT, Presence.HERE)  # restored now, or before
_START = -1, -1


class Promoted(NamedTuple):
    """How far a bucket's cold messages were brought; epoch milliseconds.

    messages: looked at. at_ms: when the first were; those due until `until_ms` are looked for.
    after: due time and number of the last one; None: there are no more. ahead_ms: how long before
    it is due that one was brought.
    """

    messages: int = 0
    at_ms: int = 0
    until_ms: int = 0
    after: tuple[int, int] | None = _START
    ahead_ms: int = 0


def promote_due(
    bucket: Bucket,
    cold: ColdRecords,
    window_ms: int,
    so_far: Promoted = Promoted(),  # noqa: B008
) -> LedgerSteps[Promoted]:
    """Bring the next page of a bucket's cold messages that are due within this time into Redis.

    By the clock of the bucket's server; that of a worker may differ.
    """
    now_us, as_of = yield [registry.store_time(bucket.key("lease")), standing(bucket)]
    now_ms, after = now_us // 1000, so_far.after or _START
    due = partial(cold.due, bucket=bucket.number, until_ms=now_ms + window_ms, after=after)
    rows = yield Work(partial(due, limit=_PAGE))
    yield from _bring(bucket, cold, as_of, rows)
    first_ms = so_far.at_ms or now_ms
    found = Promoted(so_far.messages + len(rows), first_ms, first_ms + window_ms, None, window_ms)
    if len(rows) < _PAGE:
        return found
    last = rows[-1]
    return found._replace(after=(last.due_ms, last.number), ahead_ms=last.due_ms - now_ms)


def promote(
    bucket: Bucket, cold: ColdRecords, names: Sequence[Name], *, tier: int = COLD
) -> LedgerSteps[set[Name]]:
    """Bring these messages of a bucket into Redis, those that are live and of this tier.

    HOT: also those that Redis should have, but may lack. Answers with those that are there.
    """
    (as_of,) = yield Each([standing(bucket)])  # it may have given everything away
    first = yield Work(partial(cold.first, names=names))
    asked = {row.number: name for name, row in first.items()}
    rows = [row for row in first.values() if row.tier >= tier]
    there = yield from _bring(bucket, cold, as_of, rows)
    return {asked[number] for number in there if number in asked}


def _bring(
    bucket: Bucket, cold: ColdRecords, as_of: Any, rows: Sequence[LedgerRow]
) -> LedgerSteps[set[int]]:
    names = [row.name[:2] for row in rows]
    while (found := (yield from bring(bucket, cold.records, as_of, rows))) is None:
        (as_of,) = yield Each([standing(bucket)])
        rows = [*(yield Work(partial(cold.first, names=names))).values()]
    failpoints.reach("ledger.promoted")
    # Another message may have the id, or it has just left: then the row stays as it is.
    there = [row for row, where in zip(rows, found, strict=True) if where in _THERE]
    if there:
        yield Work(partial(cold.arrived, rows=there))
    return {row.number for row in there}

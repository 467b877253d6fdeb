"""What Redis lost: messages that the ledger has, as bulk verbs look for them.

Workers restore them soon; whoever purges a destination meanwhile means them, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError
from delaybridge.ledger.comparing.agreement import PAGE_MESSAGES, where
from delaybridge.ledger.comparing.healing import Presence, standing
from delaybridge.ledger.sql.rows import DEAD, EXPIRED, LedgerRow, RowName
from delaybridge.message import State
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import UNTRIED, joined_record
from delaybridge.store.protocol.recorder import LostSlice
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import Each, LedgerSteps, RedisCommand, Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records


def lost(
    bucket: Bucket, records: Records, after: tuple[int, int], to: str | None = None
) -> LedgerSteps[LostSlice]:
    """Messages of a bucket that Redis lacks, by due time and call, after these two.

    to: how their destinations begin. Raises why the bucket cannot answer: the caller goes on.
    """
    asked = partial(records.page, bucket=bucket.number, limit=PAGE_MESSAGES, is_brief=True, to=to)
    found: list[Presence] | None = None
    while found is None:  # too much has left since: read it again
        as_of = yield from _of_bucket(standing(bucket))
        page: list[LedgerRow] = yield Work(partial(asked, after=after))
        found = yield from where(bucket, records, as_of, page)
    absent = [
        row.number
        for row, place in zip(page, found, strict=True)
        if place is Presence.ABSENT
    ]  # fmt: skip
    rows = (yield Work(partial(records.of_numbers, numbers=absent))) if absent else []
    following = (page[-1].due_ms, page[-1].number) if len(page) == PAGE_MESSAGES else None
    return LostSlice([*map(_row, rows)], following)


def absent_of(records: Records, rows: Sequence[LedgerRow]) -> LedgerSteps[set[RowName]]:
    """Those of these rows whose messages Redis lacks, and that have not left it."""
    if not rows:
        return set()
    namespace = records.namespace
    birth = yield from _of_bucket(registry.read_birth(namespace))
    by_bucket = defaultdict[int, list[LedgerRow]](list)
    for row in rows:
        by_bucket[row.bucket].append(row)
    absent = set[RowName]()
    for number, own in by_bucket.items():
        bucket = Bucket(namespace, number, birth[1] if birth else "")
        (as_of,) = yield Each([standing(bucket)])
        found = yield from where(bucket, records, as_of, own)
        absent |= {
            row.name
            for row, place in zip(own, found or (), strict=False)
            if place is Presence.ABSENT
        }
    return absent


def _of_bucket(command: RedisCommand[Any]) -> LedgerSteps[Any]:
    (answer,) = yield Each([command])
    if isinstance(answer, StoreError):
        raise answer
    return answer


def _row(row: LedgerRow) -> Row:
    """The message as Redis would show it."""
    is_dead = row.state in (DEAD, EXPIRED)
    record = joined_record(row.score, row.stamp, row.payload)
    state = State.DEAD if is_dead else State.DELAYED
    return Row(row.id, state, row.score, record, UNTRIED, row.error if is_dead else "", False)

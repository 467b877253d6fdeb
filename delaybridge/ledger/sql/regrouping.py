"""Rows of buckets that have ended get the numbers of those that have their messages now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.exc import IntegrityError

from delaybridge.ledger.sql.engines import attempted
from delaybridge.ledger.sql.records import ROW, Records, at_tier, numbered, parts
from delaybridge.ledger.sql.rows import COLD, HOT, LedgerRow
from delaybridge.ledger.sql.tables import message

_ROWS = 1000


def regroup(records: Records, ended: Sequence[int], on: Connection) -> bool:
    """Give some live rows their new numbers; whether there may be more.

    ended: of the buckets that messages move from now; those of earlier resizes have ended anyway.
    """
    if (layout := records.numbers.of_resized) is None:
        return False
    old = message.c.bucket < layout.here.first
    which = old | message.c.bucket.in_(ended) if ended else old
    is_full = False
    for tier in (HOT, COLD):
        query = select(*ROW).where(at_tier(on, tier), records.is_own, which).limit(_ROWS)
        rows = records.read(on, query)
        is_full |= len(rows) == _ROWS
        by_bucket = defaultdict[int, list[LedgerRow]](list)
        for row in rows:
            by_bucket[records.numbers.path(row)[-1]].append(row)
        for number, own in by_bucket.items():
            _renumber(records, on, own, number)
    return is_full


def _renumber(records: Records, on: Connection, rows: Sequence[LedgerRow], bucket: int) -> None:
    changed = update(message).values(bucket=bucket)
    try:
        with attempted(on):
            for some in parts(on, [row.number for row in rows], 1):
                on.execute(changed.where(numbered(on, some)))
    except IntegrityError:  # a call was made again, under both numbers
        for row in rows:
            one = numbered(on, [row.number])
            other = message.c.id == row.id, message.c.stamp == row.stamp
            known = select(message.c.number).where(records.is_own, message.c.bucket == bucket)
            is_twice = on.execute(known.where(*other)).first() is not None
            on.execute(delete(message).where(one) if is_twice else changed.where(one))

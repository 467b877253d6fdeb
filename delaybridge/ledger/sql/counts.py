"""Counts of very many cold messages, kept in the ledger for whoever asks next."""

from __future__ import annotations

import time

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from delaybridge.ledger.sql.cold import ColdRecords, ColdSpan
from delaybridge.ledger.sql.engines import attempted
from delaybridge.ledger.sql.opening import READ_AGAIN, SLOW_S
from delaybridge.ledger.sql.tables import counted


class ColdTotals:
    """The totals of one namespace, in transactions of the caller."""

    def __init__(self, cold: ColdRecords) -> None:
        self._cold, self._namespace = cold, cold.records.namespace
        self._own = counted.c.namespace == self._namespace

    def known(self, on: Connection) -> dict[int, int]:
        """Bucket -> how many cold messages it has, of those of which that is known well enough."""
        which = self._own, counted.c.until_ms > _now_ms()
        found = on.execute(select(counted.c.bucket, counted.c.messages).where(*which))
        return {row.bucket: row.messages for row in found}

    def count(self, on: Connection, bucket: int, others: int) -> float:
        """Count those of a bucket, and keep it if that took long; how many seconds it took.

        others: buckets that are counted in turn, each after twenty times as long.
        """
        began_s = time.monotonic()
        (messages,) = self._cold.counted(on, [ColdSpan(bucket)])
        took_s = time.monotonic() - began_s
        if took_s > SLOW_S:
            self.keep(on, bucket, messages or 0, 2 * READ_AGAIN * took_s * others)
        return took_s

    def keep(self, on: Connection, bucket: int, messages: int, good_s: float) -> None:
        """Keep the count of a bucket, and for how long it is good."""
        which = self._own, counted.c.bucket == bucket
        values = {"messages": messages, "until_ms": _now_ms() + round(good_s * 1000)}
        if not on.execute(update(counted).where(*which).values(values)).rowcount:
            try:
                with attempted(on):
                    row = {"namespace": self._namespace, "bucket": bucket, **values}
                    on.execute(insert(counted), row)
            except IntegrityError:  # another process was faster
                return


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

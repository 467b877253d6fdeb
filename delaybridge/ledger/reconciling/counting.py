"""Counting: a worker keeps counts of very many cold messages, so that no reader waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError, StoreError
from delaybridge.ledger.sql.opening import READ_AGAIN, SLOW_S
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords

_EVERY_S = 30.0  # where there are few


async def keep_counted(
    ledger: Ledger,
    cold: ColdRecords,
    held: Callable[[], Sequence[Session]],
    fails: Callable[[Exception], None],
) -> None:
    """Count the buckets that are held, in turn; a twentieth of the time. Never ends."""
    from delaybridge.ledger.sql.counts import ColdTotals

    totals = ColdTotals(cold)
    while True:
        sessions = held()
        rest_s = _EVERY_S
        for session in sessions:
            work = partial(totals.count, bucket=session.bucket.number, others=len(sessions))
            try:
                took_s = await ledger.run_async(Work(work))
            except (StoreError, ConfigError) as exc:
                fails(exc)
                break
            if took_s > SLOW_S:
                rest_s = 0.0
                await asyncio.sleep(READ_AGAIN * took_s)
        await asyncio.sleep(rest_s)

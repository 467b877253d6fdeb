"""Forgetting: after the retention time rows of messages that have ended are deleted, and what was
removed of rules and recurring definitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError, StoreUnavailable
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work

if TYPE_CHECKING:
    from delaybridge.ledger.sql.records import Records

_EVERY_S = 3600.0
_ROWS = 1000  # in one transaction


async def forget(
    recorder: LedgerRecorder,
    retention_s: float,
    sessions: Callable[[], Iterable[Session]],
    store_ms: Callable[[Session], Awaitable[int]],
    silence: Silence,
) -> None:
    """Delete rows that are older, in the background; in the worker that has the first bucket.

    store_ms: the time of a bucket's server, as rows have it. Rules have that of another node, which
    is about the same; this worker's clock may be ahead.
    """
    ledger, controls = recorder.ledger, recorder.controls
    while retention_s:
        layout = recorder.records.numbers.layout
        number = layout.here.first if layout else 0
        first = next((each for each in sessions() if each.bucket.number == number), None)
        if first is not None:
            try:
                before_ms = await store_ms(first) - round(retention_s * 1000)
                await _forget_older(ledger, recorder.records, before_ms)
                await ledger.run_async(Work(partial(controls.forget, before_ms=before_ms)))
            except (StoreUnavailable, ConfigError) as exc:
                silence.begins(exc)
        await asyncio.sleep(_EVERY_S)


async def _forget_older(ledger: Ledger, records: Records, before_ms: int) -> None:
    after: int | None = -1
    some = partial(records.forget, before_ms=before_ms, limit=_ROWS)
    while after is not None:
        after = await ledger.run_async(Work(partial(some, after=after)))

"""Promoting: a worker brings cold messages of its buckets into Redis in time, by Redis' clock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError, StoreError
from delaybridge.ledger.comparing.along import regrouped
from delaybridge.ledger.comparing.promotion import promote_due
from delaybridge.ledger.reconciling.older_ledger import OlderLedger
from delaybridge.scan.leases.session import Session
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords

_LOOKS, _LOOK_S, _MOST_LOOK_S = 20, 1.0, 30.0  # for cold messages, in a hot window
_AT_ONCE = 2  # buckets: while Redis stores messages of one, the ledger is read for others
_NEVER_MS = 2**53


class Promoting:
    """The promoter of one worker."""

    def __init__(
        self,
        store: AsyncStore,
        cold: ColdRecords,
        held: Callable[[], Iterable[Session]],
        older: OlderLedger,
        fails: Callable[[Exception], None],
    ) -> None:
        """held: returns the sessions that may claim. fails: called if the ledger or Redis does."""
        self._store, self._cold, self._held = store, cold, held
        self._older, self._fails = older, fails

    async def run(self, hot_window_s: float) -> None:
        """Bring messages that are due within the window. Never ends.

        A bucket that was just taken is looked at within a second.
        """
        window_ms = round(hot_window_s * 1000) or _NEVER_MS
        every_s = min(hot_window_s / _LOOKS, _MOST_LOOK_S)
        looked_s: dict[Session, float] = {}
        while True:
            now_s = time.monotonic()
            looked_s = {each: looked_s.get(each, -inf) for each in self._held()}
            await self._regroup()
            todo = [each for each, at_s in looked_s.items() if now_s - at_s >= every_s]
            for some in (todo[i : i + _AT_ONCE] for i in range(0, len(todo), _AT_ONCE)):
                await asyncio.gather(*(self._promote(session, window_ms) for session in some))
            looked_s |= dict.fromkeys(todo, now_s)
            await asyncio.sleep(_LOOK_S)

    async def _regroup(self) -> None:
        """Rows of calls that did not know of a resize yet are looked after by its buckets."""
        if self._cold.records.numbers.of_resized is None:
            return
        try:
            await self._store.complete(regrouped(self._cold.records))
        except (StoreError, ConfigError) as exc:
            self._fails(exc)

    async def _promote(self, session: Session, window_ms: int) -> None:
        began_s = time.monotonic()
        try:
            if not await self._older.may_restore(session):
                return
            found = await self._store.complete(promote_due(session.bucket, self._cold, window_ms))
            await self._older.note_promoted(session.bucket.number, found)
        except (StoreError, ConfigError) as exc:
            self._fails(exc)
            return
        if found.messages:
            seconds = round(time.monotonic() - began_s, 3)
            number = session.bucket.number
            say(logging.DEBUG, "promoted", bucket=number, n=found.messages, seconds=seconds)

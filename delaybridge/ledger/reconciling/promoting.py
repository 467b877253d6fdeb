"""Promoting: a worker brings cold messages of its buckets into Redis in time, by Redis' clock.

Page by page, in the order of their due times across all buckets. Messages that are due now would be
late beside it: so it rests most of the time, unless what it brings is due soon.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError, StoreError
from delaybridge.ledger.comparing.along import regrouped
from delaybridge.ledger.comparing.promotion import Promoted, promote_due
from delaybridge.ledger.reconciling.older_ledger import OlderLedger
from delaybridge.scan.leases.session import Session
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

if TYPE_CHECKING:
    from delaybridge.ledger.sql.cold import ColdRecords

_LOOKS, _LOOK_S, _MOST_LOOK_S = 20, 1.0, 30.0  # for cold messages, in a hot window
_AT_ONCE = 2  # buckets: while Redis stores messages of one, the ledger is read for others
_REST, _MOST_REST_S = 3, 1.0  # times as long as a page took
_SOON_MS = 60_000
_NEVER_MS = 2**53
_NO_MORE = Promoted(after=None, ahead_ms=_NEVER_MS)


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
        self._looked_s: dict[Session, float] = {}  # when the last look at a bucket began
        self._pages: dict[Session, Promoted] = {}  # of buckets that have more

    async def run(self, hot_window_s: float) -> None:
        """Bring messages that are due within the window. Never ends.

        A bucket that was just taken is looked at within a second.
        """
        window_ms = round(hot_window_s * 1000) or _NEVER_MS
        every_s = max(_LOOK_S, min(hot_window_s / _LOOKS, _MOST_LOOK_S))
        soon_ms = min(_SOON_MS, window_ms // 2)
        while True:
            now_s = time.monotonic()
            await self._regroup()
            first = self._first(now_s, every_s)
            found = await asyncio.gather(*(self._promote(*each, window_ms) for each in first))
            for (session, _), page in zip(first, found, strict=True):
                if page.after is not None:
                    self._pages[session] = page
            rest_s = _REST * (time.monotonic() - now_s) if first else _LOOK_S
            if all(page.ahead_ms >= soon_ms for page in found):
                await asyncio.sleep(min(rest_s, _MOST_REST_S))

    def _first(self, now_s: float, every_s: float) -> list[tuple[Session, Promoted]]:
        """The buckets whose next messages are due first, as far as is known, and how far they are.

        Those that have no more are looked at again after `every_s`.
        """
        looked_s = {each: self._looked_s.get(each, -inf) for each in self._held()}
        pages = {each: page for each, page in self._pages.items() if each in looked_s}
        new = [e for e, at_s in looked_s.items() if now_s - at_s >= every_s and e not in pages]
        self._looked_s = looked_s | dict.fromkeys(new, now_s)
        self._pages = pages | dict.fromkeys(new, Promoted())
        first = nsmallest(_AT_ONCE, self._pages, key=lambda each: self._pages[each].after or ())
        return [(each, self._pages.pop(each)) for each in first]

    async def _regroup(self) -> None:
        """Rows of calls that did not know of a resize yet are looked after by its buckets."""
        if self._cold.records.numbers.of_resized is None:
            return
        try:
            await self._store.complete(regrouped(self._cold.records))
        except (StoreError, ConfigError) as exc:
            self._fails(exc)

    async def _promote(self, session: Session, so_far: Promoted, window_ms: int) -> Promoted:
        """How far it is after one page more."""
        began_s, number = time.monotonic(), session.bucket.number
        try:
            if not await self._older.may_restore(session):
                return _NO_MORE
            page = promote_due(session.bucket, self._cold, window_ms, so_far)
            found = await self._store.complete(page)
            if found.after is None:
                await self._older.note_promoted(number, found)
        except (StoreError, ConfigError) as exc:
            self._fails(exc)
            return _NO_MORE
        if count := found.messages - so_far.messages:
            seconds = round(time.monotonic() - began_s, 3)
            say(logging.DEBUG, "promoted", bucket=number, n=count, seconds=seconds)
        return found

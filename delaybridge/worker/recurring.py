"""Makes the runs of recurring definitions: asks each second whether one is to be looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from delaybridge.errors import NotDurable, StoreError
from delaybridge.events import Emit, RecurringFailed, RunsMade
from delaybridge.store import recurring
from delaybridge.store.calls import Calls
from delaybridge.store.command import RedisCommand
from delaybridge.store.looks import mend_looks
from delaybridge.store.making import AT_ONCE, Made
from delaybridge.store.store import AsyncStore
from delaybridge.worker.eventlog import say

_log = logging.getLogger("delaybridge")
_MEND_BEATS = 60
_NAMED = 10


class RecurringRuns:
    """A part of the pulse. While nothing is to be looked at, it costs one short script a second.

    Any number of workers may do this. Whoever takes a definition has 1.5 s for it; after that
    another one takes it, and each run is made once nevertheless.
    """

    name = "recurring"

    def __init__(self, store: AsyncStore, calls: Calls, emit: Emit) -> None:
        self._store, self._calls, self._emit = store, calls, emit
        self._making: asyncio.Task[None] | None = None
        self._closed = False
        self._beats = 0

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """Take what is to be looked at, unless the last look is not over."""
        if self._closed or (self._making is not None and not self._making.done()):
            return ()
        return [recurring.recur(self._calls.namespace, AT_ONCE)]

    def take(self, replies: Sequence[Any]) -> None:
        """Begin to make the runs of the definitions that were taken."""
        (taken,) = replies
        if isinstance(taken, StoreError):
            return
        self._beats += 1
        mends = self._beats % _MEND_BEATS == 1
        if taken[1] or mends:
            self._making = asyncio.create_task(self._make(*taken, mends=mends))

    async def close(self) -> None:
        """End what is under way; another worker does it."""
        self._closed = True
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    async def _make(
        self, now_ms: int, entries: Sequence[recurring.DefinitionEntry], *, mends: bool
    ) -> None:
        """Make these, then all others to be looked at now. mends: first look for lost ones."""
        try:
            if mends:
                await self._mend()
            made = await self._store.complete(self._calls.make_taken(now_ms, entries))
            while made:
                for each in made:
                    self._report(each)
                made = await self._store.complete(self._calls.make_runs())
        except StoreError as exc:  # what was taken is taken again soon
            if isinstance(exc, NotDurable):  # no other part of the worker meets it
                self._emit(RecurringFailed(reason=str(exc)))
            _log.debug("recurring definitions were not made", exc_info=exc)
        except Exception as exc:
            self._emit(RecurringFailed(reason=f"{type(exc).__name__}: {exc}"))
            _log.debug("recurring definitions were not made", exc_info=exc)

    async def _mend(self) -> None:
        """Let workers look at the definitions that they would not look at in time."""
        names = await self._store.complete(mend_looks(self._calls.namespace))
        if names:
            shown = ",".join(names[:_NAMED])
            say(logging.WARNING, "recurring_looks_mended", definitions=len(names), names=shown)

    def _report(self, made: Made) -> None:
        if made.error and made.is_new:
            self._emit(RecurringFailed(name=made.name, reason=f"{made.name}: {made.error}"))
        if made.due_ms or made.missed:
            self._emit(
                RunsMade(
                    name=made.name,
                    destination=made.destination,
                    messages=len(made.due_ms),
                    missed=made.missed,
                    due_ms=max(made.due_ms, default=0),
                )
            )

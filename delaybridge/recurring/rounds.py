"""Makes the runs of recurring definitions: asks each second whether one is to be looked at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from delaybridge.errors import NotDurable, StoreError
from delaybridge.events import RecurringFailed, RunsMade
from delaybridge.recurring import stored
from delaybridge.recurring.repair import mend_looks
from delaybridge.recurring.runs import AT_ONCE, Made, RunMaking
from delaybridge.store.namespace import ledger_agreement
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, plain
from delaybridge.worker.eventlog import Listeners, say
from delaybridge.worker.parts import Part, RunView

_Taken = tuple[int, Sequence[stored.DefinitionEntry]]  # and when, in epoch ms
_log = logging.getLogger("delaybridge")
_MEND_BEATS = 60
_NAMED = 10


class RecurringRuns(Part):
    """While nothing is to be looked at, it costs one short script a second.

    Any number of workers may do this. Whoever takes a definition has 1.5 s for it; after that
    another one takes it, and each run is made once nevertheless.
    """

    name = "recurring"

    def join(self, listeners: Listeners) -> None:
        """Keep them, to tell of the runs."""
        self._emit = listeners

    def begin(self, run: RunView) -> None:
        """Make the runs of this namespace until `close`."""
        self._store, self._calls = run.store, run.calls
        self._making: asyncio.Task[None] | None = None
        self._closed = False
        self.agree = True  # whether they were those of the ledger, when it was asked last
        self._beats = 0

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """Take what is to be looked at, unless the last look is not over."""
        if self._closed or (self._making is not None and not self._making.done()):
            return ()
        return self._asked()

    def _asked(self) -> Sequence[RedisCommand[Any]]:
        namespace = self._calls.namespace
        asked = [stored.recur(namespace, AT_ONCE)]
        if self._store.recorder is None:
            return asked
        number = plain("HLEN", keys.recurring(namespace), parse=int)
        return ledger_agreement.watched(namespace, [*asked, number])

    def _taken(self, replies: Sequence[Any]) -> _Taken | None:
        """What was taken; None: nothing, or what may be of the past.

        Then a worker takes it again, once the definitions agree with the ledger.
        """
        taken, *_ = replies
        if self._store.recorder is not None:
            found, (taken, number) = ledger_agreement.agreed(replies)
            if isinstance(number, Exception):
                return None
            self.agree = found is not None and number >= found.definitions
        return taken if self.agree and not isinstance(taken, Exception) else None

    def take_replies(self, replies: Sequence[Any]) -> None:
        """Begin to make the runs of the definitions that were taken."""
        if (taken := self._taken(replies)) is None:
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
        self, now_ms: int, entries: Sequence[stored.DefinitionEntry], *, mends: bool
    ) -> None:
        """Make these, then all others to be looked at now. mends: first look for lost ones."""
        try:
            if mends:
                await self._mend()
            made = await self._complete(now_ms, entries)
            while made:
                for each in made:
                    self._report(each)
                more = self._taken(await self._store.run_each(self._asked()))
                made = [] if more is None else await self._complete(*more)
        except StoreError as exc:  # what was taken is taken again soon
            if isinstance(exc, NotDurable):  # no other part of the worker meets it
                self._emit(RecurringFailed(reason=str(exc)))
            _log.debug("recurring definitions were not made", exc_info=exc)
        except Exception as exc:
            self._emit(RecurringFailed(reason=f"{type(exc).__name__}: {exc}"))
            _log.debug("recurring definitions were not made", exc_info=exc)

    async def _complete(self, now_ms: int, entries: Sequence[stored.DefinitionEntry]) -> list[Made]:
        return await self._store.complete(RunMaking(self._calls).make_taken(now_ms, entries))

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

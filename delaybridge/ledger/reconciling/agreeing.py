"""Agreeing: a worker keeps rules and recurring definitions in agreement with the ledger.

Before a session claims anything, those in Redis are those of the ledger, and the worker obeys them:
a destination that was paused stays so when Redis was wiped, or came back with an older past. What
was changed while the database was down is recorded when it answers, by every worker that knows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from delaybridge.errors import ConfigError, LedgerUnavailable, StoreError, StoreUnavailable
from delaybridge.ledger.comparing import reinstating
from delaybridge.ledger.reconciling.agreed_rules import AgreedDestinations
from delaybridge.ledger.reconciling.attempts import Attempts
from delaybridge.ledger.reconciling.reconciling import Reconciling
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.ledger.sql.rows import Control, ControlName
from delaybridge.scan.leases.exits import ExitReport, SentMessage
from delaybridge.scan.leases.session import Session
from delaybridge.settings.sections import LedgerSettings
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import RedisCommand, Work
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

_EVERY_S = 1.0
_AGAIN_S = 0.5  # after a comparison that came to no end
_AT_ONCE = 200  # changes that are recorded in one transaction


class Agreeing:
    """Asks with the pulse, and is the ledger's side of a scanner before `Reconciling`."""

    def __init__(
        self,
        store: AsyncStore,
        recorder: LedgerRecorder,
        calls: Calls,
        destinations: AgreedDestinations,
        reconciling: Reconciling,
        unrecorded: dict[ControlName, Control],
        definitions_agree: Callable[[], bool] = lambda: True,
    ) -> None:
        """unrecorded: changes that the ledger has not taken, also if Redis has lost them since.

        definitions_agree: whether the definitions were those of the ledger, when it was asked last.
        """
        self._store, self._calls, self._recorder = store, calls, recorder
        self._destinations, self._reconciling = destinations, reconciling
        self._definitions_agree = definitions_agree
        self._agreed = Attempts(self._try_to_agree)
        self._comparing = asyncio.Lock()
        self._times: Mapping[bytes, int] = {}  # of changes that the ledger may lack
        self._seen_ms = 0  # changes until then are remembered
        self._who = secrets.token_hex(8)
        self._silence = Silence("controls_not_compared", "controls_compared")
        self._unrecorded = unrecorded
        self._refused = ""  # why the last comparison was

    # the pulse

    def commands(self) -> Sequence[RedisCommand[Any]]:
        """A look at the changes that the ledger may lack."""
        return [reinstating.unrecorded(self._calls.namespace, _AT_ONCE, after_ms=self._seen_ms)]

    def take_replies(self, replies: Sequence[Any]) -> None:
        """What has changed is recorded soon."""
        (found,) = replies
        if not isinstance(found, Exception):
            self._times = found

    # the scanner

    async def verify(self, session: Session) -> bool:
        """Return when nothing can go out that is paused, and the bucket agrees with the ledger.

        Or when the session is over. False: as of `Reconciling.verify`.
        """
        self._reconciling.waiting.begins(session)
        while session.alive:
            try:
                if await self._agree():
                    break
            except (StoreError, ConfigError) as exc:
                self._silence.begins(exc)
                self._reconciling.silence.begins(exc)
                if self._destinations.known:  # the bucket may be known to be whole, too
                    break
            await asyncio.sleep(_AGAIN_S)
        return await self._reconciling.verify(session)

    def exits_stored(self, session: Session, report: ExitReport, now_ms: int) -> None:
        """Pass it on; as `Reconciling.exits_stored`."""
        self._reconciling.exits_stored(session, report, now_ms)

    def left(self, session: Session, copies: Sequence[SentMessage], now_ms: int) -> None:
        """Pass it on; as `Reconciling.left`."""
        self._reconciling.left(session, copies, now_ms)

    async def _agree(self) -> bool:
        """Whether the rules that the worker obeys from now on are those of the ledger."""
        return await self._agreed.share()

    async def _try_to_agree(self) -> bool:
        await self._destinations.read(self._store)
        if self._destinations.agree:
            return True
        async with self._comparing:
            # Who begins a comparison that cannot end, has all others wait.
            await self._reconciling.waiting.ledger.share()
            known = await self._record_known()
            # Another one may have compared them since.
            await self._destinations.read(self._store)
            if known or not self._destinations.agree:
                await self._compare()
                await self._destinations.read(self._store)
        return self._destinations.agree

    async def _compare(self) -> None:
        steps = reinstating.agree(self._calls, self._recorder.controls, self._who)
        found = await self._store.complete(steps)
        if found:
            say(logging.WARNING, "controls_reinstated", n=found)

    # what was changed

    async def keep(self) -> None:
        """Once a second, record what the ledger lacks, and compare if they do not agree."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                if self._times or (self._unrecorded and self._seen_ms):
                    await self._record()
                if not self._destinations.agree:
                    await self._agree()
                elif self._unrecorded or not self._definitions_agree():
                    # Redis has lost what this worker knows, and another one compared it since.
                    async with self._comparing:
                        await self._reconciling.waiting.ledger.share()
                        await self._record_known()
                        await self._compare()
                if self._destinations.agree and not self._unrecorded:
                    self._silence.ends(inf)
            except (StoreError, ConfigError) as exc:
                self._silence.begins(exc)
                self._say_refused(exc)

    def _say_refused(self, error: Exception) -> None:
        """What Redis or the ledger does not take; who does not answer at all is told elsewhere."""
        is_away = isinstance(error, StoreUnavailable | LedgerUnavailable | ConfigError)
        if not is_away and str(error) != self._refused:
            self._refused = str(error)
            say(logging.ERROR, "controls_not_compared", reason=self._refused[:200])

    async def _record(self) -> None:
        """Record what has changed; what the ledger does not take now, is remembered."""
        times, self._times = self._times, {}
        found = await self._store.complete(reinstating.read_changed(self._calls.namespace, times))
        self._unrecorded |= {e.key: e for e in found if e.wins(self._unrecorded.get(e.key))}
        self._seen_ms = max([self._seen_ms, *times.values()])
        known = await self._record_known()
        await self._store.run(reinstating.recorded(self._calls.namespace, known))
        self._seen_ms = 0

    async def _record_known(self) -> Sequence[Control]:
        known = [*self._unrecorded.values()]
        for page in reinstating.pages(known):
            work = partial(self._recorder.controls.record, found=page)
            await self._recorder.ledger.run_async(Work(work))
            for each in page:
                if self._unrecorded.get(each.key) == each:
                    del self._unrecorded[each.key]
        return known

    async def remind(self) -> None:
        """When Redis was wiped, or is older, give it what only this worker knows, at once.

        The database may be away, and another worker, which does not know it, be the first whom it
        answers. Never ends.
        """
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._destinations.agree:
                continue
            self._seen_ms = 0  # what comes now may have earlier times
            if known := [*self._unrecorded.values()]:
                with suppress(StoreError):
                    await self._store.complete(reinstating.remind(self._calls.namespace, known))

    # how it stands

    def tasks(self, settings: LedgerSettings) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the worker does."""
        return [*self._reconciling.tasks(settings), self.keep(), self.remind()]

    def announced(self) -> dict[str, Any]:
        """As `Reconciling.announced`, with the controls that wait."""
        found = self._reconciling.announced()
        silent = found["silent"] or self._silence.reason[:200]
        return found | {"silent": silent, "lag": found["lag"] + len(self._unrecorded)}

"""Notices that the ledger came back with an older past, and ends what is live in it alone."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from weakref import WeakValueDictionary

from delaybridge.errors import StoreError
from delaybridge.ledger.comparing import older_ledger
from delaybridge.ledger.comparing.older_ledger import LedgerPast
from delaybridge.ledger.comparing.promotion import Promoted
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.scan.leases.session import Session
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Work
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say


class OlderLedger:
    """What one worker knows of it, as it looked last: back_ms as in `LedgerPast`."""

    def __init__(self, store: AsyncStore, recorder: LedgerRecorder, worker: str) -> None:
        self._store, self._ledger, self._worker = store, recorder.ledger, worker
        self._records, self._cold = recorder.records, recorder.cold
        self._namespace = recorder.records.namespace
        self._found, self._now_ms, self._said_ms = LedgerPast(), 0, 0
        self._is_settled = False
        self._turns = WeakValueDictionary[int, asyncio.Lock]()  # of buckets

    async def notice_loss(self) -> bool:
        """Whether a loss was noticed since the last look, by whichever worker."""
        before, key = self._found.back_ms, keys.ledger(self._namespace)
        clock = registry.store_time(key)
        self._now_ms = 0
        try:
            past = older_ledger.read_past(self._namespace)
            self._found, now_us = await self._store.run([past, clock])
        except StoreError:  # buckets on other servers are told of all the same
            return False
        self._now_ms = now_us // 1000
        return self._found.back_ms > before

    async def note_told(self) -> None:
        """The ledger has been told what had left when this worker looked last."""
        at_ms = self._now_ms
        if at_ms and await self._compare(self._found.told_ms, at_ms):
            await self._store.run_one(older_ledger.note(self._namespace, "told", at_ms))

    async def note_promoted(self, bucket: int, found: Promoted) -> None:
        """A promoter has brought a bucket's cold messages that far."""
        await self._store.run_one(older_ledger.note_promoted(self._namespace, bucket, found))

    async def may_restore(self, session: Session) -> bool:
        """Whether what the ledger has of a bucket may be restored, if Redis lacks it.

        If the ledger has lost something, its rows are ended first; False: it is too early for that.
        """
        known = await self._store.run_one(older_ledger.read_past(self._namespace))
        await self._compare(known.told_ms)
        # The promoter and the reconciler ask at the same time. Rows are ended once per loss: what
        # Redis loses after that is restored.
        async with self._turns.setdefault(session.bucket.number, asyncio.Lock()):
            return await self._end_rows(session.bucket)

    async def _end_rows(self, bucket: Bucket) -> bool:
        began_s = time.monotonic()
        # Read again: another task may have noticed it, and told the ledger, in between.
        clock = registry.store_time(bucket.key("lease"))
        past = older_ledger.read_past(self._namespace, bucket.number)
        found, now_us = await self._store.run([past, clock])
        if found.back_ms <= found.ended_ms:
            return True
        if now_us // 1000 < found.back_ms + older_ledger.YOUNG_MS:
            return False
        steps = older_ledger.end_rows(bucket, self._cold, self._worker, found)
        ended = await self._store.complete(steps)
        noted = older_ledger.note(self._namespace, bucket.number, found.back_ms)
        await self._store.run_one(noted)
        if ended:
            about = {"n": ended, "seconds": round(time.monotonic() - began_s, 3)}
            say(logging.WARNING, "ledger_rows_ended", bucket=bucket.number, **about)
        return True

    async def _settle(self) -> None:
        """The ledger knows the namespace: it may be new, or older than that."""
        known = await self._store.run_one(registry.read_layout(self._namespace))
        if known is not None:
            layout, birth = known
            settle = partial(self._records.settle, layout=layout, birth=birth)
            await self._ledger.run_async(Work(settle))
            self._is_settled = True

    async def _compare(self, known_ms: int, at_ms: int = 0) -> bool:
        """Whether the ledger has lost nothing of what it was told, by what Redis knew before.

        at_ms: what it is to know in that case. A loss is noted in Redis, and then in the ledger.
        """
        if not self._is_settled:
            await self._settle()
        note = partial(self._records.note_told, least_ms=known_ms, at_ms=at_ms)
        told_ms = await self._ledger.run_async(Work(note))
        if told_ms >= known_ms:
            return True
        if self._said_ms != known_ms:
            self._said_ms, lost_s = known_ms, (known_ms - told_ms) / 1000 if told_ms else None
            hint = "what Redis does not have is not restored from it"
            say(logging.ERROR, "ledger_went_back", lost_s=lost_s, hint=hint)
        now_us = await self._store.run_one(registry.store_time(keys.ledger(self._namespace)))
        back_ms = min(known_ms, now_us // 1000)  # the clock may have been set back
        await self._store.run(older_ledger.went_back(self._namespace, back_ms))
        await self._settle()
        note = partial(self._records.note_told, least_ms=0, at_ms=known_ms)
        await self._ledger.run_async(Work(note))
        return False

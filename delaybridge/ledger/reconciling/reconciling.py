"""Reconciling: a worker keeps the ledger and the buckets that it holds in agreement.

- **Verify**: before the first claim of a session. Redis may have been wiped, or may have an older
  past; then the bucket is compared with the ledger as a whole. Messages that were cancelled would
  be published otherwise.
- **Tell**: once a second, what left the buckets, for good: published or cancelled; and the history.
- **Promote**: cold messages, which are in the ledger alone, go into Redis before they are due.
- **Reconcile**: one bucket after another, each once in `ledger.reconcile_s`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from delaybridge import failpoints
from delaybridge.errors import ConfigError, StoreError, StoreUnavailable
from delaybridge.ledger.comparing import healing
from delaybridge.ledger.comparing.agreement import Comparing, WantedRows, compare, restore_missing
from delaybridge.ledger.comparing.along import agree_layout, to_be_compared
from delaybridge.ledger.comparing.healing import Sealed
from delaybridge.ledger.reconciling.counting import keep_counted
from delaybridge.ledger.reconciling.drift import Drift, Drifts, say_found
from delaybridge.ledger.reconciling.forgetting import forget
from delaybridge.ledger.reconciling.happened import Happened
from delaybridge.ledger.reconciling.leaving import Leaving, LeftPage
from delaybridge.ledger.reconciling.older_ledger import OlderLedger
from delaybridge.ledger.reconciling.promoting import Promoting
from delaybridge.ledger.reconciling.rounds import Rounds
from delaybridge.ledger.reconciling.waiting import WaitingBuckets
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.scan.leases.exits import ExitReport, SentMessage
from delaybridge.scan.leases.session import Session
from delaybridge.settings.sections import LedgerSettings
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.marks import Marks
from delaybridge.store.protocol.verbs import Work
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

_TELL_S = 1.0
_AGAIN_S = 0.5  # after the ledger did not answer
_OTHERS_TELL_S = 2.5  # within this time after that
_PAGE = 1000  # entries of `gone` that are read at once
_TOLD_AT_ONCE = 8  # buckets
_YOUNG_MS = 30_000  # a call may be under way: its row is there, its message not yet
_VERIFIED_AT_ONCE = 4  # more would wait for a connection until their time is up


class Reconciling:
    """The ledger's side of one worker's run."""

    def __init__(
        self,
        store: AsyncStore,
        recorder: LedgerRecorder,
        happened: Happened,
        *,
        sessions: Callable[[], Iterable[Session]] = tuple,
        marks: Callable[[], Mapping[int, Marks]] = dict,
        doubt: set[int] | None = None,
    ) -> None:
        """sessions: returns the leases held; marks: theirs, as read in the last second. doubt:
        buckets that went back, and were not compared since.
        """
        self._store, self._recorder, self._records = store, recorder, recorder.records
        self._happened, self._worker = happened, happened.worker
        self._cold = recorder.cold
        self._ledger = recorder.ledger
        self._leaving = Leaving(self._ledger, self._records, self._worker)
        self.marks, self.sessions = marks, sessions
        self._known: dict[Session, int] = {}  # the last generation that the ledger has
        self._seen: dict[Session, Marks] = {}  # when it was told last
        self._in_doubt: set[Session] = set()  # whose last `tell` had no answer
        self._again: set[Session] = set()  # of which all that left is to be told again
        self._failing: set[Session] = set()  # whose `gone` cannot be read
        self._exits: set[Session] = set()  # from which a message was published since a seal
        self._left: dict[Session, int] = {}  # entries of `gone` then, or more than none
        self._last: dict[Session, int] = {}  # of what happened, when it was sealed
        self.drift = Drifts()
        self.doubt: set[int] = set() if doubt is None else doubt
        self._verifying: set[Session] = set()
        self._began_s, self._restored = 0.0, 0  # of the sessions that are verified together
        self._turns = asyncio.Semaphore(_VERIFIED_AT_ONCE)
        self.silence = happened.silence
        self.waiting = WaitingBuckets(self._ask, self.silence)
        self._older = OlderLedger(store, recorder, happened.worker)

    # before a session claims

    async def verify(self, session: Session) -> bool:
        """Return when the bucket agrees with the ledger, or the session is over.

        False: Redis refuses the session. When all buckets that were looked at together are done, it
        says what was restored.
        """
        began_s = time.monotonic()
        if not self._verifying:
            self._began_s, self._restored = began_s, 0
        self._verifying.add(session)
        try:
            return await self._verify_until_done(session, began_s)
        finally:
            self._verifying.discard(session)
            self.waiting.ends(session)
            if self._restored and not self._verifying:
                seconds = round(time.monotonic() - self._began_s, 1)
                say(logging.WARNING, "ledger_rebuilt", restored=self._restored, seconds=seconds)

    async def _verify_until_done(self, session: Session, began_s: float) -> bool:
        self.waiting.ends(session)  # unless it is not known to be whole
        while session.alive:
            try:
                if session in self.waiting:
                    await self.waiting.ledger.share()
                return await self._verify(session, began_s)
            except (StoreError, ConfigError) as exc:
                self.silence.begins(exc)
            await asyncio.sleep(_AGAIN_S)
        return True

    async def _ask(self) -> None:
        await self._ledger.run_async(Work(self._records.touch))

    async def _verify(self, session: Session, began_s: float) -> bool:
        sealed = await self._seal(session)
        is_sure = session.bucket.number not in self.doubt and not session.was_mended
        if sealed is None:
            return False
        if is_sure and sealed.is_healed_under(session.server):
            self._happened.is_owner(session)
            return True  # what left is told later: the ledger may not answer now
        self.waiting.begins(session)
        async with self._turns:
            await self.waiting.ledger.share()  # it may have failed while this one had no turn
            is_whole = is_sure and bool(sealed.healed)  # in doubt, twice is better than never
            return await self._bring_together(session, began_s, is_whole=is_whole)

    async def _bring_together(self, session: Session, began_s: float, *, is_whole: bool) -> bool:
        """Compare a bucket with the ledger as a whole; whether it agrees with it now.

        is_whole: the bucket has forgotten nothing, as far as is known.
        """
        await self._store.complete(agree_layout(self._records))
        await self._tell_what_it_forgot(session)
        while is_whole and session.alive and not await self._older.may_restore(session):
            await asyncio.sleep(_AGAIN_S)
        await self._store.complete(to_be_compared(self._records, session.bucket, session.token))
        # From now on no worker restores by what it read before.
        begun = healing.seal(session.bucket, session.owner, healed=f"?{session.token}")
        sealed = await self._store.run_one(begun)
        if sealed is None or not await self._tell_sealed(session, sealed):
            return False
        bucket, how = session.bucket, Comparing(time.time_ns() // 1_000_000, session.owner)
        compared = await self._store.complete(compare(bucket, self._records, how))
        if compared is None:
            return False
        looked = await self._store.complete(restore_missing(bucket, self._records))
        if not session.alive:  # nor is anything known of it any more
            return False
        known, name = sealed.generation, f"{session.server}:{session.token}"
        done = healing.seal(bucket, session.owner, known=known, healed=name)
        if await self._store.run_one(done) is None or not session.alive:
            return False  # if Redis went back meanwhile, the bucket stays in doubt
        self.doubt.discard(bucket.number)
        self._happened.is_owner(session)
        self._restored += looked.absent
        self.drift[bucket.number] = Drift(0, compared._replace(dropped=0, mended=0))  # it is told
        say_found(bucket.number, looked, compared, time.monotonic() - began_s)
        return True

    # what left

    def exits_stored(self, session: Session, report: ExitReport, now_ms: int) -> None:
        """The store has these exits; the ledger gets them with the next `tell`."""
        if report.published:
            self._exits.add(session)
        self._happened.exits_stored(session, report, now_ms)

    def left(self, session: Session, copies: Sequence[SentMessage], now_ms: int) -> None:
        """The store has settled these before they are published."""
        self._exits.add(session)
        self._happened.left(session.bucket.number, copies, now_ms)

    async def keep_told(self) -> None:
        """Tell the ledger, once a second, what left and what happened. Never ends."""
        while True:
            await asyncio.sleep(_TELL_S)
            try:
                began_s = time.monotonic()
                if self.silence.reason:
                    await self.waiting.ledger.share()
                await self._tell_all()
                self.silence.ends(began_s)
            except (StoreError, ConfigError) as exc:
                self.silence.begins(exc)
            self.waiting.tell()
            self._forget_sessions()

    async def _tell_all(self) -> None:
        if await self._older.notice_loss() or self.silence.reason:
            self._again |= {*self.sessions()}  # it may have lost what it was told last
        left = [each for each in self._held() if self._may_have_left(each)]
        for first in range(0, len(left), _TOLD_AT_ONCE):
            some = [each for each in left[first : first + _TOLD_AT_ONCE] if each.alive]
            for error in await asyncio.gather(*map(self._tell_of, some), return_exceptions=True):
                if error is not None:
                    raise error
        await self._tell_of_others()
        await self._happened.tell_history(self._ledger, self._records)
        if left:
            await self._older.note_told()

    async def _tell_of(self, session: Session) -> None:
        """An error of Redis in one bucket holds up no other: it is told again, and said once."""
        try:
            await self._tell(session)
        except StoreUnavailable:  # nor would others have an answer
            raise
        except StoreError as exc:
            if session not in self._failing:
                about = {"bucket": session.bucket.number, "reason": str(exc)[:200]}
                say(logging.ERROR, "bucket_not_told", **about)
                self._failing.add(session)
        else:
            self._failing.discard(session)

    def _may_have_left(self, session: Session) -> bool:
        marks = self.marks().get(session.bucket.number)
        has_left = session in self._exits or self._left.get(session, 1) > 0
        return has_left or marks != self._seen.get(session)

    async def _tell(self, session: Session) -> None:
        """Tell what left a bucket."""
        sealed = await self._seal(session)
        if sealed is not None:
            await self._tell_sealed(session, sealed)
        else:  # another worker may rebuild it, and waits for what this one has to tell
            await self._happened.tell(self._ledger, self._records, session.bucket.number)

    async def _seal(self, session: Session) -> Sealed | None:
        """Seal what left so far; None: the session is over."""
        marks = self.marks().get(session.bucket.number)
        self._exits.discard(session)  # before: what leaves while it is asked may not be in it
        self._left[session] = 1  # until those are told
        self._last[session] = self._happened.last(session.bucket.number)
        info = registry.info("server", session.bucket.key("lease"))
        known = None if session in self._again else self._known.get(session)
        seal = healing.seal(session.bucket, session.owner, known=known)
        about, answer = await self._store.run([info, seal])
        sealed: Sealed | None = answer
        run = about.get("run_id", "")
        if sealed is None or (session.server or run) != run:
            return None  # another server may have an older past: what left is not in its `gone`
        session.agreed(run)
        if marks is not None:
            self._seen[session] = marks
        return sealed

    async def _tell_sealed(self, session: Session, sealed: Sealed) -> bool:
        """Tell what left up to this seal; False: Redis has forgotten it, perhaps also what left."""
        failpoints.reach("ledger.sealed")
        number, first, is_again = session.bucket.number, 0, session in self._again
        known = -1 if is_again else self._known.get(session, -1)
        last = self._last.get(session, 0)
        at_ms = self._happened.times(number)
        # An earlier session, or a call without an answer, may have told it.
        may_be_told = known < 0 or session in self._in_doubt
        self._in_doubt.add(session)
        while sealed.entries:
            page = healing.left(session.bucket, known, sealed.generation, first, _PAGE)
            found, stands = await self._store.run([page, healing.standing(session.bucket)])
            if stands.generation != str(sealed.generation + 1):
                return False
            if found:
                await self._leaving.tell(LeftPage(number, found, at_ms, may_be_told))
            first += len(found)
            if len(found) < _PAGE:
                break
        failpoints.reach("ledger.told")
        self._in_doubt.discard(session)
        if is_again:
            self._again.discard(session)
        self._known[session], self._left[session] = sealed.generation, sealed.entries
        self._happened.forget(number, last)
        return True

    async def _tell_what_it_forgot(self, session: Session) -> None:
        """Tell what this worker delivered of a bucket, and Redis may not know any more.

        If the ledger was silent, other workers may have to tell more, and have begun to.
        """
        number, now_ms = session.bucket.number, await self._store_ms(session)
        layout = self._records.numbers.of_resized
        held = {each.bucket.number for each in self.sessions() if each.alive}
        others = {n for n in self._happened.known - held if layout and layout.are_kin(number, n)}
        for each in {number, *others}:  # also of buckets that gave their messages to this one
            self._happened.has_lost(each, now_ms)
            await self._happened.tell(self._ledger, self._records, each)
        await self._happened.tell_history(self._ledger, self._records)  # what is dead stays so
        others_s = max(self.silence.last_s, self._records.numbers.moved_s) + _OTHERS_TELL_S
        await asyncio.sleep(max(0.0, others_s - time.monotonic()))

    async def _tell_of_others(self) -> None:
        """Tell what this worker delivered of buckets that it does not hold any more.

        Redis may have forgotten it, and another worker rebuild them.
        """
        held = {each.bucket.number for each in self.sessions() if each.alive}
        if time.monotonic() < self._records.numbers.moved_s + _OTHERS_TELL_S:
            now_ms = time.time_ns() // 1_000_000
            for bucket in self._happened.known - held:
                self._happened.has_lost(bucket, now_ms)
        for bucket in self._happened.buckets:
            if bucket not in held:
                await self._happened.tell(self._ledger, self._records, bucket)

    # from time to time

    async def reconcile(self, every_s: float) -> None:
        """Compare each held bucket with the ledger once in this time. Never ends."""
        rounds = Rounds[Session](every_s)
        while True:
            held, began_s = self._held(), time.monotonic()
            session, wait_s = rounds.next(held, began_s)
            if session is None:
                await asyncio.sleep(min(wait_s, _TELL_S))
                continue
            if await session.holder.is_sound(session):  # else the next one compares it
                await self._reconcile(session)
            rounds.looked(session, began_s, time.monotonic())

    async def _reconcile(self, session: Session) -> None:
        began_s, bucket = time.monotonic(), session.bucket
        try:
            if not await self._older.may_restore(session):
                return
            await self._store.complete(agree_layout(self._records))
            now_ms = await self._store_ms(session)
            wanted = WantedRows(before_call_ms=now_ms - _YOUNG_MS)
            looked = await self._store.complete(restore_missing(bucket, self._records, wanted))
            how = Comparing(now_ms, differed=self.drift.differing(bucket.number))
            compared = await self._store.complete(compare(bucket, self._records, how))
        except (StoreError, ConfigError) as exc:
            self.silence.begins(exc)
            return
        if compared is not None:
            self.drift[bucket.number] = Drift(looked.absent, compared)
            say_found(bucket.number, looked, compared, time.monotonic() - began_s)

    async def _store_ms(self, session: Session) -> int:
        """The time of a bucket's server: rows have times by it, not by this host's clock."""
        clock = registry.store_time(session.bucket.key("lease"))
        return (await self._store.run_one(clock)) // 1000

    def _held(self) -> list[Session]:
        return [session for session in self.sessions() if session.alive and session.ready]

    def tasks(self, settings: LedgerSettings) -> list[Coroutine[Any, Any, None]]:
        """What runs as long as the worker does."""
        kept_s, fails = settings.retention_s, self.silence.begins
        promoting = Promoting(self._store, self._cold, self._held, self._older, fails)
        return [
            promoting.run(settings.hot_window_s),
            keep_counted(self._ledger, self._cold, self._held, fails),
            self.keep_told(),
            self.reconcile(settings.reconcile_s),
            forget(self._recorder, kept_s, lambda: self.sessions(), self._store_ms, self.silence),
        ]

    # how it stands

    def announced(self) -> dict[str, Any]:
        """For the worker's announcement: what differed, and why the ledger does not answer."""
        happened = self._happened
        lag = len(happened.steps) + len(happened.dead) + happened.messages
        silent, waiting = self.silence.reason[:200], len(self.waiting)
        return {"silent": silent, "lag": lag, "waiting": waiting, **self.drift.totals()}

    def _forget_sessions(self) -> None:
        """Those that are over. A call that was under way may have noted one again since."""
        for noted in (self._in_doubt, self._again, self._exits, self._failing):
            noted -= {each for each in noted if not each.alive}
        for kept in (self._known, self._seen, self._left, self._last):
            for session in [each for each in kept if not each.alive]:
                del kept[session]
        self.drift.keep({each.bucket.number for each in self.sessions() if each.alive})

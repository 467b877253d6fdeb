"""Leases: the right of this worker to scan a bucket; taken, renewed and given back.

Which buckets it is to hold says `fleet.py`. Each Redis node has leases of its own, so that a node
that does not answer delays no call to another one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.events import Emit, LeaseLost, LeaseReleased, StoreSilent
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.damaged_buckets import DamagedBuckets
from delaybridge.scan.leases.session import Holder, Session
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Acquired
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore, insist

_BLOCKED_RETRY_MS = 20  # how long after another worker's lease runs out to try again
_AT_THE_START = 5  # readings of the clock
_IN_TURN_S = 60.0  # servers that answer in turn do it more often

OnToken = Callable[[int, str | None], None]


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A worker as the owner of leases.

    on_token: called with bucket and token of each lease taken, with None when it ends. dedup_ms:
    for how long an id that was delivered is not scheduled again. has_ledger: what its buckets lack
    is restored.
    """

    name: str
    ttl_ms: int
    renew_ms: int
    on_token: OnToken
    dedup_ms: int = 0
    has_ledger: bool = False

    @property
    def mender(self) -> tuple[str, int] | None:
        """Its name and the ttl of its leases, if it mends the counters of buckets."""
        return (self.name, self.ttl_ms) if self.has_ledger else None


class Leases:
    """Keeps this worker's leases of one node's buckets. `keep` runs until cancelled."""

    def __init__(
        self, store: AsyncStore, clock: StoreClock, emit: Emit, owner: LeaseOwner, *,
        is_here: Callable[[Bucket], bool], on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        """is_here: whether a bucket is on this node now, whose clock this is.

        on_change: called when a bucket may be taken, or the worker's announcement has changed.
        """
        self._store, self._clock, self._emit, self._owner = store, clock, emit, owner
        self._is_here, self._on_change = is_here, on_change
        self._holder: Holder
        self._share: dict[int, Bucket] = {}  # the buckets that are to be held
        self._free: set[int] = set()  # those of them to be taken now
        self._changed = asyncio.Event()
        self._closed = False
        self._round_under_way = asyncio.Lock()
        self._draining: dict[int, asyncio.Task[None]] = {}
        self._releasing: dict[str, RedisCommand[Any]] = {}  # token -> sent, and not answered yet
        self._blocked_s: dict[int, float] = {}  # bucket -> when another worker's lease runs out
        self._clock_read_s = clock.monotonic()
        self._server = ""  # run id of the one that answered last
        self._servers: dict[str, float] = {}  # when each of them answered last
        self.damaged_buckets = DamagedBuckets(store, clock.monotonic, emit, owner.mender)
        self.sessions: dict[int, Session] = {}
        self.beat_s = clock.monotonic()  # when the last round began, for the watchdog

    async def read_clock(self, bucket: Bucket, readings: int = _AT_THE_START) -> int:
        """Read the clock of a bucket's node; the fastest round trip bounds the error.

        Returns the step in ms if the clock was set since it was read before.
        """
        step_ms = 0
        for _ in range(readings):
            sent_s = self._clock.monotonic()
            now_us = await self._store.run_one(registry.store_time(near=bucket.key("lease")))
            if self._is_here(bucket):
                step_ms += self._clock.observe(now_us, sent_s, self._clock.monotonic())
        return step_ms

    async def cut_long(self, buckets: Sequence[Bucket]) -> None:
        """Look at leases at the start: those that seem to last longer than their ttl are cut to it.

        The clock may have been set back before, and their buckets may be for this worker later.
        """
        await self._store.run_isolated([each.acquire("", self._owner.ttl_ms) for each in buckets])

    # which buckets

    def assign(self, share: dict[int, Bucket], *, may_take: bool) -> None:
        """Hold these buckets, drain and release all others. may_take: take free ones now."""
        self._share = share
        self._free = share.keys() - self.sessions.keys() if may_take else set()
        for bucket, session in list(self.sessions.items()):
            if bucket not in share:
                self._drain(session)
        if self._free:
            self._changed.set()

    @property
    def draining(self) -> list[asyncio.Task[None]]:
        """Tasks that drain and release a bucket. They wait while the store does not answer."""
        return [*self._draining.values()]

    async def drained(self) -> None:
        """Return when all is released that is not to be held. `keep` must go on meanwhile."""
        async with self._round_under_way:
            pass  # it may still take leases, and drains those that are not to be held
        await asyncio.gather(*self._draining.values())

    async def release_all(self) -> None:
        """Release every lease, drained or not, and take none any more.

        The scanner failed, or its drain takes too long: the next owner reclaims.
        """
        self._closed = True
        async with self._round_under_way:
            held = list(self.sessions.values())
            for session in held:
                self._end(session)
            commands: list[RedisCommand[Any]] = [s.bucket.release(s.token) for s in held]
            commands += self._releasing.values()
            if commands:
                await self._store.run_isolated(commands)

    # rounds

    async def keep(self, holder: Holder) -> None:
        """Make rounds: renew, take; sleep until the next is needed."""
        self._holder = holder
        self._free = set()  # assigned long ago, perhaps
        self._on_change()
        while True:
            self._changed.clear()
            self.beat_s = self._clock.monotonic()
            try:
                async with self._round_under_way:
                    wait_s = await self.round()
            except StoreUnavailable as exc:
                self._emit(StoreSilent(reason=str(exc)))
                self._forget_stale()
                wait_s = min(1.0, self._owner.renew_ms / 1000)
            try:
                async with asyncio.timeout(max(wait_s, 0.001)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def round(self) -> float:
        """One round; returns the seconds until the next is needed."""
        await self._renew()
        await self._follow_clock()
        await self.follow_server()
        if await self.damaged_buckets.retry():
            self._on_change()
        free, self._free = self._free - self.damaged_buckets.numbers, set()
        if wanted := [self._share[b] for b in sorted(free & self._share.keys())]:
            await self._note_step(wanted[0])  # a lease may last longer by as much
            await self._acquire(wanted)
        now_s = self._clock.monotonic()
        if any(until_s <= now_s for until_s in self._blocked_s.values()):
            self._blocked_s = {}  # free now, perhaps
            self._on_change()
        next_s = [now_s + self._owner.renew_ms / 1000, self.damaged_buckets.next_look_s()]
        next_s += self._blocked_s.values()
        return min(next_s) - now_s

    async def _renew(self) -> None:
        """Renew the leases that no other call has renewed lately."""
        now_s = self._clock.monotonic()
        stale = [s for s in self.sessions.values() if s.alive and self._is_long_ago(s.touched_s)]
        ttl_ms = self._owner.ttl_ms
        asked = [s.bucket.renew(s.token, ttl_ms, s.claims.last) for s in stale]
        for session, answer in zip(
            stale, await self._store.run_isolated(asked) if asked else (), strict=True
        ):
            if isinstance(answer, StoreError):
                self.damaged(session, answer)
                continue
            if not answer.held:  # also if Redis forgot claims: then it has the lease still
                self.retake(session, "lease ran out")
                continue
            session.renewed(now_s)
            if answer.next_score is not None:
                self._holder.wake(session.bucket.number, int(answer.next_score))

    async def follow_server(self) -> None:
        """If another server answers, or it was started again, give all leases back and retake them.

        It may have forgotten what became of claims. Their messages would stay in the mirror for as
        long as the session lasts; and it would give later claims the numbers of forgotten ones.
        """
        here = next((bucket for bucket in self._share.values() if self._is_here(bucket)), None)
        if here is None:
            return
        (found,) = await self._store.run_each([registry.info("server", here.key("lease"))])
        run_id = "" if isinstance(found, StoreError) else found.get("run_id", "")
        if not run_id:
            return
        # Behind some proxies several servers answer in turn. But a master of long ago that takes
        # over again may have forgotten what its successor had answered.
        now_s = self._clock.monotonic()
        answered_s = self._servers.get(run_id, -inf)
        if self._server not in ("", run_id) and now_s - answered_s > _IN_TURN_S:
            for session in list(self.sessions.values()):
                self._drain(session)
        self._server, self._servers[run_id] = run_id, now_s

    async def _follow_clock(self) -> None:
        """Read the clock, if it was not read lately."""
        if self._share and self._is_long_ago(self._clock_read_s):
            await self._note_step(next(iter(self._share.values())))

    async def _note_step(self, bucket: Bucket) -> None:
        """Read the clock of a bucket's node; tell the holder if it was set."""
        self._clock_read_s = self._clock.monotonic()
        if step_ms := await self.read_clock(bucket, 1):
            self._holder.clock_stepped(step_ms)

    def _is_long_ago(self, at_s: float) -> bool:
        return at_s < self._clock.monotonic() - self._owner.renew_ms / 2000

    async def _acquire(self, wanted: Sequence[Bucket]) -> None:
        """Try to take these buckets."""
        if self._closed:
            return
        now_s = self._clock.monotonic()
        owners = [f"{self._owner.name}:{secrets.token_hex(8)}" for _ in wanted]
        ttl_ms, dedup_ms = self._owner.ttl_ms, self._owner.dedup_ms
        back_ms = self._clock.set_back_ms(2 * ttl_ms / 1000)
        pairs = zip(wanted, owners, strict=True)
        answers: list[Acquired | StoreError] = await self._store.run_isolated(
            [b.acquire(o, ttl_ms, dedup_ms=dedup_ms, back_ms=back_ms) for b, o in pairs]
        )
        self._blocked_s = {}
        for bucket, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Acquired) and answer.stranger:
                answer = StoreError("its birth id is not the namespace's")
            if isinstance(answer, StoreError):
                self.damaged_buckets.add(bucket, answer)
                continue
            if answer.token is None:
                self._blocked_s[bucket.number] = now_s + (answer.left_ms + _BLOCKED_RETRY_MS) / 1000
                continue
            self._begin(Session(bucket, answer.token, answer.turn, ttl_ms, now_s))

    def _begin(self, session: Session) -> None:
        bucket = session.bucket.number
        self.sessions[bucket] = session
        self._owner.on_token(bucket, session.token)
        self._holder.begin(session)
        if bucket not in self._share:  # any more
            self._drain(session)

    # ends

    def lost(self, session: Session, reason: str = "lease ran out") -> None:
        """A call found the lease lost: the session is over. The next round takes it again."""
        if session.alive:
            self._end(session)
            self._emit(LeaseLost(bucket=session.bucket.number, reason=reason))
            self._on_change()

    def damaged(self, session: Session, error: StoreError) -> None:
        """The store refused a call: the bucket is set aside until it is repaired."""
        if session.alive:
            self._end(session)
            self.damaged_buckets.add(session.bucket, error, session.token)
            self._changed.set()

    def retake(self, session: Session, reason: str) -> None:
        """End the session at once and give its lease back, so that a new one begins."""
        if session.alive:
            self._end(session)
            self._emit(LeaseLost(bucket=session.bucket.number, reason=reason))
            self._give_back(session.bucket.number, self._release(session))

    def _forget_stale(self) -> None:
        """End sessions without an answer for a whole ttl: their buckets may have other owners."""
        now_s = self._clock.monotonic()
        for session in list(self.sessions.values()):
            if now_s - session.touched_s > self._owner.ttl_ms / 1000:
                self.lost(session, "not renewed in time")

    def _drain(self, session: Session) -> None:
        number = session.bucket.number
        if number not in self._draining and session.alive:
            self._give_back(number, self._drain_and_release(session))

    def _give_back(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._draining[number] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._draining.pop(number, None))

    async def _drain_and_release(self, session: Session) -> None:
        await self._holder.drain(session)
        if session.alive:
            self._end(session)
            await self._release(session)
            self._emit(LeaseReleased(bucket=session.bucket.number))

    async def _release(self, session: Session) -> None:
        release = self._releasing[session.token] = session.bucket.release(session.token)
        await insist(self._store, self._emit, [release])
        del self._releasing[session.token]
        self._on_change()

    def _end(self, session: Session) -> None:
        session.end()
        self.sessions.pop(session.bucket.number, None)
        self._owner.on_token(session.bucket.number, None)
        self._holder.session_over(session)

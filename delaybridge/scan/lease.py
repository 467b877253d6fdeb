"""Leases: which worker scans which bucket.

No worker leads. Every worker announces itself, sees the same list of living workers, and computes
the same fair share. It takes the free buckets of its share, drains and releases all others, and
takes over a dead worker's buckets as soon as their leases run out. Safety does not depend on any of
this: every script that an owner calls compares the lease's token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from delaybridge.errors import StoreError, StoreUnavailable, StoreWiped
from delaybridge.events import (
    Emit,
    FleetDamaged,
    LeaseLost,
    LeaseReleased,
    StoreSilent,
)
from delaybridge.scan.clock import StoreClock
from delaybridge.scan.damaged_buckets import DamagedBuckets
from delaybridge.scan.session import Session
from delaybridge.scan.share import fair_share
from delaybridge.store import registry, replies
from delaybridge.store.calls import Calls
from delaybridge.store.command import RedisCommand
from delaybridge.store.replies import Acquired
from delaybridge.store.store import AsyncStore, insist
from delaybridge.store.verbs import Bucket

_BLOCKED_RETRY_MS = 20  # how long after another worker's lease runs out to try again


class Holder(Protocol):
    """Works on the buckets whose leases are held: the scanner."""

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on."""

    async def drain(self, session: Session) -> None:
        """Return when no message of it is claimed any more: then its lease may be released."""

    def session_over(self, session: Session) -> None:
        """The session is over: publish none of its messages."""

    def wake(self, bucket: int, due_ms: int) -> None:
        """A message due at that time may have come into a bucket."""

    def wake_all(self) -> None:
        """Wake-ups may have been missed: look into every bucket."""

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set."""


class Leases:
    """Keeps this worker's leases. `keep` runs until cancelled; `leave` ends it gracefully."""

    def __init__(
        self,
        store: AsyncStore,
        calls: Calls,
        clock: StoreClock,
        emit: Emit,
        *,
        name: str,
        instance: str,
        info: Callable[[], bytes],
        ttl_ms: int,
        renew_ms: int,
        on_token: Callable[[int, str | None], None],
    ) -> None:
        """calls: an opened namespace. info: returns the worker's announcement, as JSON.

        on_token: called with bucket and token of each lease taken, with None when it ends.
        """
        self._store, self._clock, self._emit = store, clock, emit
        self._namespace, self._buckets, self._birth = calls.namespace, calls.buckets, calls.birth
        self.name, self._instance, self._info = name, instance, info
        self._ttl_ms, self._renew_ms = ttl_ms, renew_ms
        self._on_token = on_token
        self._holder: Holder
        self._changed = asyncio.Event()
        self._leaving = False
        self._round_under_way = asyncio.Lock()
        self._left = asyncio.Event()  # a whole round has ended since `leave`
        self._draining: dict[int, asyncio.Task[None]] = {}
        self._blocked_s: dict[int, float] = {}  # bucket -> when another worker's lease runs out
        self._share: set[int] | None = None  # the buckets that this worker should hold
        self._known: set[int] = set()  # every bucket ever held
        self.damaged_buckets = DamagedBuckets(store, clock.monotonic, emit)
        self.sessions: dict[int, Session] = {}
        self.beat_s = clock.monotonic()  # when the last round began, for the watchdog

    @property
    def is_settled(self) -> bool:
        """Whether it holds exactly its share, except for damaged buckets."""
        if self._share is None or self._draining:
            return False
        return self._share - self.damaged_buckets.numbers == self.sessions.keys()

    async def _announce(self) -> replies.Fleet | None:
        """Announce this worker and get the living ones; None if the fleet's keys are damaged.

        Reads the store's clock as a side effect.
        """
        sent_s = self._clock.monotonic()
        ttl_ms = 0 if self._leaving else self._ttl_ms
        command = registry.announce(
            self._namespace, self.name, self._instance, ttl_ms, self._info()
        )
        (fleet,) = await self._store.run_isolated([command])
        if isinstance(fleet, StoreError):
            self._emit(FleetDamaged(reason=f"{command.keys[0]}, {command.keys[1]}: {fleet}"))
            await self.read_clock(1)
            return None
        if step_ms := self._observe(fleet.now_us, sent_s):
            self._holder.clock_stepped(step_ms)
        return fleet  # type: ignore[no-any-return]

    async def read_clock(self, readings: int = 5) -> None:
        """Read the store's clock a few times; the fastest round trip bounds the error."""
        for _ in range(readings):
            sent_s = self._clock.monotonic()
            self._observe(await self._store.run_one(registry.store_time()), sent_s)

    def changed(self) -> None:
        """Shares may have changed: make a round at once."""
        self._changed.set()

    async def keep(self, holder: Holder) -> None:
        """Make rounds: announce, renew, release, take; sleep until the next is needed."""
        self._holder = holder
        while True:
            self._changed.clear()
            self.beat_s = self._clock.monotonic()
            leaving = self._leaving
            try:
                async with self._round_under_way:
                    wait_s = await self._round()
                if leaving:
                    self._left.set()
            except StoreUnavailable as exc:
                self._emit(StoreSilent(reason=str(exc)))
                self._forget_stale()
                wait_s = min(1.0, self._renew_ms / 1000)
            try:
                async with asyncio.timeout(max(wait_s, 0.001)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    @property
    def draining(self) -> list[asyncio.Task[None]]:
        """Tasks that drain and release a bucket. They wait while the store does not answer."""
        return [*self._draining.values()]

    async def leave(self) -> None:
        """Leave the fleet: announce it, drain and release every bucket. No gap, no duplicate.

        `keep` must go on meanwhile: buckets that are not drained yet still need their leases.
        """
        self._leaving = True
        self._changed.set()
        for session in list(self.sessions.values()):
            self._drain(session)
        # A round under way may still take leases; the round after it drains those.
        await self._left.wait()
        await asyncio.gather(*self._draining.values())

    async def release_all(self) -> None:
        """Release every lease, drained or not: the scanner failed, and the next owner reclaims.

        A worker that leaves announces it again, in case the first call was lost. Cancel `keep` at
        once: its next round would take back the leases released here.
        """
        async with self._round_under_way:
            held = list(self.sessions.values())
            for session in held:
                self._end(session)
            commands: list[RedisCommand[Any]] = [s.bucket.release(s.token) for s in held]
            if self._leaving:
                commands.append(registry.announce(self._namespace, self.name, self._instance, 0))
            if commands:
                await self._store.run_isolated(commands)

    async def _round(self) -> float:
        """One round; returns the seconds until the next is needed."""
        fleet = await self._announce()
        # If the living workers are unknown, each takes any bucket that is free.
        expires_ms = {} if fleet is None else fleet.expires_ms
        if fleet is not None and not fleet.announced:
            raise NameTaken(self.name, expires_ms.get(self.name, 0) - fleet.now_us // 1000)
        await self._renew()
        others_ms = [t for name, t in expires_ms.items() if name != self.name]
        living = [*(n for n in expires_ms if n != self.name), self.name]
        share = {} if self._leaving else fair_share(living, len(self._buckets))
        mine = self._share = {b for b, worker in share.items() if worker == self.name}
        for bucket, session in list(self.sessions.items()):
            if bucket not in mine:
                self._drain(session)
        if await self.damaged_buckets.look():
            self._changed.set()  # to be announced
        free = mine - self.sessions.keys() - self.damaged_buckets.numbers
        await self._acquire([self._buckets[b] for b in sorted(free)])
        now_s = self._clock.monotonic()
        next_s = [now_s + self._renew_ms / 1000, self.damaged_buckets.next_look_s()]
        next_s += [self._clock.monotonic_at(t) + 0.002 for t in others_ms]
        next_s += self._blocked_s.values()
        return min(next_s) - now_s

    async def _renew(self) -> None:
        """Renew the leases that no other call has renewed lately."""
        now_s = self._clock.monotonic()
        fresh_s = now_s - self._renew_ms / 2000
        stale = [s for s in self.sessions.values() if s.alive and s.touched_s < fresh_s]
        asked = [s.bucket.renew(s.token, self._ttl_ms) for s in stale]
        for session, answer in zip(
            stale, await self._store.run_isolated(asked) if asked else (), strict=True
        ):
            if isinstance(answer, StoreError):
                self.damaged(session, answer)
                continue
            if not answer.held:
                self.lost(session)
                continue
            session.touched_s = now_s
            if answer.next_score is not None:
                self._holder.wake(session.bucket.number, int(answer.next_score))

    async def _acquire(self, wanted: Sequence[Bucket]) -> None:
        """Try to take these buckets."""
        self._blocked_s = {}
        if not wanted or not await self._is_ours():
            return
        now_s = self._clock.monotonic()
        owners = [f"{self.name}:{secrets.token_hex(8)}" for _ in wanted]
        answers: list[Acquired | StoreError] = await self._store.run_isolated(
            [b.acquire(o, self._ttl_ms) for b, o in zip(wanted, owners, strict=True)]
        )
        for bucket, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Acquired) and answer.stranger:
                answer = StoreError("its birth id is not the namespace's")
            if isinstance(answer, StoreError):
                self.damaged_buckets.add(bucket, answer)
                continue
            if answer.fresh and bucket.number in self._known:
                raise StoreWiped(f"bucket {bucket.number} starts over at turn 1: data was wiped")
            if answer.token is None:
                self._blocked_s[bucket.number] = now_s + (answer.left_ms + _BLOCKED_RETRY_MS) / 1000
                continue
            session = Session(bucket, answer.token, answer.turn, self._ttl_ms, now_s)
            self.sessions[bucket.number] = session
            self._known.add(bucket.number)
            self._on_token(bucket.number, answer.token)
            self._holder.begin(session)

    async def _is_ours(self) -> bool:
        """Whether the namespace is the one that was opened; False if its record is damaged."""
        (record,) = await self._store.run_isolated([registry.read_birth(self._namespace)])
        if isinstance(record, StoreError):
            self._emit(FleetDamaged(reason=str(record)))
            return False
        if record is None or record[1] != self._birth:
            raise StoreWiped
        return True

    def lost(self, session: Session, reason: str = "lease ran out") -> None:
        """A call found the lease lost: the session is over. The next round takes it again."""
        if session.alive:
            self._end(session)
            self._emit(LeaseLost(bucket=session.bucket.number, reason=reason))
            self._changed.set()

    def damaged(self, session: Session, error: StoreError) -> None:
        """The store refused a call: the bucket is set aside until it is repaired."""
        if session.alive:
            self._end(session)
            self.damaged_buckets.add(session.bucket, error, session.token)
            self._changed.set()

    def _forget_stale(self) -> None:
        """End sessions without an answer for a whole ttl: their buckets may have other owners."""
        now_s = self._clock.monotonic()
        for session in list(self.sessions.values()):
            if now_s - session.touched_s > self._ttl_ms / 1000:
                self.lost(session, "not renewed in time")

    def _drain(self, session: Session) -> None:
        number = session.bucket.number
        if number not in self._draining and session.alive:
            task = asyncio.create_task(self._drain_and_release(session))
            self._draining[number] = task
            task.add_done_callback(lambda _: self._draining.pop(number, None))

    async def _drain_and_release(self, session: Session) -> None:
        await self._holder.drain(session)
        if session.alive:
            self._end(session)
            await insist(self._store, self._emit, [session.bucket.release(session.token)])
            self._emit(LeaseReleased(bucket=session.bucket.number))

    def _end(self, session: Session) -> None:
        session.alive = False
        self.sessions.pop(session.bucket.number, None)
        self._on_token(session.bucket.number, None)
        self._holder.session_over(session)

    def _observe(self, store_us: int, sent_s: float) -> int:
        return self._clock.observe(store_us, sent_s, self._clock.monotonic())


class NameTaken(Exception):
    """Another living worker has this name. left_ms: until its announcement runs out."""

    def __init__(self, name: str, left_ms: int = 0) -> None:
        super().__init__(name)
        self.left_ms = left_ms

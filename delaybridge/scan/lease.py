"""Leases: which worker scans which bucket.

Nobody leads. Every worker announces itself, sees the same list of the living, and computes the
same fair share; it takes what is its own and free, gives surplus back drained, and takes over what
a dead worker held as soon as that lease runs out. Safety does not depend on any of it: every owner
verb compares the token inside its script.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Collection, Sequence
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
from delaybridge.scan.damaged import DamagedBuckets
from delaybridge.scan.session import Session
from delaybridge.store import verbs
from delaybridge.store.calls import Calls
from delaybridge.store.store import AsyncStore, insist_each
from delaybridge.store.verbs import Acquired, Bucket, Command

_BLOCKED_RETRY_MS = 20  # after a foreign lease was to run out


class Holder(Protocol):
    """Who works on the buckets that leases give: the scanner."""

    def begin(self, session: Session) -> None:
        """Work on a bucket from now on."""

    async def drain(self, session: Session) -> None:
        """Return when nothing of the session is claimed any more and its lease may be given up."""

    def session_over(self, session: Session) -> None:
        """The session is over: publish nothing more of it."""

    def wake(self, bucket: int, due_ms: int) -> None:
        """Something due at that time may have come into a bucket."""

    def wake_all(self) -> None:
        """What was known of when to look is void: look into every bucket."""

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set."""


def fair_share(workers: Collection[str], buckets: int) -> dict[int, str]:
    """Bucket -> worker: even to within one, and few move when a worker joins or leaves.

    Rendezvous (highest random weight, Thaler & Ravishankar 1998) with bounded load: pairs of
    worker and bucket by descending weight, each worker up to its share. All who see the same
    workers compute the same answer.
    """
    if not workers:
        return {}
    weights = sorted(((_weight(w, b), w, b) for w in workers for b in range(buckets)), reverse=True)
    floor, extra = divmod(buckets, len(workers))
    share: dict[int, str] = {}
    load = dict.fromkeys(workers, 0)
    for _, worker, bucket in weights:
        full = load[worker] > floor or (load[worker] == floor and extra == 0)
        if bucket not in share and not full:
            extra -= load[worker] == floor
            load[worker] += 1
            share[bucket] = worker
    return share


def _weight(worker: str, bucket: int) -> bytes:
    return hashlib.blake2b(f"{bucket}:{worker}".encode(), digest_size=8).digest()


class Leases:
    """Keeps this worker's leases. `keep` runs until cancelled; `give_up` ends it gracefully."""

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
        """calls: an opened namespace. info: what it says of itself, as JSON.

        on_token: told of each lease taken, and (None) ended.
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
        self._left = asyncio.Event()  # a whole round was made since
        self._draining: dict[int, asyncio.Task[None]] = {}
        self._blocked_s: dict[int, float] = {}  # bucket -> when a foreign lease runs out
        self._share: set[int] | None = None  # the buckets that ought to be held
        self._known: set[int] = set()  # every bucket ever held
        self.damaged_buckets = DamagedBuckets(store, clock.monotonic, emit)
        self.sessions: dict[int, Session] = {}
        self.beat_s = clock.monotonic()  # when `keep` last came round, for the watchdog

    @property
    def is_settled(self) -> bool:
        """Whether every bucket of this worker's share is held or damaged, and none beyond."""
        if self._share is None or self._draining:
            return False
        return self._share - self.damaged_buckets.numbers == self.sessions.keys()

    async def _announce(self) -> verbs.Fleet | None:
        """Say that this worker lives, and learn who does; None if the store's lists are damaged.

        The store's clock is read as a side effect.
        """
        sent_s = self._clock.monotonic()
        ttl_ms = 0 if self._leaving else self._ttl_ms
        said = verbs.announce(self._namespace, self.name, self._instance, ttl_ms, self._info())
        (fleet,) = await self._store.apart([said])
        if isinstance(fleet, StoreError):
            self._emit(FleetDamaged(reason=f"{said.keys[0]}, {said.keys[1]}: {fleet}"))
            await self.read_clock(1)
            return None
        if step_ms := self._observe(fleet.now_us, sent_s):
            self._holder.clock_stepped(step_ms)
        return fleet  # type: ignore[no-any-return]

    async def read_clock(self, readings: int = 5) -> None:
        """Read the store's clock a few times: the fastest round trip bounds the error."""
        for _ in range(readings):
            sent_s = self._clock.monotonic()
            self._observe(await self._store.one(verbs.store_time()), sent_s)

    def changed(self) -> None:
        """Shares may have changed: look again at once."""
        self._changed.set()

    async def keep(self, holder: Holder) -> None:
        """Announce, renew, give back, take; then sleep until one of them is next."""
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
        """Tasks that give a bucket back, for as long as the store does not answer."""
        return [*self._draining.values()]

    async def give_up(self) -> None:
        """Leave the fleet and tell it, drain every bucket, release it: no gap, no duplicate.

        `keep` must go on meanwhile: what is not drained yet still needs its leases.
        """
        self._leaving = True
        self._changed.set()
        for session in list(self.sessions.values()):
            self._drain(session)
        # A round under way may still take leases: those are drained by the round after it.
        await self._left.wait()
        await asyncio.gather(*self._draining.values())

    async def release_all(self) -> None:
        """Release whatever is held, drained or not; the next owner reclaims: a scanner failed.

        A worker that leaves says so once more: it may not have been heard. `keep` is to be
        cancelled at once: its next round would take back what is released here.
        """
        async with self._round_under_way:
            held = list(self.sessions.values())
            for session in held:
                self._end(session)
            said: list[Command[Any]] = [s.bucket.release(s.token) for s in held]
            if self._leaving:
                said.append(verbs.announce(self._namespace, self.name, self._instance, 0))
            if said:
                await self._store.apart(said)

    async def _round(self) -> float:
        """One pass; how long until the next is needed, in seconds."""
        fleet = await self._announce()
        # Where it cannot be known who lives, each takes whatever is free.
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
        """Renew what no owner verb has renewed lately."""
        now_s = self._clock.monotonic()
        fresh_s = now_s - self._renew_ms / 2000
        stale = [s for s in self.sessions.values() if s.alive and s.touched_s < fresh_s]
        asked = [s.bucket.renew(s.token, self._ttl_ms) for s in stale]
        for session, answer in zip(
            stale, await self._store.apart(asked) if asked else (), strict=True
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
        """Try to take buckets that are ours to have."""
        self._blocked_s = {}
        if not wanted or not await self._is_ours():
            return
        now_s = self._clock.monotonic()
        owners = [f"{self.name}:{secrets.token_hex(8)}" for _ in wanted]
        answers: list[Acquired | StoreError] = await self._store.apart(
            [b.acquire(o, self._ttl_ms) for b, o in zip(wanted, owners, strict=True)]
        )
        for bucket, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Acquired) and answer.stranger:
                answer = StoreError("its birth id is not the namespace's")
            if isinstance(answer, StoreError):
                self.damaged_buckets.add(bucket, answer)
                continue
            if answer.fresh and bucket.number in self._known:
                raise StoreWiped(f"bucket {bucket.number} is not the one it was: data was wiped")
            if answer.token is None:
                self._blocked_s[bucket.number] = now_s + (answer.left_ms + _BLOCKED_RETRY_MS) / 1000
                continue
            session = Session(bucket, answer.token, answer.turn, self._ttl_ms, now_s)
            self.sessions[bucket.number] = session
            self._known.add(bucket.number)
            self._on_token(bucket.number, answer.token)
            self._holder.begin(session)

    async def _is_ours(self) -> bool:
        """Whether the namespace is the one that was opened: False if that cannot be read."""
        (record,) = await self._store.apart([verbs.read_birth(self._namespace)])
        if isinstance(record, StoreError):
            self._emit(FleetDamaged(reason=str(record)))
            return False
        if record is None or record[1] != self._birth:
            raise StoreWiped
        return True

    def lost(self, session: Session, reason: str = "lease ran out") -> None:
        """A verb was refused: the session is over. Looked into, and taken again, at once."""
        if session.alive:
            self._end(session)
            self._emit(LeaseLost(bucket=session.bucket.number, reason=reason))
            self._changed.set()

    def damaged(self, session: Session, error: StoreError) -> None:
        """The store refused a verb: the bucket waits until it is mended."""
        if session.alive:
            self._end(session)
            self.damaged_buckets.add(session.bucket, error, session.token)
            self._changed.set()

    def _forget_stale(self) -> None:
        """Without an answer for a whole lease the bucket may be somebody else's: stop first."""
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
            await insist_each(self._store, self._emit, [session.bucket.release(session.token)])
            self._emit(LeaseReleased(bucket=session.bucket.number))

    def _end(self, session: Session) -> None:
        session.alive = False
        self.sessions.pop(session.bucket.number, None)
        self._on_token(session.bucket.number, None)
        self._holder.session_over(session)

    def _observe(self, store_us: int, sent_s: float) -> int:
        return self._clock.observe(store_us, sent_s, self._clock.monotonic())


class NameTaken(Exception):
    """Another living worker bears the same name. left_ms: until its announcement runs out."""

    def __init__(self, name: str, left_ms: int = 0) -> None:
        super().__init__(name)
        self.left_ms = left_ms

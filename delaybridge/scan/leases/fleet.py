"""The fleet: which workers live, and which buckets are this worker's share.

No worker leads. Every worker announces itself, sees the same list of living workers, and computes
the same fair share. It takes the free buckets of its share (`lease.py`), drains and releases all
others, and takes over a dead worker's buckets as soon as their leases run out. Safety does not
depend on any of this: every script that an owner calls compares the lease's token.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection
from typing import Protocol

from delaybridge.errors import StoreError, StoreUnavailable
from delaybridge.events import ClockDiffers, Emit, FleetDamaged, StoreSilent, TakenForDead
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import replies
from delaybridge.store.redis.store import AsyncStore
from delaybridge.times import MOST_SKEW_MS

_NOT_OURS_S = 0.5  # how soon to look again whether the namespace is the one that was opened


class Holders(Protocol):
    """Those who hold the leases of this worker."""

    def lacks(self, share: set[int]) -> bool:
        """Whether a bucket of this share is to be taken."""

    def assign(self, share: set[int], *, may_take: bool) -> None:
        """Hold these buckets, and give all others back.

        may_take: free ones may be taken now; the namespace is the one that was opened.
        """


class Membership:
    """Announces this worker and keeps its share. `keep` runs until cancelled.

    share: the buckets that this worker should hold, None before the fleet's first answer. While
    the store does not answer, the share stays as it is, and nothing is taken. living: the names of
    all workers. was_ousted: others took it for dead: it must not be judged by its lines any more.
    left: set when the fleet knows that this worker leaves.
    """

    def __init__(
        self, store: AsyncStore, calls: Calls, emit: Emit, *, name: str, instance: str,
        info: Callable[[], bytes], ttl_ms: int, renew_ms: int,
    ) -> None:  # fmt: skip
        """calls: an opened namespace. info: returns the worker's announcement, as JSON."""
        self._store, self._emit = store, emit
        self._namespace, self._birth = calls.namespace, calls.birth
        self._following = calls.following
        self.name, self._instance, self._info = name, instance, info
        self._ttl_ms, self._renew_ms = ttl_ms, renew_ms
        # Announcements expire by the clock of their own server, which a shift may never read.
        self._clock = StoreClock()
        self._differs = False
        self._changed = asyncio.Event()
        self._leaving = False
        self.left = asyncio.Event()
        self.share: set[int] | None = None
        self.living: list[str] = []
        self.was_ousted = False
        self.beat_s = self._clock.monotonic()  # when the last round began, for the watchdog

    @property
    def ahead_ms(self) -> int | None:
        """How far this host's clock is ahead of Redis', at least; None if that is not known yet."""
        return self._clock.ahead_ms(time.time()) if self._clock.is_set else None

    def changed(self) -> None:
        """Shares may have changed: make a round at once."""
        self._changed.set()

    async def keep(self, holders: Holders) -> None:
        """Make rounds: announce, compute the share, have it held; sleep until the next is needed.

        Raises NameTaken.
        """
        while True:
            self._changed.clear()
            self.beat_s = self._clock.monotonic()
            leaving = self._leaving
            try:
                wait_s = await self._round(holders)
                if leaving:
                    self.left.set()
            except StoreUnavailable as exc:
                self._emit(StoreSilent(reason=str(exc)))
                wait_s = min(1.0, self._renew_ms / 1000)
            try:
                async with asyncio.timeout(max(wait_s, 0.001)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def leave(self) -> None:
        """Announce that this worker leaves, and hold nothing any more. `keep` must go on."""
        self._leaving = True
        self._changed.set()

    async def _round(self, holders: Holders) -> float:
        """One round; returns the seconds until the next is needed."""
        fleet = await self._announce()
        # If the living workers are unknown, each takes any bucket that is free.
        expires_ms = {} if fleet is None else fleet.expires_ms
        if fleet is not None and not fleet.announced:
            raise NameTaken(self.name, expires_ms.get(self.name, 0) - fleet.now_us // 1000)
        others_ms = [t for name, t in expires_ms.items() if name != self.name]
        self.living = [*(n for n in expires_ms if n != self.name), self.name]
        if fleet is not None and fleet.ousted and not self._knows_ousted:
            self.was_ousted = True
            self._emit(TakenForDead())
            self.changed()  # what was announced now has lines
        mine = self._mine()
        lacks = not self._leaving and holders.lacks(mine)
        may_take = lacks and await self._is_ours()
        self.share = set() if self._leaving else mine
        holders.assign(self.share, may_take=may_take)
        now_s = self._clock.monotonic()
        next_s = [now_s + self._renew_ms / 1000]
        next_s += [self._clock.monotonic_at(t) + 0.002 for t in others_ms]
        next_s += [now_s + _NOT_OURS_S] if lacks and not may_take else []
        return min(next_s) - now_s

    def _mine(self) -> set[int]:
        """The buckets that this one of the living workers is to hold."""
        owners = fair_share(self.living, self._following.numbers())
        there = {each.number for each in self._following.held()}
        return {bucket for bucket, worker in owners.items() if worker == self.name} & there

    async def _announce(self) -> replies.Fleet | None:
        """Announce this worker and get the living ones; None if the fleet's keys are damaged."""
        sent_s = self._clock.monotonic()
        ttl_ms = 0 if self._leaving else self._ttl_ms
        command = registry.announce(
            self._namespace, self.name, self._instance, ttl_ms, self._info(),
            clock_ms=self._clock.now_ms() if self._clock.is_set else None,
            knows_ousted=self._knows_ousted,
        )  # fmt: skip
        (fleet,) = await self._store.run_isolated([command])
        if isinstance(fleet, StoreError):
            self._emit(FleetDamaged(reason=f"{command.keys[0]}, {command.keys[1]}: {fleet}"))
            return None
        self._clock.observe(fleet.now_us, sent_s, self._clock.monotonic())
        self._compare_clocks()
        return fleet  # type: ignore[no-any-return]

    @property
    def _knows_ousted(self) -> bool:
        """Or an earlier run of this process was, whose lines ended with it."""
        return self.was_ousted or self.share is None

    def _compare_clocks(self) -> None:
        """Say once that this host's clock differs; nothing but times in logs depends on it."""
        ahead_ms = self.ahead_ms or 0
        differs, differed = abs(ahead_ms) > MOST_SKEW_MS, self._differs
        self._differs = differs
        if differs and not differed:
            self._emit(ClockDiffers(ahead_ms=ahead_ms))

    async def _is_ours(self) -> bool:
        """Whether the namespace is the one that was opened; False also if its record is damaged."""
        (record,) = await self._store.run_isolated([registry.read_birth(self._namespace)])
        if isinstance(record, StoreError):
            self._emit(FleetDamaged(reason=str(record)))
            return False
        # `worker/history_check.py` decides whether it was wiped, or on another server for a moment.
        return record is not None and record[1] == self._birth


class NameTaken(Exception):
    """Another living worker has this name. left_ms: until its announcement runs out."""

    def __init__(self, name: str, left_ms: int = 0) -> None:
        super().__init__(name)
        self.left_ms = left_ms


def fair_share(workers: Collection[str], buckets: Collection[int]) -> dict[int, str]:
    """Bucket -> worker: even to within one, and few move when a worker joins or leaves.

    Rendezvous (highest random weight, Thaler & Ravishankar 1998) with bounded load: pairs of
    worker and bucket by descending weight, each worker up to its share. All that see the same
    workers compute the same answer.
    """
    if not workers:
        return {}
    weights = sorted(((_weight(w, b), w, b) for w in workers for b in buckets), reverse=True)
    floor, extra = divmod(len(buckets), len(workers))
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

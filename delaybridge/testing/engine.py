"""The real engine on a clock that is set: one worker's shift, which goes from instant to instant.

There are no leases to keep, no other workers, and no time that passes by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from delaybridge.message import PULL, Limits
from delaybridge.publish.pull import PullPublisher
from delaybridge.recurring.stored import first_look, recur
from delaybridge.scan.lanes.lane import Broker
from delaybridge.scan.leases.clock import StoreClock
from delaybridge.scan.leases.lease import LeaseOwner
from delaybridge.scan.leases.session import Session
from delaybridge.scan.scanner import Scanner
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry, rules
from delaybridge.store.redis.store import AsyncStore
from delaybridge.testing.brokers import Arrivals, NotingPublisher
from delaybridge.testing.redis import MemoryRedis
from delaybridge.worker.shift import Common, Shift, wake_up

_TTL_MS = _NEVER_MS = 2**45  # of the leases: a thousand years
_TURNS_OF_THE_LOOP = 5  # a report, the ring that it causes, and what that wakes
_DEFINITIONS_AT_ONCE = 100


class _SetClock(StoreClock):
    """The store's clock, known exactly."""

    is_set = True

    def now_ms(self) -> int:
        return round(self.monotonic() * 1000)

    def observe(self, store_us: int, sent_s: float, received_s: float) -> int:
        return 0

    glance = observe


class Engine:
    """Delivers what is due. Made and used on a running loop, on which nothing else has tasks."""

    def __init__(self, redis: MemoryRedis, settings: Settings, arrivals: Arrivals) -> None:
        self._redis, self._settings, self._arrivals = redis, settings, arrivals
        self._namespace = settings.namespace
        self._calls = Calls(self._namespace, dict(settings.brokers) or None, None, Limits())
        self._store = AsyncStore(settings.redis.url)
        self._rules = rules.NO_RULES
        self._has_rung = False
        self._scanner: Any = None  # a `Scanner`, once a client has used the namespace
        self.publishers = {name: self._publisher(name) for name in arrivals.kinds}

    async def close(self) -> None:
        """End what is under way, and the connections."""
        if self._scanner is not None:
            self._scanner.calls.cancel()
            await self._shift.end()
        await self._store.close()

    async def run(self, until_ms: int) -> bool:
        """Deliver what is due next, if it is by then. Whether nothing was; the clock ends there."""
        known, runs_ms = len(self._arrivals.all), 0
        if await self._open():
            while True:
                if runs_ms <= self._redis.now_ms:
                    runs_ms = await self._make_runs()
                next_ms = min(runs_ms, await self._passes())
                if len(self._arrivals.all) > known:
                    return False
                if next_ms > until_ms:
                    break
                self._redis.now_ms = next_ms
        self._redis.now_ms = max(until_ms, self._redis.now_ms)
        return True

    # at the start

    def _publisher(self, name: str) -> NotingPublisher:
        made = NotingPublisher(name, "", report=self._report, on_change=self._ring, options=None)
        made.arrivals = self._arrivals
        return made

    def _report(self, *args: Any) -> None:
        self._scanner.report(*args)

    async def _open(self) -> bool:
        """Get ready, and read the rules; False: no client has used the namespace yet."""
        if self._scanner is None:
            if await self._store.run_one(registry.read_birth(self._namespace)) is None:
                return False
            await self._begin()
        before, (stored,) = self._rules, await self._store.run([rules.read(self._namespace)])
        self._rules = rules.understood(stored, before)
        if self._rules.by_place != before.by_place and self._shift.lanes is not None:
            self._shift.lanes.rules_changed(self._rules)
        return True

    async def _begin(self) -> None:
        kinds, dedup_s = self._arrivals.kinds, self._settings.publish.dedup_window_s
        owner = LeaseOwner("testing", _TTL_MS, _TTL_MS, _ignore, round(dedup_s * 1000))
        brokers = {name: Broker(kinds[name], each) for name, each in self.publishers.items()}
        brokers[PULL] = Broker(PULL, PullPublisher(self._report))
        common = Common(
            self._store, lambda: self._settings, owner, _ignore, brokers, lambda: self._rules,
            _ignore, _ignore, None,
        )  # fmt: skip
        buckets = await self._store.complete(self._calls.open())
        clock = _SetClock(lambda: self._redis.now_ms / 1000)
        self._shift = Shift(common, "", 1, len(buckets), clock)
        self._shift.alarm.ring = self._ring  # type: ignore[method-assign]
        self._scanner = self._shift.build()
        self._redis.on_publish = self._hear
        for bucket in buckets:
            asked = bucket.acquire("testing:1", _TTL_MS, dedup_ms=owner.dedup_ms)
            taken = await self._store.run_one(asked)
            self._scanner.begin(Session(bucket, str(taken.token), taken.turn, _TTL_MS, 0.0))

    # at one instant

    async def _make_runs(self) -> int:
        """Make the runs of recurring definitions, as a worker does; when to make the next."""
        while (looks_ms := await self._store.run_one(first_look(self._namespace))) is not None:
            if looks_ms > self._redis.now_ms:
                return int(looks_ms)
            from delaybridge.recurring.runs import RunMaking

            taken = await self._store.run_one(recur(self._namespace, _DEFINITIONS_AT_ONCE))
            await self._store.complete(RunMaking(self._calls).make_taken(*taken))
        return _NEVER_MS

    async def _passes(self) -> int:
        """Pass after pass of the scanner, until nothing more happens now; when to look again."""
        scanner: Scanner = self._scanner
        while True:
            self._has_rung, now_ms = False, self._redis.now_ms
            look_ms = scanner.scan(now_ms) or _NEVER_MS
            scanner.settling.start(now_ms + _TTL_MS, is_backlog=False)  # without waiting for more
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(_TURNS_OF_THE_LOOP):
                await asyncio.sleep(0)
            if scanner.calls.failure is not None:
                raise scanner.calls.failure
            if not self._has_rung and look_ms > now_ms:
                return look_ms

    def _ring(self) -> None:
        self._has_rung = True

    def _hear(self, text: str) -> None:
        if (found := wake_up(text)) is not None:
            self._scanner.wake(*found)


def _ignore(*_: object) -> None:
    """There is nothing to tell."""

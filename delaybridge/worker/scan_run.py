"""One run of a worker's scanner: builds it with its leases and brokers, and ends all of them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError
from delaybridge.publish import PublishOptions
from delaybridge.scan.alarm import Alarm
from delaybridge.scan.clock import StoreClock
from delaybridge.scan.context import ScanOptions
from delaybridge.scan.lanes import Lanes
from delaybridge.scan.lease import Leases
from delaybridge.scan.retry import RetryPolicy
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.spans import PublishSpans
from delaybridge.settings.urls import kinds_of
from delaybridge.store import keys, registry
from delaybridge.store.calls import Calls
from delaybridge.store.rules import Rules
from delaybridge.store.store import AsyncStore
from delaybridge.tracing import active
from delaybridge.worker.brokers import Brokers
from delaybridge.worker.eventlog import say
from delaybridge.worker.pulse import Part, Pulse
from delaybridge.worker.recurring import RecurringRuns
from delaybridge.worker.service import end, until
from delaybridge.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from delaybridge.worker.worker import Worker

_WAKE = re.compile(r"([0-9]{1,5}) ([0-9]{1,16})")  # bucket, due_ms
# The steps of a drain, as shares of scan.drain_timeout_s.
_CONFIRMS = 0.76  # wait for the brokers' confirms
_LEAVING = 0.04  # disconnect from the brokers
_TELLING = 0.1  # tell the store what became of the messages
_RELEASING = 0.05  # release the leases that are still held
_CLOSE_S = 0.5  # to wait for confirms when the brokers are disconnected
_STUCK_MS = 10_000  # nothing fired for this long, with neither the store nor a broker to blame
_BURST_POLL_S = 0.05

OnToken = Callable[[int, str | None], None]


class ScanRun:
    """One run of the scanner, with its leases and brokers, from start to drained or failed."""

    def __init__(self, worker: Worker, store: AsyncStore, calls: Calls) -> None:
        self._worker, self._store, self._calls = worker, store, calls
        self._settings = worker.settings
        self._clock = StoreClock()
        self._alarm = Alarm()
        self._destinations = worker.destinations
        self._rules_told = asyncio.Event()
        self._recurring = RecurringRuns(store, calls, worker.emit)
        parts: list[Part] = [self._destinations, worker.broadcast, self._recurring, worker.sampler]
        self.pulse = Pulse(store, parts)
        self._leases = Leases(
            store, calls, self._clock, worker.emit,
            name=worker.identity.name,
            instance=worker.identity.instance,
            info=self._info,
            ttl_ms=self._settings.lease.ttl_ms,
            renew_ms=self._settings.lease.renew_ms,
            on_token=worker.on_token,
        )  # fmt: skip
        worker.sampler.held = lambda: [each.bucket for each in self._leases.sessions.values()]
        self._scanner: Scanner
        self._brokers: Brokers

    async def run(self) -> None:
        """Scan until the worker is stopped, then drain. Raises any error that ends it earlier."""
        try:
            await self._leases.read_clock()
            await self._destinations.read(self._store)  # nothing that is paused is published
            self._settings = self._worker.settings  # a reload may have changed them meanwhile
            self._brokers = Brokers(
                self._settings.brokers,
                PublishOptions.of(self._settings.publish),
                report=lambda deliveries, outcome: self._scanner.report(deliveries, outcome),
                on_change=self._broker_changed,
            )
            self._scanner = self._build_scanner()
            self._destinations.on_change = self._rules_changed
            self._lanes.rules_changed(self._destinations.rules)
            await self._work()
        finally:
            self._alarm.close()

    async def _work(self) -> None:
        s = self._settings
        work: list[asyncio.Task[Any]] = [
            asyncio.create_task(part)
            for part in (
                self._brokers.keep(),
                self._scanner.run(),
                self._leases.keep(self._scanner),
                self._listen(),
                self._follow_rules(),
                self._watch(),
                self.pulse.run(),
                *([self._trim()] if s.dead.is_bounded else []),
            )
        ]
        self._worker.current_run = self
        watchdog = Watchdog(lambda: self._leases.beat_s, self._settings.lease.ttl_ms * 3 / 1000)
        try:
            await until(asyncio.create_task(self._ended()), work)
            await until(asyncio.create_task(self._drain()), work)
        finally:
            self._worker.current_run = None
            watchdog.stop()
            await self._close()
            await end([*work, *self._leases.draining])
            await self._recurring.close()
            await self.pulse.last_beat()

    def _build_scanner(self) -> Scanner:
        s, emit = self._settings, self._worker.emit
        self._lanes = Lanes(
            self._brokers.by_name,
            RetryPolicy(**s.retry.model_dump()),
            emit,
            window_messages=s.publish.window_messages,
            window_bytes=s.publish.window_bytes,
            dead_letters={to.partition(":")[0]: to for to in s.dead.dead_letter},
            spans=self._spans(),
        )
        bounds = ScanOptions(
            claim_ahead_ms=s.scan.claim_ahead_ms,
            wheel_messages=s.scan.wheel_messages,
            wheel_bytes=s.scan.wheel_bytes,
            batch_messages=s.scan.batch_messages,
            batch_bytes=s.scan.batch_bytes,
            fire_lead_ms=s.scan.fire_lead_ms,
        )
        return Scanner(
            self._store, self._lanes, self._clock, self._alarm, emit, bounds,
            lost=self._leases.lost, damaged=self._leases.damaged,
            allow=partial(registry.allow, s.namespace),
        )  # fmt: skip

    def _spans(self) -> PublishSpans | None:
        if (tracing := active()) is None:
            return None
        name = self._worker.identity.name
        return PublishSpans(tracing, name, lambda broker: self._settings.brokers.get(broker))

    def _broker_changed(self) -> None:
        """Wake the scanner, and announce the change to the fleet."""
        self._alarm.ring()
        self._leases.changed()

    def _info(self) -> bytes:
        """This worker's announcement as JSON, shown by `worker ls` and `doctor`."""
        about = json.loads(self._worker.identity.info)
        about |= self._lanes.announced() | {"damaged": self._leases.damaged_buckets.announced()}
        about["failing"] = self.pulse.announced()
        return json.dumps(about).encode()

    def reported(self) -> dict[str, Any]:
        """The fields of this worker's report that tell of its scanner."""
        brokers = self._brokers.by_name.items()
        return {
            "buckets": tuple(self._leases.sessions),
            "brokers": {name: broker.publisher.unavailable for name, broker in brokers},
            "scanned_s": self._leases.beat_s,
            **self._lanes.reported(),
        }

    def change_brokers(self, names: Set[str]) -> None:
        """Replace, add or remove the brokers of these names, and keep every lease."""
        self._settings = self._worker.settings
        if names:
            replaced = self._brokers.change(self._settings.brokers, names)
            self._calls.kinds = kinds_of(self._settings.brokers)
            self._brokers.retire(replaced, self._lanes.brokers_changed(names))
            self._broker_changed()

    async def _listen(self) -> None:
        """Act on wake-ups: a message is due soon in a bucket, or the fleet has changed."""
        subscriptions = 0
        async for text in self._store.listen(keys.wake(self._settings.namespace)):
            if text is None:  # subscribed: anything published before may have been missed
                subscriptions += 1
                if subscriptions > 1:
                    say(logging.WARNING, "wake_ups_lost", hint="every bucket is checked")
                self._scanner.wake_all()
                self._leases.changed()
                self._rules_told.set()
            elif text == "destinations":
                self._destinations.told()
                self._rules_told.set()
            elif text == "fleet":
                self._leases.changed()
            else:
                # Anything may be published on the channel: a malformed text is ignored.
                if (found := _WAKE.fullmatch(text)) is not None:
                    self._scanner.wake(int(found[1]), int(found[2]))

    async def _follow_rules(self) -> None:
        """Read the rules of destinations whenever they change; the pulse does it each second."""
        while True:
            await self._rules_told.wait()
            self._rules_told.clear()
            self._destinations.take(await self._store.run_each(self._destinations.commands()))

    def _rules_changed(self, rules: Rules) -> None:
        """Obey them now, and announce what is paused."""
        self._lanes.rules_changed(rules)
        self._broker_changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)
            self._scanner.check_moving(max(self._settings.lease.ttl_ms, _STUCK_MS))

    async def _trim(self) -> None:
        """Keep the dead set within its bounds, a few messages at a time."""
        dead, buckets = self._settings.dead, len(self._calls.buckets)
        age_ms = round(dead.max_age_s * 1000) if dead.max_age_s else None
        while True:
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)
            await self._scanner.trim(dead.max_messages or None, age_ms, buckets=buckets)

    async def _ended(self) -> None:
        """Return when the worker is stopped; in a burst also when nothing is due any more."""
        worker = self._worker
        if worker.burst:
            await self._brokers.tried.wait()
            while not (worker.stopping.is_set() or self._is_done()):
                await worker.pause(_BURST_POLL_S)
            worker.stopping.set()
        await worker.stopping.wait()

    def _is_done(self) -> bool:
        return self._leases.is_settled and self._scanner.is_idle()

    async def _drain(self) -> None:
        """Give every bucket back. Messages not confirmed in time are published again later."""
        total_s = self._settings.scan.drain_timeout_s
        giving = asyncio.create_task(self._leases.leave())
        done, _ = await asyncio.wait([giving], timeout=_CONFIRMS * total_s)
        if not done:
            say(logging.WARNING, "drain_timeout", hint="unconfirmed messages are published again")
            await self._brokers.close(min(_CLOSE_S, _LEAVING * total_s))
            await asyncio.wait([giving], timeout=_TELLING * total_s)
        giving.cancel()

    async def _close(self) -> None:
        """Disconnect, and release the leases still held; when stopping, within a short time."""
        await self._brokers.close(_CLOSE_S)
        left_s = _RELEASING * self._settings.scan.drain_timeout_s
        try:
            async with asyncio.timeout(left_s if self._worker.stopping.is_set() else None):
                await self._leases.release_all()
            self._worker.gave_back = True
        except (StoreError, TimeoutError) as exc:
            self._worker.gave_back = False
            reason = str(exc) or "redis: no answer"
            say(logging.WARNING, "leases_not_released", reason=reason, hint="they run out")

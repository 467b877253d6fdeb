"""The worker process: builds a scanner with its leases and publishers, and keeps it alive."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Set
from typing import Any

from delaybridge.errors import (
    ConfigError,
    NotDrained,
    StoreError,
    StoreUnavailable,
    StoreWiped,
)
from delaybridge.events import ScannerFailed, StoreSilent
from delaybridge.publish import PublishOptions
from delaybridge.scan.alarm import Alarm
from delaybridge.scan.clock import StoreClock
from delaybridge.scan.context import ScanOptions
from delaybridge.scan.lanes import Lanes
from delaybridge.scan.lease import Leases, NameTaken
from delaybridge.scan.retry import RetryPolicy
from delaybridge.scan.scanner import Scanner
from delaybridge.settings.settings import Settings
from delaybridge.store import keys, rights
from delaybridge.store.calls import Calls
from delaybridge.store.store import AsyncStore
from delaybridge.worker.brokers import Brokers
from delaybridge.worker.eventlog import EventLog, say
from delaybridge.worker.reload import changed_brokers, reread
from delaybridge.worker.service import Identity, Service, end, run, until

_WAKE = re.compile(r"([0-9]{1,5}) ([0-9]{1,16})")  # bucket, due_ms
_log = logging.getLogger("delaybridge")
_RESTART_S = (0.1, 10.0)  # pause before a failed scanner begins anew: first, at most
_STEADY_S = 10.0  # one that worked for so long begins anew after the first pause
# Shares of scan.drain_timeout_s: to wait for confirms, to leave the brokers, to tell the store what
# became of messages, to release what is still held.
_CONFIRMS, _LEAVING, _TELLING, _RELEASING = 0.76, 0.04, 0.1, 0.05
_CLOSE_S = 0.5  # for what is unconfirmed when the brokers are left
_STUCK_MS = 10_000  # nothing fired for this long, with neither the store nor a broker to blame
_REDIS_AWAY_S = 0.5  # pause before Redis is asked again; asking took its time-out already

OnToken = Callable[[int, str | None], None]


class Worker(Service):
    """One process' work, from start to drained."""

    left_behind = "the next owner reclaims"

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        burst: bool = False,
        on_token: OnToken = lambda bucket, token: None,
    ) -> None:
        """burst: end when nothing is due. on_token: told of each lease taken, and (None) ended."""
        super().__init__()
        self.settings, self.identity, self.on_token = settings, identity, on_token
        self.burst = burst
        self.emit = EventLog()
        self.gave_back = True  # every lease it took
        self.shift: Shift | None = None  # while it works
        self._pause_s = _RESTART_S[0]

    async def work(self) -> None:
        """Scan until stopped. Raises only what beginning anew cannot mend."""
        s = self.settings
        store = AsyncStore(s.redis.url, timeout_s=s.redis.timeout_s)
        if not s.brokers:
            raise ConfigError("brokers: none is configured; add --broker amqp://... or kafka://...")
        calls = Calls(s.namespace, s.brokers, s.buckets, s.limits.as_limits())
        free_s: float | None = None  # when a name that is taken is free if its bearer is dead
        try:
            await store.complete(calls.open())
            await store.complete(rights.check(s.namespace, "worker"))
            while not self.stopping.is_set():
                began_s = time.monotonic()
                try:
                    await Shift(self, store, calls).run()
                except (ConfigError, StoreWiped):
                    raise
                except NameTaken as exc:
                    # A dead predecessor's announcement runs out; a living one's is renewed.
                    now_s = time.monotonic()
                    free_s = now_s + exc.left_ms / 1000 + 1 if free_s is None else free_s
                    if now_s > free_s:
                        raise
                    say(logging.INFO, "name_taken", name=str(exc), hint="waits for its owner")
                    await self.pause(0.5)
                except StoreUnavailable as exc:
                    self.emit(StoreSilent(reason=str(exc)))
                    await self.pause(_REDIS_AWAY_S)
                except Exception as exc:
                    await self._failed(exc, time.monotonic() - began_s)
        finally:
            self.emit.flush()
            await store.close()

    async def reload(self) -> None:
        """Brokers as they are written now. Nothing changes if anything of it is refused."""
        taken = await asyncio.to_thread(reread, self.settings)
        if taken is None:
            return
        changed = changed_brokers(self.settings, taken)
        self.settings = taken
        if self.shift is not None:
            self.shift.change_brokers(changed)
        say(logging.INFO, "reloaded", changed_brokers=",".join(sorted(changed)) or "none")

    async def _failed(self, exc: Exception, lived_s: float) -> None:
        """Say so, and wait before the next try: longer each time, while none lives for long.

        Whatever it was: the leases were given up, and whoever takes them, perhaps this very
        process, begins with a reclaim.
        """
        self.emit(ScannerFailed(reason=f"{type(exc).__name__}: {exc}"))
        _log.debug("the scanner failed", exc_info=exc)
        first_s, most_s = _RESTART_S
        pause_s = first_s if lived_s > _STEADY_S else self._pause_s
        self._pause_s = min(pause_s * 2, most_s)
        await self.pause(pause_s)


class Shift:
    """One try at working: scanner, publishers and leases, built and ended together."""

    def __init__(self, worker: Worker, store: AsyncStore, calls: Calls) -> None:
        self._worker, self._store, self._calls = worker, store, calls
        self._s = worker.settings
        self._clock = StoreClock()
        self._alarm = Alarm()
        self._leases = Leases(
            *(store, calls, self._clock, worker.emit),
            name=worker.identity.name,
            instance=worker.identity.instance,
            info=self._info,
            ttl_ms=self._s.lease.ttl_ms,
            renew_ms=self._s.lease.renew_ms,
            on_token=worker.on_token,
        )
        self._scanner: Scanner
        self._brokers: Brokers

    async def run(self) -> None:
        """Work until the worker is stopped, then drain. Raises what ended it before."""
        try:
            await self._leases.read_clock()
            self._s = self._worker.settings  # as they are by now
            self._brokers = Brokers(
                *(self._s.brokers, PublishOptions.of(self._s.publish)),
                report=lambda deliveries, outcome: self._scanner.report(deliveries, outcome),
                on_change=self._broker_changed,
            )
            self._scanner = self._build()
            await self._work()
        finally:
            self._alarm.close()

    async def _work(self) -> None:
        s = self._s
        work: list[asyncio.Task[Any]] = [
            asyncio.create_task(part)
            for part in (
                self._brokers.keep(),
                self._scanner.run(),
                self._leases.keep(self._scanner),
                self._listen(),
                self._watch(),
                *([self._trim()] if s.dead.is_bounded else []),
            )
        ]
        self._worker.shift = self
        watchdog = _Watchdog(lambda: self._leases.beat_s, self._s.lease.ttl_ms * 3 / 1000)
        try:
            await until(asyncio.create_task(self._ended()), work)
            await until(asyncio.create_task(self._drain()), work)
        finally:
            self._worker.shift = None
            watchdog.stop()
            await self._close()
            await end([*work, *self._leases.draining])

    def _build(self) -> Scanner:
        s, emit = self._s, self._worker.emit
        self._lanes = Lanes(
            *(self._brokers.by_name, RetryPolicy(**s.retry.model_dump()), emit),
            window_messages=s.publish.window_messages,
            window_bytes=s.publish.window_bytes,
            dead_letters={to.partition(":")[0]: to for to in s.dead.dead_letter},
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
            *(self._store, self._lanes, self._clock, self._alarm, emit, bounds),
            lost=self._leases.lost,
            damaged=self._leases.damaged,
        )

    def _broker_changed(self) -> None:
        """Have the scanner look, and the fleet told."""
        self._alarm.ring()
        self._leases.changed()

    def _info(self) -> bytes:
        """What this worker says of itself to whoever asks how the fleet does."""
        about = json.loads(self._worker.identity.info)
        about |= self._lanes.announced() | {"damaged": self._leases.damaged_buckets.announced()}
        return json.dumps(about).encode()

    def change_brokers(self, names: Set[str]) -> None:
        """The brokers of these names are other ones now, new, or gone. No lease is given back."""
        self._s = self._worker.settings
        if names:
            left = self._brokers.change(self._s.brokers, names)
            self._brokers.leave(left, self._lanes.brokers_changed(names))
            self._broker_changed()

    async def _listen(self) -> None:
        """Wake-ups: a message due soon in a bucket, or a change in the fleet."""
        subscriptions = 0
        async for said in self._store.listen(keys.wake(self._s.namespace)):
            if said is None:
                subscriptions += 1
                if subscriptions > 1:
                    say(logging.WARNING, "wake_ups_lost", hint="every bucket is looked into")
                self._scanner.wake_all()
                self._leases.changed()
            elif said == "fleet":
                self._leases.changed()
            else:
                found = _WAKE.fullmatch(said)  # anybody may say anything
                if found is not None:
                    self._scanner.wake(int(found[1]), int(found[2]))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._s.lease.renew_ms / 1000)
            self._scanner.check_moving(max(self._s.lease.ttl_ms, _STUCK_MS))

    async def _trim(self) -> None:
        """Keep the dead set within its bounds, a little at a time."""
        dead, buckets = self._s.dead, len(self._calls.buckets)
        age_ms = round(dead.max_age_s * 1000) if dead.max_age_s else None
        while True:
            await asyncio.sleep(self._s.lease.renew_ms / 1000)
            await self._scanner.trim(dead.max_messages or None, age_ms, buckets=buckets)

    async def _ended(self) -> None:
        """Return when the worker is stopped; in a burst also when nothing is due any more."""
        if self._worker.burst:
            await self._brokers.tried.wait()
        while self._worker.burst:
            if self._leases.is_settled and self._scanner.is_idle():
                self._worker.stopping.set()
                return
            await self._worker.pause(0.05)
            if self._worker.stopping.is_set():
                return
        await self._worker.stopping.wait()

    async def _drain(self) -> None:
        """Give every bucket back; what the brokers do not answer in time is unknown, so retried."""
        total_s = self._s.scan.drain_timeout_s
        giving = asyncio.create_task(self._leases.leave())
        done, _ = await asyncio.wait([giving], timeout=_CONFIRMS * total_s)
        if not done:
            say(logging.WARNING, "drain_timeout", hint="what is unconfirmed is published again")
            await self._brokers.close(min(_CLOSE_S, _LEAVING * total_s))
            await asyncio.wait([giving], timeout=_TELLING * total_s)
        giving.cancel()

    async def _close(self) -> None:
        """Disconnect, and release what is still held; a worker that is stopped has little time."""
        await self._brokers.close(_CLOSE_S)
        left_s = _RELEASING * self._s.scan.drain_timeout_s
        try:
            async with asyncio.timeout(left_s if self._worker.stopping.is_set() else None):
                await self._leases.release_all()
            self._worker.gave_back = True
        except (StoreError, TimeoutError) as exc:
            self._worker.gave_back = False
            reason = str(exc) or "redis: no answer"
            say(logging.WARNING, "leases_not_released", reason=reason, hint="they run out")


class _Watchdog:
    """A thread that says so, with every stack, when the event loop stands still."""

    def __init__(self, beat_s: Callable[[], float], limit_s: float) -> None:
        self._beat_s, self._limit_s = beat_s, limit_s
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _look(self) -> None:
        while not self._stopped.wait(self._limit_s / 3):
            still_s = time.monotonic() - self._beat_s()
            if still_s > self._limit_s:
                say(logging.ERROR, "loop_stuck", still_s=round(still_s))
                faulthandler.dump_traceback(all_threads=True)


def run_one(
    settings: Settings,
    *,
    name: str | None = None,
    burst: bool = False,
    ignore: Iterable[signal.Signals] = (),
    on_start: Callable[[Identity], None] = lambda identity: None,
    on_token: OnToken = lambda bucket, token: None,
) -> None:
    """Work in this process until SIGTERM or Ctrl-C, and drain; the second of them ends at once.

    NotDrained: Redis did not answer in the time for that.
    """
    identity = Identity.of_this_process(name)
    on_start(identity)
    worker = Worker(settings, identity, burst=burst, on_token=on_token)
    run(worker, ignore=ignore)
    if not worker.gave_back:
        raise NotDrained("redis did not answer: leases were not given back, they run out")

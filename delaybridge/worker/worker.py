"""The worker process: keeps a scanner running with its leases and brokers until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable

from delaybridge.backoff import Backoff
from delaybridge.errors import ConfigError, NotDrained, StoreUnavailable, StoreWiped
from delaybridge.events import ScannerFailed, StoreSilent
from delaybridge.ledger.reconciling.happened import Happened
from delaybridge.ledger.sql.rows import Control, ControlName
from delaybridge.operate.metrics.reports import ProcessReport
from delaybridge.operate.metrics.sampler import Sampler
from delaybridge.scan.leases.fleet import NameTaken
from delaybridge.scan.leases.lease import OnToken
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.broadcast import Broadcast
from delaybridge.worker.destinations import Destinations
from delaybridge.worker.eventlog import say
from delaybridge.worker.history_check import Past, refuse_wiped
from delaybridge.worker.listeners import Listeners
from delaybridge.worker.open_namespace import make_again, wait_for_namespace
from delaybridge.worker.reload import changed_brokers, reread
from delaybridge.worker.scan_run import ScanRun
from delaybridge.worker.service import Identity, OnReport, Service, run

_log = logging.getLogger("delaybridge")
_RESTART_S = (0.1, 10.0)  # pause before a failed scanner is restarted: first, longest
STEADY_S = 10.0  # a scanner that ran for longer is restarted after the first pause
_REDIS_SILENT_S = 0.5  # pause before Redis is asked again; the time-out has passed already
_NAME_TAKEN_S = 0.5  # pause before the name is asked for again


class Worker(Service):
    """One worker process, from start to drained."""

    left_behind = "the next owner reclaims its messages"

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        burst: bool = False,
        on_token: OnToken = lambda bucket, token: None,
    ) -> None:
        """burst: end when nothing is due.

        on_token: called with (bucket, token) for each lease taken, with (bucket, None) at its end.
        """
        super().__init__()
        self.settings, self.identity, self.on_token = settings, identity, on_token
        self.burst = burst
        self.emit = Listeners()
        self.unrecorded: dict[ControlName, Control] = {}  # what the ledger has not taken yet
        self.destinations = Destinations(
            settings.namespace, has_ledger=settings.has_ledger, unrecorded=self.unrecorded
        )
        self.broadcast = Broadcast(settings.namespace, identity, self.emit)
        who = identity.name, identity.instance
        self.sampler = Sampler(settings.namespace, *who, self.emit.counts)
        self.emit.join(self.sampler)
        self.past = Past(settings.namespace, *who, self.emit)
        self.happened = Happened(identity.name)
        self.gave_back = True  # whether every lease that it took was given back
        self.current_run: ScanRun | None = None
        self._backoff = Backoff(*_RESTART_S, steady_s=STEADY_S)
        self._name_free_s: float | None = None  # when a dead owner's name is free, monotonic

    async def work(self) -> None:
        """Scan until stopped. Raises only errors that a restart of the scanner cannot mend."""
        s = self.settings
        if not s.brokers:
            hint = "add --broker amqp://HOST, DELAYBRIDGE_BROKERS__RABBITMQ or [brokers]"
            say(logging.WARNING, "no_brokers", serves="pull topics only", hint=hint)
        recorder = open_recorder(
            s.kept, s.ledger.url, s.namespace, s.redis.timeout_s, s.ledger.hot_window_s
        )
        store = AsyncStore(
            s.redis.url, timeout_s=s.redis.timeout_s, durability=s.kept, recorder=recorder
        )
        calls = Calls(s.namespace, s.brokers, s.buckets, s.limits.as_limits(), s.kept)
        calls.placement = store
        try:
            if recorder is None:
                await refuse_wiped(store, s.namespace)  # before the namespace is created again
            await wait_for_namespace(store, calls, "worker", self)
            while not self.stopping.is_set():
                await self._run_once(store, calls)
        finally:
            self.emit.flush()
            await store.close()

    async def reload(self) -> None:
        """Apply the brokers as they are configured now; all of them, or none if one is refused."""
        taken = await asyncio.to_thread(reread, self.settings)
        if taken is None:
            return
        changed = changed_brokers(self.settings, taken)
        self.settings = taken
        if self.current_run is not None:
            self.current_run.change_brokers(changed)
        say(logging.INFO, "reloaded", changed_brokers=",".join(sorted(changed)) or "none")

    def report(self) -> ProcessReport:
        """Its totals, and what its scanner has and lacks."""
        totals, histograms = self.emit.counts.copy()
        run = self.current_run
        is_draining = self.stopping.is_set()
        said = ProcessReport(totals, histograms, is_draining=is_draining, awaits=self.awaits)
        return said if run is None else said._replace(**run.reported())

    async def _run_once(self, store: AsyncStore, calls: Calls) -> None:
        """Scan until stopped, or until the scanner fails; then wait before the next run."""
        began_s = time.monotonic()
        try:
            await self._scan_until_wiped(store, calls)
        except ConfigError:
            raise
        except StoreWiped:
            if store.recorder is None:
                raise
        except NameTaken as exc:
            await self._wait_for_name(exc)
        except StoreUnavailable as exc:
            self.emit(StoreSilent(reason=str(exc)))
            await self.pause(_REDIS_SILENT_S)
        except Exception as exc:
            await self._failed(exc, time.monotonic() - began_s)

    async def _scan_until_wiped(self, store: AsyncStore, calls: Calls) -> None:
        """Scan until stopped; a wiped namespace is made again, if there is a ledger."""
        try:
            await ScanRun(self, store, calls).run()
        except StoreWiped:
            await self.past.tell_wiped(store)
            if store.recorder is None:
                raise
            # With the buckets that it had; each is rebuilt before its first claim.
            await make_again(store, calls)

    async def _wait_for_name(self, taken: NameTaken) -> None:
        """Wait for the announcement of a dead owner to run out; that of a living one is renewed."""
        now_s = time.monotonic()
        if self._name_free_s is None:
            self._name_free_s = now_s + taken.left_ms / 1000 + 1
        if now_s > self._name_free_s:
            raise taken
        say(logging.INFO, "name_taken", name=str(taken), hint="waiting until the name is free")
        await self.pause(_NAME_TAKEN_S)

    async def _failed(self, exc: Exception, ran_s: float) -> None:
        """Log it, and wait before the next run: longer after each failure in quick succession.

        Every lease was given up, and the next owner, perhaps this process, begins with a reclaim.
        """
        self.emit(ScannerFailed(reason=f"{type(exc).__name__}: {exc}"))
        _log.debug("the scanner failed", exc_info=exc)
        await self.pause(self._backoff.next_s(ran_s))


def run_one(
    settings: Settings,
    *,
    name: str | None = None,
    burst: bool = False,
    ignore: Iterable[signal.Signals] = (),
    on_start: Callable[[Identity], None] = lambda identity: None,
    on_token: OnToken = lambda bucket, token: None,
    on_report: OnReport | None = None,
) -> None:
    """Work in this process until SIGTERM or Ctrl-C, then drain; a second signal ends it at once.

    Raises NotDrained if Redis did not answer in time to take the leases back.
    """
    identity = Identity.of_this_process(name)
    on_start(identity)
    worker = Worker(settings, identity, burst=burst, on_token=on_token)
    run(worker, ignore=ignore, on_report=on_report)
    if not worker.gave_back:
        raise NotDrained("redis did not answer: leases were not released; they will expire")

"""The worker process: keeps a scanner running with its leases and brokers until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from delaybridge.backoff import Backoff
from delaybridge.errors import ConfigError, NotDrained, StoreUnavailable, StoreWiped
from delaybridge.events import ScannerFailed, StoreSilent
from delaybridge.scan.leases.fleet import NameTaken
from delaybridge.scan.leases.lease import OnToken
from delaybridge.settings.settings import Settings
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.destinations import Destinations
from delaybridge.worker.eventlog import say
from delaybridge.worker.history_check import Past, refuse_wiped
from delaybridge.worker.open_namespace import make_again, wait_for_namespace
from delaybridge.worker.parts import LedgerPart, MakeParts, Part, no_parts
from delaybridge.worker.reload import changed_brokers, reread
from delaybridge.worker.scan_run import ScanRun
from delaybridge.worker.service import Identity, OnReport, ProcessReport, Service, run

_log = logging.getLogger("delaybridge")
_RESTART_S = (0.1, 10.0)  # pause before a failed scanner is restarted: first, longest
STEADY_S = 10.0  # a scanner that ran for longer is restarted after the first pause
_REDIS_SILENT_S = 0.5  # pause before Redis is asked again; the time-out has passed already
_SWITCH_S = 0.0005  # for so long a thread of the ledger's may keep the interpreter from the loop
_NAME_TAKEN_S = 0.5  # pause before the name is asked for again


class Worker(Service):
    """One worker process, from start to drained."""

    left_behind = "the next owner reclaims its messages"

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        parts: Sequence[Part] = (),
        *,
        burst: bool = False,
        on_token: OnToken = lambda bucket, token: None,
    ) -> None:
        """parts: what it does besides, in this order. burst: end when nothing is due.

        on_token: called with (bucket, token) for each lease taken, with (bucket, None) at its end.
        """
        super().__init__(parts)
        self.settings, self.identity, self.on_token = settings, identity, on_token
        self.burst = burst
        self.ledger = next((each for each in parts if isinstance(each, LedgerPart)), None)
        if settings.has_ledger and self.ledger is None:
            what = "ledger: this worker was started without the package's part delaybridge.ledger"
            raise ConfigError(f"durability: {what}; start it with: delaybridge scan")
        rules = Destinations(settings.namespace)
        self.destinations = rules if self.ledger is None else self.ledger.destinations
        self.past = Past(settings.namespace, identity.name, identity.instance, self.emit)
        self._run: ScanRun | None = None
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
        if recorder is not None:
            sys.setswitchinterval(_SWITCH_S)
        store = AsyncStore(
            s.redis.url, timeout_s=s.redis.timeout_s, durability=s.kept, recorder=recorder
        )
        calls = Calls(s.namespace, s.brokers, s.buckets, s.limits.as_limits(), s.kept)
        calls.use(store)
        try:
            if recorder is None:
                await refuse_wiped(store, s.namespace)  # before the namespace is created again
            await wait_for_namespace(store, calls, self)
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
        said, run = super().report(), self.current_run
        return said if run is None else said._replace(**run.reported())

    @property
    def current_run(self) -> ScanRun | None:
        """The run that scans now; None while one begins or ends."""
        return self._run if self._run is not None and self._run.scans else None

    @property
    def gave_back(self) -> bool:
        """Whether every lease that it took was given back."""
        return self._run is None or self._run.gave_back

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
            self._run = ScanRun(self, store, calls)
            await self._run.run()
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
    parts: MakeParts = no_parts,
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
    made = parts(settings, identity)
    worker = Worker(settings, identity, made, burst=burst, on_token=on_token)
    run(worker, ignore=ignore, on_report=on_report)
    if not worker.gave_back:
        raise NotDrained("redis did not answer: leases were not released; they will expire")

"""The ingest process: reads delay exchanges and delay topics of the configured brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from delaybridge.backoff import Backoff
from delaybridge.errors import ConfigError, StoreError, StoreUnavailable, StoreWiped
from delaybridge.events import FleetDamaged, IngestFailed, StoreSilent
from delaybridge.ingest.counts import SourceCounts
from delaybridge.ingest.options import IngestOptions
from delaybridge.ingest.routes import Route, parse_routes
from delaybridge.ingest.storing import EntryStore
from delaybridge.publish import PublishOptions
from delaybridge.scan.leases.fleet import NameTaken
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import kinds_of
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, replies, verbs
from delaybridge.store.protocol.recorder import open_recorder
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.open_namespace import wait_for_namespace
from delaybridge.worker.parts import MakeParts, Part, no_parts
from delaybridge.worker.pulse import Pulse
from delaybridge.worker.reload import changed_brokers, reread
from delaybridge.worker.service import (
    Background,
    Identity,
    OnReport,
    ProcessReport,
    Service,
    end,
    run,
    until,
)

_log = logging.getLogger("delaybridge")
_RESTART_S = (0.2, 10.0)  # pause before a failed ingest is restarted: first, longest
# The steps of a drain, as shares of scan.drain_timeout_s.
_STOPPING = 0.9  # store the messages already read
_LEAVING = 0.05  # remove the announcement
_MOST_SOURCES = 200  # in a report
KINDS = ("rabbitmq", "kafka")


class Ingest(Protocol):
    """The sources of one broker."""

    counts: Sequence[SourceCounts]

    async def run(self) -> None:
        """Read until cancelled. While the broker or the store is unavailable, wait for it."""

    async def stop(self, timeout_s: float) -> None:
        """Read no more. Returns when everything read is stored, or after the timeout."""

    async def measure(self) -> None:
        """Ask the broker how much is waiting, for the counts."""


def routes_of(settings: Settings, kinds: Iterable[str] = KINDS) -> list[Route]:
    """The sources that the settings name; ConfigError if there are none, and no front's to read."""
    named, brokers = kinds_of(settings.brokers), settings.brokers
    routes: list[Route] = []
    if "rabbitmq" in kinds:
        routes += parse_routes(settings.ingest.exchanges, named, "rabbitmq", brokers)
    if "kafka" in kinds:
        routes += parse_routes(settings.ingest.topics, named, "kafka", brokers)
    if not routes and not _of_fronts(settings, kinds):
        raise ConfigError(
            "ingest: nothing to read: name delay exchanges in ingest.exchanges (--exchange "
            "X.delay), or delay topics in ingest.topics (--topic T.delay)"
        )
    return routes


def _of_fronts(settings: Settings, kinds: Iterable[str]) -> list[str]:
    """The brokers at which fronts may make exchanges that are to be read."""
    if not settings.ingest.front or "rabbitmq" not in kinds:
        return []
    return [name for name, kind in kinds_of(settings.brokers).items() if kind == "rabbitmq"]


def options_of(
    settings: Settings, routes: Iterable[Route], kinds: Iterable[str] = ()
) -> dict[str, IngestOptions]:
    """The options of ingest for each broker that has sources, or may get one of these kinds."""
    by_broker: dict[str, list[Route]] = {name: [] for name in _of_fronts(settings, kinds)}
    for route in routes:
        by_broker.setdefault(route.broker, []).append(route)
    return {
        name: IngestOptions(
            broker=name,
            url=settings.brokers[name],
            routes=of_broker,
            settings=settings.ingest,
            publish=PublishOptions.from_settings(settings.publish, settings.http),
            silent_ms=settings.lease.ttl_ms,
            tenants=settings.tenants,
        )
        for name, of_broker in by_broker.items()
    }


class Ingester(Service):
    """The work of one ingest process, from start to drained."""

    left_behind = "unacknowledged messages are delivered again"

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        routes: Sequence[Route],
        kinds: Collection[str] = KINDS,
        parts: Sequence[Part] = (),
    ) -> None:
        """kinds: of the brokers to read from, also after a reload. parts: what it does besides."""
        super().__init__(parts)
        self.settings, self.identity, self._kinds = settings, identity, kinds
        self._options = options_of(settings, routes, kinds)
        self._changed = asyncio.Event()  # the state of a source: announced at once
        self._ingests: dict[str, Ingest] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    async def work(self) -> None:
        """Read until stopped. Raises only errors that a restart cannot mend."""
        self._make_store()
        self._background = Background()
        self.pulse = Pulse(self._store, self.parts)
        try:
            if not await wait_for_namespace(self._store, self._calls, self):
                return
            self._start_keepers()
            work = [
                asyncio.create_task(self._measure()),
                asyncio.create_task(self._announce(self._store)),
                asyncio.create_task(self._background.failed()),
                asyncio.create_task(self.pulse.run()),
            ]
            try:
                await until(asyncio.create_task(self.stopping.wait()), work)
                most_s = _STOPPING * self.settings.scan.drain_timeout_s
                await asyncio.gather(*(each.stop(most_s) for each in self._ingests.values()))
            finally:
                await end([*work, *self._keepers.values()])
                await self._leave(self._store)
                await self.pulse.last_beat()
        finally:
            self.emit.flush()
            await self._store.close()

    def _make_store(self) -> None:
        s = self.settings
        recorder = open_recorder(
            s.kept, s.ledger.url, s.namespace, s.redis.timeout_s, s.ledger.hot_window_s
        )
        self._store = AsyncStore(
            s.redis.url, timeout_s=s.redis.timeout_s, durability=s.kept, recorder=recorder
        )
        self._calls = Calls(s.namespace, s.brokers, s.buckets, s.limits.as_limits(), s.kept)
        self._calls.use(self._store)

    async def reload(self) -> None:
        """Read brokers and sources from the settings again; unchanged ones are not interrupted."""
        check = partial(routes_of, kinds=self._kinds)
        taken = await asyncio.to_thread(reread, self.settings, check, self._kinds)
        if taken is None or self.stopping.is_set():
            return
        old, self.settings = self.settings, taken
        before, self._options = self._options, options_of(taken, check(taken), self._kinds)
        kinds = self._calls.kinds
        self._calls.brokers_changed(taken.brokers)
        is_same_ingest = (old.ingest, old.tenants) == (taken.ingest, taken.tenants)
        all_change = not is_same_ingest or kinds != self._calls.kinds
        changed = changed_brokers(old, taken)
        for name in list(self._keepers):
            options = self._options.get(name)
            is_same = options is not None and options.routes == before[name].routes
            if all_change or name in changed or not is_same:
                await self._stop_keeper(name)
        self._start_keepers()
        say(logging.INFO, "reloaded", reading_from=",".join(sorted(self._keepers)))

    def report(self) -> ProcessReport:
        """Its totals, and the state of its sources."""
        read = [counts for ingest in self._ingests.values() for counts in ingest.counts]
        sources = {
            each.source: (each.state, each.lag, len(each.faults)) for each in read[:_MOST_SOURCES]
        }
        return super().report()._replace(sources=sources)

    def _start_keepers(self) -> None:
        for name in self._options.keys() - self._keepers.keys():
            self._keepers[name] = self._background.start(self._keep(self._options[name]))

    async def _stop_keeper(self, name: str) -> None:
        """Read no more from a broker; messages already read are stored and acknowledged."""
        if name in self._ingests:
            await self._ingests[name].stop(self.settings.scan.drain_timeout_s)
        await end([self._keepers.pop(name)])
        self._ingests.pop(name, None)

    async def _keep(self, options: IngestOptions) -> None:
        """Read from one broker; start again after anything unexpected."""
        options = replace(options, on_change=self._changed.set)
        name, store = options.broker, EntryStore(self._store, self._calls, self.emit)
        backoff = Backoff(*_RESTART_S)
        module = import_module(f"delaybridge.ingest.{self._calls.kinds[name]}")
        while True:
            began_s = time.monotonic()
            try:
                async with module.connected(options, store, self.emit) as ingest:
                    self._ingests[name] = ingest
                    await ingest.run()
            except (ConfigError, StoreWiped):
                raise
            except Exception as exc:
                self.emit(IngestFailed(source=name, reason=f"{type(exc).__name__}: {exc}"))
                _log.debug("ingest failed", exc_info=exc)
            await asyncio.sleep(backoff.next_s(time.monotonic() - began_s))

    # announcements

    async def _measure(self) -> None:
        """Update the counts every `renew_ms`. A broker that does not answer delays only that."""
        while True:
            for ingest in list(self._ingests.values()):
                await ingest.measure()
            now_s = time.monotonic()
            for ingest in self._ingests.values():
                for counts in ingest.counts:
                    counts.measure(now_s)
            await asyncio.sleep(self.settings.lease.renew_ms / 1000)

    async def _announce(self, store: AsyncStore) -> None:
        """Announce the sources and their counts: every `renew_ms`, and when a state changes."""
        while True:
            self._changed.clear()
            try:
                fleet = await store.run_one(self._announcement(self.settings.lease.ttl_ms))
            except StoreUnavailable as exc:
                self.emit(StoreSilent(reason=str(exc)))
            except StoreError as exc:  # the sources are not shown, but are still read
                damaged = keys.ingests(self.settings.namespace)
                self.emit(FleetDamaged(reason=f"{damaged}: {exc}"))
            else:
                if not fleet.announced:
                    raise NameTaken(self.identity.name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.lease.renew_ms / 1000):
                    await self._changed.wait()

    def _announcement(self, ttl_ms: int) -> verbs.RedisCommand[replies.Fleet]:
        counts = [c for ingest in self._ingests.values() for c in ingest.counts]
        info: dict[str, Any] = json.loads(self.identity.info)
        info["sources"] = [each.announcement() for each in counts]
        who = self.identity
        encoded = json.dumps(info).encode()
        return registry.announce(
            self.settings.namespace, who.name, who.instance, ttl_ms, encoded, kind=registry.INGEST
        )

    async def _leave(self, store: AsyncStore) -> None:
        try:
            async with asyncio.timeout(_LEAVING * self.settings.scan.drain_timeout_s):
                await store.run_one(self._announcement(0))
        except (StoreError, TimeoutError):
            pass  # its announcement expires


def run_ingest(
    settings: Settings,
    *,
    kinds: Collection[str] = KINDS,
    parts: MakeParts = no_parts,
    name: str | None = None,
    ignore: Iterable[signal.Signals] = (),
    on_start: Callable[[Identity], None] = lambda identity: None,
    on_report: OnReport | None = None,
) -> None:
    """Ingest in this process until SIGTERM or Ctrl-C, then drain; a second one ends it at once."""
    identity = Identity.of_this_process(name)
    on_start(identity)
    routes, made = routes_of(settings, kinds), parts(settings, identity)
    run(Ingester(settings, identity, routes, kinds, made), ignore=ignore, on_report=on_report)

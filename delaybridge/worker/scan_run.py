"""One run of a worker: its fleet, its shifts and its brokers, and the end of all of them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Set
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError, StoreWiped
from delaybridge.publish import PublishOptions
from delaybridge.scan.leases.fleet import Membership
from delaybridge.scan.leases.lease import LeaseOwner
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.announcements import DRAIN, RECONNECT
from delaybridge.store.namespace.rules import Rules
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.brokers import Brokers
from delaybridge.worker.eventlog import say
from delaybridge.worker.parts import RunView
from delaybridge.worker.pulse import Pulse
from delaybridge.worker.service import end, until
from delaybridge.worker.shift import Common, Shift, wake_up
from delaybridge.worker.shifts import BucketNodes, Shifts, announcement_of, lines_of, report_of
from delaybridge.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from delaybridge.worker.worker import Worker

# The steps of a drain, as shares of scan.drain_timeout_s.
_CONFIRMS = 0.76  # wait for the brokers' confirms
_LEAVING = 0.04  # disconnect from the brokers
_TELLING = 0.1  # tell the store what became of the messages
_RELEASING = 0.05  # release the leases that are still held
_CLOSE_S = 0.5  # to wait for confirms when the brokers are disconnected
_BURST_POLL_S = 0.05
_ANNOUNCED = 20  # destinations that are paused


class ScanRun:
    """One run of the shifts, with their brokers, from start to drained or failed.

    scans: whether it is under way. gave_back: whether every lease that it took was given back.
    """

    def __init__(self, worker: Worker, store: AsyncStore, calls: Calls) -> None:
        self._worker, self._store, self._calls = worker, store, calls
        self._settings = worker.settings
        self._destinations = worker.destinations
        self._rules_told = asyncio.Event()
        self.scans, self.gave_back = False, worker.gave_back
        # The past comes before the parts, which take its marks.
        self.pulse = Pulse(store, [self._destinations, worker.past, *worker.parts])
        lease, who = self._settings.lease, worker.identity
        dedup_ms = round(self._settings.publish.dedup_window_s * 1000)
        self._owner = LeaseOwner(
            who.name, lease.ttl_ms, lease.renew_ms, self._on_token, dedup_ms,
            has_ledger=worker.ledger is not None,
        )  # fmt: skip
        self._fleet = Membership(
            store, calls, worker.emit,
            name=who.name,
            instance=who.instance,
            info=self._info,
            ttl_ms=lease.ttl_ms,
            renew_ms=lease.renew_ms,
        )  # fmt: skip
        self._shifts = Shifts(BucketNodes(store, calls), self._make_shift)
        self._is_wiped = asyncio.Event()
        self._begin_parts()
        self._brokers: Brokers

    def _begin_parts(self) -> None:
        worker, shifts, lease = self._worker, self._shifts, self._settings.lease
        silent_s = (lease.ttl_ms + lease.renew_ms) / 2000
        held = partial(shifts.answering, silent_s)
        view = RunView(
            self._store, self._calls, worker.past, shifts.sessions, held,
            shifts.lost, self._is_wiped.set, self._moved,
            None if worker.ledger is None else worker.ledger.rowless,
        )  # fmt: skip
        for part in (worker.past, *worker.parts):
            part.begin(view)

    def _make_shift(self, node: str, nodes: int) -> Shift:
        common = Common(
            self._store,
            lambda: self._settings,
            self._owner,
            self._worker.emit,
            self._brokers.by_name,
            lambda: self._destinations.rules,
            on_change=self._fleet.changed,
            on_moved=self._moved,
            living=lambda: self._fleet.living,
            ledger=None if self._worker.ledger is None else self._worker.ledger.side,
        )
        return Shift(common, node, nodes, len(self._calls.buckets))

    def _on_token(self, bucket: int, token: str | None) -> None:
        self._worker.past.taken(bucket, token)
        self._worker.on_token(bucket, token)

    async def _until_wiped(self) -> None:
        await self._is_wiped.wait()
        raise StoreWiped

    async def run(self) -> None:
        """Scan until the worker is stopped, then drain. Raises any error that ends it earlier."""
        await self._destinations.read(self._store)  # nothing that is paused is published
        self._settings = self._worker.settings  # a reload may have changed them meanwhile
        self._brokers = Brokers(
            self._settings.brokers,
            PublishOptions.from_settings(self._settings.publish, self._settings.http),
            report=self._shifts.report,
            on_change=self._broker_changed,
        )
        self._destinations.follow(self._rules_changed)
        await self._work()

    async def _work(self) -> None:
        self._shifts.start()
        work: list[asyncio.Task[Any]] = [
            asyncio.create_task(part)
            for part in (
                self._brokers.keep(),
                self._shifts.failed(),
                self._fleet.keep(self._shifts),
                self._listen(),
                self._follow_rules(),
                self.pulse.run(),
                self._until_wiped(),
                *chain.from_iterable(part.tasks() for part in self._worker.parts),
            )
        ]
        self.scans = True
        watchdog = Watchdog(self._beat_s, self._settings.lease.ttl_ms * 3 / 1000)
        try:
            await until(asyncio.create_task(self._ended()), work)
            await until(asyncio.create_task(self._drain()), work)
        finally:
            self.scans = False
            watchdog.stop()
            await self._close()
            await end(work)
            await self._shifts.end()
            for each in self._worker.parts:
                await each.close()
            await self.pulse.last_beat()

    def _beat_s(self) -> float:
        return max(self._fleet.beat_s, self._shifts.beat_s)

    def _broker_changed(self) -> None:
        """Wake the scanners, and announce the change to the fleet."""
        self._shifts.ring()
        self._fleet.changed()

    def _moved(self) -> None:
        """A bucket is on another Redis node now, or there are others."""
        self._shifts.moved()
        self._fleet.changed()

    def _info(self) -> bytes:
        """This worker's announcement as JSON, shown by `worker ls` and `doctor`."""
        about = json.loads(self._worker.identity.info)
        rules = self._destinations.rules.by_place
        paused = (place for place, rule in rules.items() if rule.paused)
        about |= {"brokers": self._brokers.announced(), "paused": [*islice(paused, _ANNOUNCED)]}
        about |= {"instance": self._worker.identity.instance, "pace": self._pace()}
        for part in self._worker.parts:
            part.announce(about)
        about |= announcement_of(self._shifts.running) | {"failing": self.pulse.announced()}
        about |= lines_of(self._shifts.running, self._fleet.was_ousted)
        return json.dumps(about).encode()

    def _pace(self) -> dict[str, Any]:
        waiting = report_of(self._shifts.running)["unconfirmed"]
        unconfirmed = {name: waiting[name] for name in islice(self._brokers.configured, _ANNOUNCED)}
        return {"ahead_ms": self._fleet.ahead_ms, "unconfirmed": unconfirmed}

    def reported(self) -> dict[str, Any]:
        """The fields of this worker's report that tell of its scanner."""
        brokers, said = self._brokers.configured.items(), report_of(self._shifts.running)
        said["unconfirmed"] = dict.fromkeys(self._brokers.configured, 0) | said["unconfirmed"]
        return {
            "buckets": tuple(session.bucket.number for session in self._shifts.sessions()),
            "brokers": {name: broker.publisher.unavailable for name, broker in brokers},
            "scanned_s": self._beat_s(),
            **said,
        }

    def change_brokers(self, names: Set[str]) -> None:
        """Replace, add or remove the brokers of these names, and keep every lease."""
        self._settings = self._worker.settings
        if names:
            replaced = self._brokers.change(self._settings.brokers, names)
            self._calls.brokers_changed(self._settings.brokers)
            self._brokers.retire(replaced, self._shifts.brokers_changed(names))
            self._broker_changed()

    async def _listen(self) -> None:
        """Act on wake-ups: a message is due soon in a bucket, or the fleet has changed."""
        subscriptions = 0
        async for text in self._store.listen(keys.wake(self._settings.namespace)):
            if text is None:  # subscribed: anything published before may have been missed
                subscriptions += 1
                if subscriptions > 1:
                    say(logging.WARNING, "wake_ups_lost", hint="every bucket is checked")
                self._shifts.wake_all()
                self._fleet.changed()
                self._rules_told.set()
            elif text == "destinations":
                self._destinations.expect_change()
                self._rules_told.set()
            elif text == "fleet":
                self._fleet.changed()
            elif (found := wake_up(text)) is not None:
                self._shifts.wake(*found)
            else:
                self._asked(*text.partition(" ")[::2])

    def _asked(self, verb: str, of: str) -> None:
        """Obey an operator (see `DRAIN`); anything else is of another version."""
        worker = self._worker
        if verb == DRAIN and of == worker.identity.instance and not worker.stopping.is_set():
            say(logging.INFO, "draining", hint="an operator asked for it")
            worker.stopping.set()
        elif verb == RECONNECT and of in self._brokers.configured:
            say(logging.INFO, "reconnecting", broker=of, hint="an operator asked for it")
            self.change_brokers({of})

    async def _follow_rules(self) -> None:
        """Read the rules of destinations whenever they change; the pulse does it each second."""
        while True:
            await self._rules_told.wait()
            self._rules_told.clear()
            self._destinations.take_replies(
                await self._store.run_each(self._destinations.commands())
            )

    def _rules_changed(self, rules: Rules) -> None:
        """Obey them now, and announce what is paused."""
        self._shifts.rules_changed(rules)
        self._broker_changed()

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
        share = self._fleet.share
        return share is not None and self._shifts.is_done(share)

    async def _drain(self) -> None:
        """Give every bucket back. Messages not confirmed in time are published again later."""
        total_s = self._settings.scan.drain_timeout_s
        giving = asyncio.create_task(self._leave())
        done, _ = await asyncio.wait([giving], timeout=_CONFIRMS * total_s)
        if not done:
            say(logging.WARNING, "drain_timeout", hint="unconfirmed messages are published again")
            await self._brokers.close(min(_CLOSE_S, _LEAVING * total_s))
            await asyncio.wait([giving], timeout=_TELLING * total_s)
        giving.cancel()

    async def _leave(self) -> None:
        """Leave the fleet: announce it, drain and release every bucket. No gap, no duplicate."""
        self._fleet.leave()
        self._shifts.assign(set(), may_take=False)
        await self._shifts.drained()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._store.timeout_s):
                await self._fleet.left.wait()

    async def _close(self) -> None:
        """Disconnect, and release the leases still held; when stopping, within a short time."""
        await self._brokers.close(_CLOSE_S)
        left_s = _RELEASING * self._settings.scan.drain_timeout_s
        try:
            async with asyncio.timeout(left_s if self._worker.stopping.is_set() else None):
                await self._shifts.release_all()
            self.gave_back = True
        except (StoreError, TimeoutError) as exc:
            self.gave_back = False
            reason = str(exc) or "redis: no answer"
            say(logging.WARNING, "leases_not_released", reason=reason, hint="they run out")

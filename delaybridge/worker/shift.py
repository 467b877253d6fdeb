"""A shift: the part of a worker that serves one Redis node, apart from all other nodes.

Each master of a Redis Cluster has its own clock, and may be silent while the others answer. So a
shift has whatever waits for its node or depends on its clock: leases, scanner, lanes. A single
server, also behind Sentinels, is one node: one shift.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from delaybridge.errors import StoreUnavailable
from delaybridge.events import Emit, StoreSilent
from delaybridge.scan.lanes.lane import Broker
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.lanes.spans import PublishSpans
from delaybridge.scan.leases.bucket_calls import LedgerSide
from delaybridge.scan.leases.clock import Alarm, StoreClock
from delaybridge.scan.leases.lease import LeaseOwner, Leases
from delaybridge.scan.leases.session import Session
from delaybridge.scan.leases.take_over import TakeOver
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.wheel.claiming import ScanOptions
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.rules import Rules
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.redis.store import AsyncStore
from delaybridge.tracing import active
from delaybridge.worker.service import Background, end, until

_STUCK_MS = 10_000  # nothing fired for this long, with neither the store nor a broker to blame
_TRIM_S = 60.0  # if the dead set has no bounds
_COMPARE_S = 60.0
_ASK_AGAIN_S = 0.2
_WAKE = re.compile(r"([0-9]{1,5}) ([0-9]{1,16})")  # bucket, due_ms


def wake_up(text: str) -> tuple[int, int] | None:
    """The bucket and the due time of a wake-up; None for any other text."""
    found = _WAKE.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


class Common(NamedTuple):
    """What the shifts of one worker share.

    settings, rules: return those in force. brokers: change under it. on_change: called when a
    bucket may be taken or the announcement has changed. on_moved: when a bucket is on another node.
    ledger: None if there is none. living: the names of all workers.
    """

    store: AsyncStore
    settings: Callable[[], Settings]
    owner: LeaseOwner
    emit: Emit
    brokers: Mapping[str, Broker]
    rules: Callable[[], Rules]
    on_change: Callable[[], None]
    on_moved: Callable[[], None]
    ledger: LedgerSide | None
    living: Callable[[], Sequence[str]] = tuple


class Shift:
    """Serves the buckets of one node.

    node: its name, `host:port`; empty if there is no Cluster. here: the buckets that it has.
    scanner, lanes: None until they are built, when the node's clock was read. Made and used on a
    running loop.
    """

    def __init__(
        self, common: Common, node: str, nodes: int, buckets: int, clock: StoreClock | None = None
    ) -> None:
        """nodes: among them the worker's bounds are divided. buckets: of the namespace."""
        self._common, self.node = common, node
        self._nodes, self._buckets = nodes, buckets
        self._store, self._settings = common.store, common.settings()
        self.here: dict[int, Bucket] = {}
        self.clock = clock or StoreClock()
        self.alarm = Alarm()
        self.leases = Leases(
            common.store, self.clock, common.emit, common.owner,
            is_here=self._is_here, on_change=common.on_change,
        )  # fmt: skip
        self.take_over = TakeOver(
            common.store, self._settings.namespace, common.owner, common.emit,
            node=lambda: self.node, buckets=lambda: self.here.values(),
            living=common.living, on_change=common.on_change,
        )  # fmt: skip
        self.lanes: Lanes | None = None
        self.scanner: Scanner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._regrouped = asyncio.Event()  # it has other buckets, or another name

    def start(self, background: Background) -> None:
        """Begin to work as soon as the node answers; errors that end it go to `background`."""
        self._tasks.append(background.start(self._begin(background)))

    async def _begin(self, background: Background) -> None:
        while not self.clock.is_set:
            try:
                for bucket in [*self.here.values()][:1]:
                    await self.leases.read_clock(bucket)
                await self.leases.cut_long([*self.here.values()])
            except StoreUnavailable as exc:
                self._common.emit(StoreSilent(reason=str(exc)))
            if not self.clock.is_set:
                await asyncio.sleep(_ASK_AGAIN_S)
        scanner = self.build()
        work = [scanner.run(), self.leases.keep(scanner), self._watch(scanner), self._trim(scanner)]
        work += [self._compare(scanner), self._look(scanner), self.take_over.keep()]
        if self._channels:
            work.append(self._listen(scanner))
        self._tasks += map(background.start, work)

    def build(self) -> Scanner:
        """Make lanes and scanner, which do nothing by themselves."""
        self.lanes = self._build_lanes()
        self.lanes.rules_changed(self._common.rules())
        self.scanner = self._build_scanner(self.lanes)
        return self.scanner

    async def end(self) -> None:
        """End its tasks, whatever they do."""
        await end([*self._tasks, *self.leases.draining])
        self.alarm.close()

    # which buckets

    def assign(self, here: dict[int, Bucket], share: set[int], *, may_take: bool) -> None:
        """The node has these buckets; those of `share` are to be held."""
        if here.keys() != self.here.keys():
            self._regrouped.set()
        self.here = here
        for number, session in self.leases.sessions.items():
            session.placed(is_here=number in here)
        self.leases.assign({n: b for n, b in here.items() if n in share}, may_take=may_take)

    def renamed(self, node: str) -> None:
        """The node's buckets are on that one now: its master failed over."""
        self.node = node
        self._regrouped.set()

    @property
    def is_over(self) -> bool:
        """Whether the node has no buckets any more, and nothing is left to do."""
        leases = self.leases
        return not (self.here or leases.sessions or leases.draining)

    def _is_here(self, bucket: Bucket) -> bool:
        """Whether the node has a bucket now. Tells `on_moved` if it has not."""
        if self.node and self._store.node_of(bucket.key("lease")) != self.node:
            if bucket.number in self.here:
                self._common.on_moved()  # this shift may get another node's name
            return self._store.node_of(bucket.key("lease")) == self.node
        return True

    def _last_here(self, sessions: dict[Session, Any]) -> Session | None:
        """The last of these sessions whose bucket is on this node; the others are `is_away`."""
        if not self.node:
            return next(reversed(sessions), None)
        here = [session for session in sessions if self._is_here(session.bucket)]
        return here[-1] if here else None

    # wake-ups; where their channels are not sharded, the worker listens for all shifts

    @property
    def _channels(self) -> list[str]:
        return [b.wake[1:] for b in self.here.values() if b.wake.startswith("+")]

    async def _listen(self, scanner: Scanner) -> None:
        """Act on the wake-ups of the buckets that are here at the time."""
        while True:
            self._regrouped.clear()
            hearing = asyncio.create_task(self._hear(scanner))
            try:
                await until(asyncio.create_task(self._regrouped.wait()), [hearing])
            finally:
                await end([hearing])
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _hear(self, scanner: Scanner) -> None:
        """Act on wake-ups until the node has one of these buckets no more."""
        async for text in self._store.listen_sharded(self.node, self._channels):
            if text is None:  # subscribed: anything published before may have been missed
                scanner.wake_all()
            elif (found := wake_up(text)) is not None:
                scanner.wake(*found)

    # what it consists of

    def _build_lanes(self) -> Lanes:
        s = self._settings
        return Lanes(
            self._common.brokers,
            RetryPolicy(**s.retry.model_dump()),
            self._common.emit,
            window_messages=self._part(s.publish.window_messages),
            window_bytes=self._part(s.publish.window_bytes),
            dead_letters={to.partition(":")[0]: to for to in s.dead.dead_letter},
            spans=self._spans(),
        )

    def _build_scanner(self, lanes: Lanes) -> Scanner:
        s = self._settings
        bounds = ScanOptions(
            claim_ahead_ms=s.scan.claim_ahead_ms,
            wheel_messages=self._part(s.scan.wheel_messages),
            wheel_bytes=self._part(s.scan.wheel_bytes),
            batch_messages=s.scan.batch_messages,
            batch_bytes=s.scan.batch_bytes,
            fire_lead_ms=s.scan.fire_lead_ms,
        )
        return Scanner(
            self._store, lanes, self.clock, self.alarm, self._common.emit, bounds,
            lost=self.leases.lost, damaged=self.leases.damaged, retake=self.leases.retake,
            allow=partial(registry.allow, s.namespace), last_here=self._last_here,
            ledger=self._common.ledger,
        )  # fmt: skip

    def _part(self, bound: int) -> int:
        """This shift's part of a bound of the worker."""
        return max(1, bound // self._nodes)

    def _spans(self) -> PublishSpans | None:
        if (tracing := active()) is None:
            return None
        settings = self._common.settings
        name = self._common.owner.name
        return PublishSpans(tracing, name, lambda broker: settings().brokers.get(broker))

    async def _watch(self, scanner: Scanner) -> None:
        lease = self._settings.lease
        while True:
            await asyncio.sleep(lease.renew_ms / 1000)
            scanner.check_moving(max(lease.ttl_ms, _STUCK_MS))

    async def _compare(self, scanner: Scanner) -> None:
        """Compare the keys of each bucket with one another."""
        while True:
            await asyncio.sleep(_COMPARE_S)
            await scanner.mending.compare()

    async def _look(self, scanner: Scanner) -> None:
        """Look at each bucket as a whole, slowly."""
        while True:
            await asyncio.sleep(await scanner.mending.look_further())

    async def _trim(self, scanner: Scanner) -> None:
        """Keep the dead set and `ready` within their bounds, a few messages at a time."""
        dead = self._settings.dead
        age_ms = round(dead.max_age_s * 1000) if dead.max_age_s else None
        pause_s = self._settings.lease.renew_ms / 1000 if dead.is_bounded else _TRIM_S
        while True:
            await asyncio.sleep(pause_s)
            await scanner.trim(dead.max_messages or None, age_ms, buckets=self._buckets)

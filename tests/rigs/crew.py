"""Workers on the test's own loop, whose broker records which messages arrive and when."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delaybridge.client import AsyncClient
from delaybridge.errors import LedgerUnavailable, StoreUnavailable
from delaybridge.events import Event
from delaybridge.ledger.reconciling.part import WorkerLedger
from delaybridge.message import Delivery, Message, new_id
from delaybridge.operate.parts.lists import worker_parts
from delaybridge.publish import memory
from delaybridge.scan.leases.session import Session
from delaybridge.settings.settings import Settings
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.service import Identity
from delaybridge.worker.worker import Worker
from tests.rigs.waiting import PATIENCE_S, ended, until_async

BUCKETS = 16
TTL_MS = 1200
SELDOM = {"ttl_ms": 600_000, "renew_ms": 300_000}  # what waits for it misses every deadline
CALM = SELDOM | {"renew_ms": 500}  # no other worker takes over from one that is starved
PATIENT_PROCESS = {  # the environment of one that a starved machine does not end
    "DELAYBRIDGE_REDIS__TIMEOUT_S": str(PATIENCE_S),
    "DELAYBRIDGE_LEASE__TTL_MS": str(SELDOM["ttl_ms"]),  # it must be longer
}


class Arrived:
    """The messages that workers published, and when, by this machine's clock."""

    def __init__(self) -> None:
        self.at_ms: dict[str, float] = {}
        self.attempts: list[tuple[str, int]] = []
        self.due_ms: dict[str, int] = {}
        self.fail_next = False
        self.brokers: list[Memory] = []

    def take(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = time.time_ns() / 1e6
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("told to fail")
        for delivery in deliveries:
            self.at_ms[delivery.id] = now_ms
            self.due_ms[delivery.id] = delivery.due_ms
            self.attempts.append((delivery.id, delivery.attempt))

    @property
    def late_ms(self) -> list[float]:
        """The lateness of each message; negative: early."""
        return [self.at_ms[id] - due_ms for id, due_ms in self.due_ms.items()]

    @property
    def twice(self) -> list[str]:
        counts = Counter(id for id, _ in self.attempts)
        return [id for id, count in counts.items() if count > 1]

    async def all(self, ids: Sequence[str]) -> None:
        await until_async(lambda: set(ids) <= self.at_ms.keys(), f"{len(ids)} arrive")


class Memory(memory.MemoryPublisher):
    """The memory publisher; it reports each message to `arrived`."""

    arrived: Arrived

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        self.arrived.take(deliveries)
        super().publish(deliveries)


def note_arrivals(patch: pytest.MonkeyPatch) -> Arrived:
    """Make every memory:// broker in this process report what it publishes to the result."""
    arrived = Arrived()

    def publisher(name: str, url: str, *, report: Any, on_change: Any, options: Any) -> Memory:
        made = Memory(name, url, report=report, on_change=on_change, options=options)
        made.arrived = arrived
        arrived.brokers.append(made)
        return made

    patch.setattr(memory, "publisher", publisher)
    return arrived


async def _work(worker: Worker) -> None:
    """Its work. Started again while a loaded machine's Redis misses the short time-out at start.

    Only before it took anything does a worker end with StoreUnavailable.
    """
    while not worker.stopping.is_set():
        try:
            await worker.work()
        except LedgerUnavailable:  # ends no worker
            raise
        except StoreUnavailable:
            await worker.pause(0.1)
        else:
            return


class Crew(AbstractAsyncContextManager):
    """Workers on this loop, by name, with their events; a client and a store of the same Redis.

    ledger: the URL of the ledger's database, if there is one. timeout_s: of the client.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        buckets: int = BUCKETS,
        *,
        ledger: str | None = None,
        hot_window_s: float = 3600.0,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self.url, self.namespace = url, namespace
        brokers = {"memory": "memory://"}
        self._kept: dict[str, Any] = {}
        if ledger is not None:
            self._kept = {"durability": "ledger", "ledger": {"url": ledger}}
        self.client = AsyncClient(
            url, namespace=namespace, brokers=brokers, buckets=buckets, ledger=ledger,
            durability=self._kept.get("durability", "memory"), hot_window_s=hot_window_s,
            timeout_s=timeout_s,
        )  # fmt: skip
        self.store = AsyncStore(url)
        self.workers: dict[str, Worker] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.events: list[Event] = []

    def start(
        self,
        name: str = "w",
        *,
        url: str | None = None,
        burst: bool = False,
        instance: str | None = None,
        **sections: dict[str, Any],
    ) -> asyncio.Task[None]:
        if self._kept:
            own = {**self._kept["ledger"], **sections.get("ledger", {})}
            sections = {**self._kept, **sections, "ledger": own}
        lease = {"ttl_ms": TTL_MS, "renew_ms": TTL_MS // 3, **sections.pop("lease", {})}
        # As long as the lease allows: a busy machine is no fault.
        patience_s = min(0.75 * (lease["ttl_ms"] - lease["renew_ms"]) / 1000, 10.0)
        settings = Settings.load(
            overrides={
                "redis": {"url": url or self.url, "timeout_s": patience_s},
                "namespace": self.namespace,
                "brokers": {"memory": "memory://"},
                "lease": lease,
                **sections,
            },
            environ={},
        )
        identity = Identity.of_this_process(name)
        worker = Worker(settings, identity, worker_parts(settings, identity), burst=burst)
        worker.emit.join(self.events.append)
        self.workers[name] = worker
        self.tasks[name] = asyncio.create_task(_work(worker))
        return self.tasks[name]

    async def stop(self, name: str = "w") -> None:
        """Drain a worker; raises the error that ended it before, if any."""
        self.workers.pop(name).stop()
        await self.tasks.pop(name)

    async def shares(self) -> Counter[str]:
        stats = await self.client.stats()
        return Counter(bucket.owner for bucket in stats.buckets if bucket.owner is not None)

    async def shared(self, *names: str) -> None:
        async def even() -> bool:
            for name in names:
                if self.tasks[name].done():
                    self.tasks[name].result()  # raises what ended it
            shares = await self.shares()
            few = len(shares) == len(names) and max(shares.values()) - min(shares.values()) <= 1
            return shares.keys() == set(names) and shares.total() == BUCKETS and few

        await until_async(even, f"{names} share all buckets")

    async def schedule(self, count: int, *, seconds: float, first_s: float = 0.1) -> list[str]:
        """Schedule messages, due evenly within `seconds`, over all buckets; their ids."""
        now = datetime.now(UTC) + timedelta(seconds=first_s)
        step = timedelta(seconds=seconds / count)
        messages = [Message("memory:q", b"x", at=now + i * step, id=new_id()) for i in range(count)]
        return [receipt.id for receipt in await self.client.schedule_many(messages)]

    async def settled(self) -> None:
        async def nothing_left() -> bool:
            stats = await self.client.stats()
            return stats.delayed + stats.in_flight + stats.parked == 0

        await until_async(nothing_left, "everything settled")

    async def parked(self, count: int) -> None:
        async def are() -> bool:
            return (await self.client.stats()).parked == count

        await until_async(are, f"{count} are parked")

    async def obeys_pause(self, place: str) -> None:
        async def is_said() -> bool:
            workers = (await self.client.stats()).workers
            return any(place in (worker.said.paused or ()) for worker in workers)

        await until_async(is_said, f"a worker says that it obeys the pause of {place}")

    def heard(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await ended(*self.tasks.values())
        await self.client.close()
        await self.store.close()


def ledger_part(crew: Crew, name: str = "w") -> WorkerLedger:
    """A worker's side of the ledger."""
    found = crew.workers[name].ledger
    assert isinstance(found, WorkerLedger)
    return found


def sessions_of(crew: Crew, name: str = "w") -> list[Session]:
    """The leases that a worker holds now."""
    run = crew.workers[name].current_run
    return [] if run is None else [each for each in run._shifts.sessions() if each.alive]

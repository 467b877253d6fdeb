"""Follows the exchanges that fronts make at one broker: each is read as soon as it is found.

The namespace's list has them, and a front that adds one wakes ingest at once. Where the list lacks
one, as in a Redis that was wiped, the broker's management API shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from delaybridge.errors import StoreError
from delaybridge.ingest import fronted
from delaybridge.ingest.rabbitmq.fronted_intake import FrontedIntake
from delaybridge.ingest.rabbitmq.management import Management, ManagementError
from delaybridge.ingest.rabbitmq.topology import MADE_FOR
from delaybridge.ingest.routes import INTAKE, Route
from delaybridge.ingest.storing import EntryStore
from delaybridge.store.protocol import keys

LIST_S, ASK_S = 5.0, 10.0  # between two looks at the list, and at the broker
_UNLIST_S = 1.0  # a front waits meanwhile

Read = Callable[[FrontedIntake], Awaitable[bool]]


class Following:
    """The intakes of fronts at one broker, by route; they stay when the connection is lost."""

    def __init__(
        self,
        broker: str,
        store: EntryStore,
        management: Management,
        make: Callable[[Route], FrontedIntake],
    ) -> None:
        self.intakes: dict[Route, FrontedIntake] = {}
        self._broker, self._management, self._make = broker, management, make
        self._redis, self._namespace = store.redis, store.calls.namespace
        self._foreign: set[Route] = set()  # another namespace reads them
        self._start: Callable[[FrontedIntake], object]
        self._woken = asyncio.Event()

    async def run(self, read: Read) -> None:
        """Read each that is found, until cancelled. read: until it is true that it has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                self._start = lambda intake: group.create_task(self._keep(intake, read))
                for intake in self.intakes.values():
                    self._start(intake)
                for work in (self._listen(), self._look(), self._ask_broker()):
                    group.create_task(work)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def unlist(self, route: Route) -> None:
        """Take an exchange off the list. If Redis is away, it is found there again, and no more."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_UNLIST_S):
                await self._redis.run_one(fronted.unlist(self._namespace, route))

    async def _keep(self, intake: FrontedIntake, read: Read) -> None:
        if await read(intake):
            del self.intakes[intake.route]
            if intake.is_foreign:
                self._foreign.add(intake.route)

    def _take(self, routes: Iterable[Route]) -> None:
        for route in routes:
            if route not in self.intakes:
                intake = self.intakes[route] = self._make(route)
                self._start(intake)
        for intake in self.intakes.values():
            intake.beside = len(self.intakes)

    async def _listen(self) -> None:
        async for text in self._redis.listen(keys.fronted(self._namespace)):
            for route, intake in self.intakes.items():
                if str(route) == text:
                    intake.made.set()
            self._woken.set()

    async def _look(self) -> None:
        """At the list, which gets what it lacks of all that is read."""
        while True:
            self._woken.clear()
            with suppress(StoreError):
                listed = await self._redis.run_one(fronted.listed(self._namespace))
                self._take(route for route in listed if route.broker == self._broker)
                for route, intake in self.intakes.items():
                    intake.is_listed = route in listed
                unlisted = [
                    r for r, each in self.intakes.items() if each.is_read and r not in listed
                ]
                for route in unlisted:
                    await self._redis.run_each(fronted.enlist(self._namespace, route))
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_S):
                    await self._woken.wait()

    async def _ask_broker(self) -> None:
        while True:
            with suppress(ManagementError):
                found = await self._management.queues_with(MADE_FOR, INTAKE)
                routes = [
                    Route(self._broker, "rabbitmq", exchange, queue.removesuffix(INTAKE), queue)
                    for queue, exchange in found.items()
                ]
                self._take(route for route in routes if route not in self._foreign)
            await asyncio.sleep(ASK_S)

"""What all requests to one process share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from delaybridge.client.async_client import AsyncClient
from delaybridge.settings.settings import Settings
from delaybridge.web.hub import EventHub
from delaybridge.web.ready import ReadyHub
from delaybridge.web.traffic import Traffic


@dataclass(slots=True)
class Site:
    """The client, and the settings it was made with. events: of the fleet, as they happen.
    ready: wakes consumers of topics.

    is_draining: told to stop. alone_since_s: bucket -> when it was first seen without a worker, on
    the monotonic clock. traffic: what was answered. tasks: what goes on after its request was
    answered, by id.
    """

    settings: Settings
    client: AsyncClient
    events: EventHub
    ready: ReadyHub
    is_draining: bool = False
    alone_since_s: dict[int, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def drain(self) -> None:
        """It was told to stop: end what only waits."""
        self.is_draining = True
        await self.events.close()
        await self.ready.close()

    async def close(self) -> None:
        """End all tasks."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

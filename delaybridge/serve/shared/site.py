"""What all requests to one process share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from starlette.types import Scope

from delaybridge.client.async_client import AsyncClient
from delaybridge.serve.access.access import Access
from delaybridge.serve.http.disconnect import end_all
from delaybridge.serve.http.json_text import DENSE
from delaybridge.serve.shared.doctor import Doctor
from delaybridge.serve.shared.event_fanout import EventHub, ReadyHub
from delaybridge.serve.shared.seats import Seats
from delaybridge.serve.shared.traffic import Traffic
from delaybridge.settings.settings import Settings

_ENVELOPE_BYTES = 64 * 1024  # of a message beside its body and headers
_DENSE_BYTES = 64 * 1024  # of a message beside its body and headers
T = TypeVar("T")
FRESH_S = 1.0


class Shared(Generic[T]):
    """Made when it is asked for, at most once a second and never twice at a time."""

    def __init__(self) -> None:
        self._making: asyncio.Task[T] | None = None
        self._fresh_until_s = 0.0  # on the loop's clock

    async def answer(self, make: Callable[[], Awaitable[T]]) -> T:
        """The answer of the last second; else the one under way; else a new one."""
        now_s = asyncio.get_running_loop().time()
        if self._making is None or (self._making.done() and now_s >= self._fresh_until_s):
            self._making = asyncio.create_task(self._made(make))
        return await asyncio.shield(self._making)  # others may wait for it, too

    async def close(self) -> None:
        """End the one that is being made."""
        if self._making is not None:
            await end_all([self._making])

    async def _made(self, make: Callable[[], Awaitable[T]]) -> T:
        try:
            return await make()
        finally:
            self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S


class PageSnapshots(Protocol):
    """What the pages of the console show. client: waits longer for Redis than that of programs."""

    client: AsyncClient

    def renew(self) -> None:
        """Show nothing that was seen before this moment."""

    async def close(self) -> None:
        """End what is under way, and close the client."""


@dataclass(slots=True)
class Site:
    """The client, and the settings it was made with. events: of the fleet, as they happen.
    ready: wakes consumers of topics. seats: for answers that take long. access: who may do what.
    snapshots: for the console. doctor: checks what the deployment needs.

    is_draining: told to stop. alone_since_s: bucket -> when it was first seen without a worker, on
    the monotonic clock. traffic: what was answered. tasks: what goes on after its request was
    answered, by id. readiness: why messages do not go out, if they do not. browsed: token, address
    and path of lists with bodies -> when that was noted last, on the monotonic clock.
    """

    settings: Settings
    client: AsyncClient
    events: EventHub
    ready: ReadyHub
    seats: Seats
    access: Access
    snapshots: PageSnapshots
    doctor: Doctor
    is_draining: bool = False
    alone_since_s: dict[int, float] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    readiness: Shared[list[str]] = field(default_factory=Shared)
    browsed: dict[tuple[str, str, str], float] = field(default_factory=dict)

    @property
    def patient(self) -> AsyncClient:
        """A client that waits longer for Redis: for people and for jobs, which are not repeated."""
        return self.snapshots.client

    @property
    def most_bytes(self) -> int:
        """The largest text of a message."""
        limits = self.settings.limits
        # JSON writes a byte as up to six characters.
        return 6 * (limits.body_bytes + limits.headers_bytes) + _ENVELOPE_BYTES

    @property
    def most_dense(self) -> int:
        """The most bytes of such a text beside long strings: a body that is JSON, and the rest.

        No less than any text may have: that of a list of receipts does not depend on bodies.
        """
        limits = self.settings.limits
        return max(limits.body_bytes + 128 * limits.headers + _DENSE_BYTES, DENSE)

    def base(self, scope: Scope) -> str:
        """What stands before each path, as the client sees it; without the last slash."""
        return f"{scope.get('root_path', '')}{self.settings.serve.base_path.rstrip('/')}"

    async def drain(self) -> None:
        """It was told to stop: end what only waits."""
        self.is_draining = True
        await self.events.close()
        await self.ready.close()

    async def close(self) -> None:
        """End all tasks, and close what it opened."""
        await end_all(self.tasks.values())
        await self.readiness.close()
        await self.snapshots.close()

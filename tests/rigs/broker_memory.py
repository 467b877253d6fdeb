"""The memory publisher as a broker of the publisher contract."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from delaybridge.message import Destination
from delaybridge.publish import Publisher, PublishOptions
from delaybridge.publish.memory import MemoryPublisher
from tests.rigs.broker import Received, Rig


class MemoryRig(Rig):
    """The memory publisher; its own switches cause the faults."""

    kind = "memory"
    oversize = None

    def __init__(self) -> None:
        self.publisher: MemoryPublisher | None = None

    def close(self) -> None:
        self.publisher = None

    def url(self) -> str:
        return "memory://"

    def make(self, name: str | None = None) -> str:
        return name or uuid.uuid4().hex

    def read(self, address: str, at_least: int) -> list[Received]:
        return [
            Received(one.given_id, one.record.body, one.attempt)
            for one in self.made.published
            if one.destination.address == address
        ]

    @contextlib.asynccontextmanager
    async def connected(self, options: PublishOptions | None = None, url: str | None = None) -> Any:
        async with super().connected(options, url) as (made, sink):
            self.publisher = made
            yield made, sink

    @property
    def made(self) -> MemoryPublisher:
        assert self.publisher is not None
        return self.publisher

    async def stop(self) -> None:
        self.made.unavailable = "unreachable: told to"
        self.made.lose()

    async def start(self) -> None:
        if self.publisher is not None:
            self.publisher.unavailable = None

    async def swallow_confirms(self, publisher: Publisher) -> None:
        self.made.hold = True

    async def lose_confirm(self, to: Destination, total: int) -> None:
        assert self.made.held

    async def reset(self, publisher: Publisher) -> None:
        self.made.lose()

    async def heal(self, publisher: Publisher) -> None:
        self.made.hold = False

"""A worker's line: a connection that is open as long as its process lives.

The kernel closes it when the process ends, however it ends. So whoever asks the same server which
connections it has, knows that the process is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import RedisError, ResponseError

from delaybridge import late
from delaybridge.store.protocol.replies import read_info
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.redis.async_wire import AsyncWire, StreamConnection
from delaybridge.store.redis.errors import translate

_LISTED = late.pattern(rb"^id=(\d+) ", re.MULTILINE)
_SILENT_S = 5.0  # without an answer for so long, what came before does not count


class Lifeline:
    """Opened, and found in the server's list. id: its number there; run_id: of the server.

    Where its calls fail, `lifeline` says why: StoreUnavailable: the server does not answer; another
    StoreError: it cannot be asked.
    """

    def __init__(self, wire: AsyncWire, connection: StreamConnection) -> None:
        """One that is not listed yet: see `lifeline`."""
        self._wire, self._connection = wire, connection
        self.id, self.run_id = 0, ""
        self._since_s = self._answered_s = time.monotonic()

    async def listed(self, ids: Collection[int]) -> set[int]:
        """Those of these lines that the server has, and its own."""
        (reply,) = await self._ask(packed("CLIENT", "LIST", "ID", self.id, *ids))
        found = {int(id) for id in _LISTED.findall(reply)}
        if self.id not in found or not self.run_id:
            raise ResponseError("CLIENT LIST does not show this connection: is it a proxy's?")
        return found

    async def _ask(self, *requests: bytes) -> list[Any]:
        replies = await self._connection.call(requests)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        now_s = time.monotonic()
        if now_s - self._answered_s > _SILENT_S:
            self._since_s = now_s
        self._answered_s = now_s
        return replies

    @property
    def answers_s(self) -> float:
        """For how long this server has answered, without a pause."""
        return self._answered_s - self._since_s

    @property
    def is_stale(self) -> bool:
        """Whether it leads to a server that may have been replaced since."""
        return self._wire.generation != self._connection.generation

    async def ends(self, within_s: float) -> bool:
        """Wait so long, unless it ends; whether it has ended, or is stale."""
        return await self._connection.ends(within_s) or self.is_stale


@asynccontextmanager
async def lifeline(wire_at: Callable[[str], AsyncWire], node: str) -> AsyncIterator[Lifeline]:
    """A line to this server, until its end. Raises as `Lifeline` says."""
    try:
        connection = await (wire := wire_at(node)).connect_apart()
        line = Lifeline(wire, connection)
        try:
            id, info = await line._ask(packed("CLIENT", "ID"), packed("INFO", "server"))
            line.id, line.run_id = int(id), read_info(info).get("run_id", "")
            await line.listed(())
            yield line
        finally:
            connection.close()
    except (RedisError, OSError) as exc:
        raise translate(exc) from None

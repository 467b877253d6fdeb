"""Shows a front to its operators: its announcement in Redis, and whether the broker's nodes answer.

Nothing of it is in the way of what passes through; without Redis the front is only not shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.front.counts import FrontCounts
from delaybridge.front.opening import Node
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.service import Identity

_ANSWER_S, _STAY_S = 3.0, 0.2  # that a node has to accept a connection, and keeps a silent one
_LEAVE_S = 1.0
_MOST_EXCHANGES = 200


class Announcer:
    """Announces one front process every `lease.renew_ms`, and looks after the broker's nodes."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        counts: FrontCounts,
        nodes: Sequence[Node],
        exchanges: Callable[[], Iterable[str]],
    ) -> None:
        """exchanges: gives the delayed exchanges that are known, as `VHOST NAME`."""
        self._settings, self._identity, self._counts = settings, identity, counts
        self._nodes, self._exchanges = nodes, exchanges
        self.listen = settings.front.listen

    def tasks(self, store: AsyncStore) -> list[Coroutine[Any, Any, None]]:
        """What it does as long as the front runs."""
        return [self._announce(store), self._probe()]

    async def leave(self, store: AsyncStore) -> None:
        """Withdraw the announcement; if Redis does not answer at once, it expires."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._say(store, 0)

    async def _announce(self, store: AsyncStore) -> None:
        while True:
            await self._say(store, self._settings.lease.ttl_ms)
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)

    async def _say(self, store: AsyncStore, ttl_ms: int) -> None:
        who, names = self._identity, sorted(self._exchanges())[:_MOST_EXCHANGES]
        told = json.loads(who.info) | {"listen": self.listen, "exchanges": names}
        info = json.dumps(told | self._counts.announcement()).encode()
        about = self._settings.namespace, who.name, who.instance, ttl_ms, info
        with suppress(StoreError):
            await store.run_one(registry.announce(*about, kind=registry.FRONT))

    async def _probe(self) -> None:
        """Connect to the nodes that no client is connected to."""
        while True:
            used = {each.node for each in self._counts.connections}
            for node in self._nodes:
                if str(node) not in used:
                    await self._try(node)
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)

    async def _try(self, node: Node) -> None:
        """A node that closes a connection at once is not there: only what stands before it is."""
        writer = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(*node)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STAY_S):
                    await reader.readexactly(1)
            self._counts.reached(str(node))
        except EOFError:
            self._counts.unreachable(str(node), "it closes connections at once")
        except (OSError, TimeoutError) as exc:
            self._counts.unreachable(str(node), str(exc) or "no answer")
        finally:
            if writer is not None:
                writer.close()

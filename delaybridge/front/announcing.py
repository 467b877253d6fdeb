"""Shows a front to its operators: its announcement in Redis, and whether the broker's nodes answer.

Nothing of it is in the way of what passes through; without Redis the front is only not shown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.front.counts import FrontCounts
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.replies import Fleet
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.service import Identity

_log = logging.getLogger("delaybridge")
_ANSWER_S = 3.0  # that a node has to accept a connection
_LEAVE_S = 1.0
_MOST_EXCHANGES = 1000


class Announcer:
    """Announces one front process every `lease.renew_ms`, and looks after the broker's nodes."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        counts: FrontCounts,
        nodes: Sequence[tuple[str, int]],
        exchanges: Callable[[], Iterable[str]],
    ) -> None:
        """exchanges: gives the delayed exchanges that are known, as `VHOST NAME`."""
        self._settings, self._identity, self._counts = settings, identity, counts
        self._nodes, self._exchanges = nodes, exchanges
        self.listen = settings.front.listen  # the port is known once it listens

    async def run(self, store: AsyncStore) -> None:
        """Until cancelled, announce the front to its operators."""
        while True:
            try:
                fleet = await store.run_one(self._announcement(self._settings.lease.ttl_ms))
                if not fleet.announced:
                    say(logging.WARNING, "name_taken", name=self._identity.name, hint="not shown")
            except StoreError as exc:
                _log.debug("the front is not shown: %s", exc)
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)

    async def probe(self) -> None:
        """Until cancelled, connect to the nodes that no client is connected to."""
        while True:
            used = {each.node for each in self._counts.connections}
            for host, port in self._nodes:
                node = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                if node not in used:
                    await self._try(host, port, node)
            await asyncio.sleep(self._settings.lease.renew_ms / 1000)

    async def leave(self, store: AsyncStore) -> None:
        """Withdraw the announcement; if Redis does not answer at once, it expires."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await store.run_one(self._announcement(0))
        except (StoreError, TimeoutError):
            pass

    async def _try(self, host: str, port: int, node: str) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as exc:
            self._counts.unreachable(node, str(exc) or "no answer")
        else:
            writer.close()
            self._counts.reached(node)

    def _announcement(self, ttl_ms: int) -> RedisCommand[Fleet]:
        info: dict[str, Any] = json.loads(self._identity.info)
        info |= {
            "listen": self.listen,
            "nodes": self._counts.nodes,
            "exchanges": sorted(self._exchanges())[:_MOST_EXCHANGES],
            "refused": self._counts.refused(),
            "cautions": list(self._cautions()),
            "open": len(self._counts.connections),
            "clients": self._counts.announcements(),
        }
        who, namespace = self._identity, self._settings.namespace
        told = json.dumps(info).encode()
        return registry.announce(
            namespace, who.name, who.instance, ttl_ms, told, kind=registry.FRONT
        )

    def _cautions(self) -> Iterator[str]:
        """What an operator should know of how it listens."""
        front = self._settings.front
        if _is_local(front.listen):
            return
        if not front.tls_cert_file:
            yield "other hosts connect without TLS: see front.tls_cert_file"
        if front.allow_guest:
            yield "guest may connect from any host: see front.allow_guest"


def _is_local(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")

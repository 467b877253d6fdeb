"""Fullness: how near a Redis server is to the limit of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.namespace import EVICTION
from delaybridge.store.namespace.placement import Placement, at
from delaybridge.store.protocol.command import Each, Steps


class Fullness(NamedTuple):
    """A server's memory: what counts against its limit, and the limit (maxmemory).

    node: the server, as `host:port` on a Cluster. drops: when it is full, it does not refuse new
    messages but drops old ones.
    """

    used_bytes: int
    limit_bytes: int
    node: str = ""
    drops: bool = False

    @property
    def percent(self) -> int:
        """How full it is, rounded down; above 100 if it is over its limit."""
        return 100 * self.used_bytes // self.limit_bytes


def fullest(placement: Placement) -> Steps[Fullness | None]:
    """The fullest master of those that answer. One round trip.

    None: none has a limit, or INFO is not permitted.
    """
    nodes = [node for node in placement.nodes() or [""] if not placement.misses(at(node))]
    replies = yield Each(registry.info("memory", at(node)) for node in nodes)
    answers = zip(nodes, replies, strict=True)
    found = [_read(node, of) for node, of in answers if not isinstance(of, StoreError)]
    limited = [each for each in found if each.limit_bytes]
    return max(limited, key=lambda each: each.used_bytes / each.limit_bytes, default=None)


def _read(node: str, memory: Mapping[str, str]) -> Fullness:
    # Redis does not count the buffers of replicas and of the append-only file against its limit.
    used, free = (int(memory.get(f, 0)) for f in ("used_memory", "mem_not_counted_for_evict"))
    return Fullness(
        max(0, used - free),
        int(memory.get("maxmemory", 0)),
        node,
        memory.get("maxmemory_policy", EVICTION) != EVICTION,
    )

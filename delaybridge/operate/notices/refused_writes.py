"""Masters that take no writes now: they answer, so that who only reads finds nothing wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from delaybridge.errors import printable
from delaybridge.message import State
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.placement import Placement
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand

# Redis 6.2 puts the line of the script before it.
_WHY = re.compile(r"(MISCONF|NOREPLICAS|OOM|READONLY) .*", re.DOTALL)
_CHARS = 200


class RefusedWrites(NamedTuple):
    """A server that takes no writes. node: empty unless this is a Cluster. why: as it says."""

    node: str
    why: str

    def __str__(self) -> str:
        return f"{self.node or 'redis'} takes no writes: {self.why}"


def probes(buckets: Iterable[Bucket], placement: Placement) -> list[RedisCommand[Any]]:
    """Ask each server that has buckets whether it takes writes; `refused` reads the answers."""
    first: dict[str, Bucket] = {}
    for bucket in buckets:
        first.setdefault(placement.node_of(bucket.key("due")), bucket)
    asked = [registry.probe(bucket, partial(_read, node)) for node, bucket in first.items()]
    # A master that is one no more answers a probe. It refuses a script, so that all is asked again
    # of its successor.
    return [*asked, *(bucket.page(State.DELAYED, limit=1) for bucket in first.values())]


def refused(answers: Sequence[Any]) -> list[RefusedWrites]:
    """Those that take none; of a server that does not answer, others say so."""
    return [each for each in answers if isinstance(each, RefusedWrites) and each.why]


def _read(node: str, reply: Any) -> RefusedWrites:
    found = _WHY.search(reply.decode(errors="replace"))
    return RefusedWrites(node, printable(found[0].rstrip(".")[:_CHARS]) if found else "")

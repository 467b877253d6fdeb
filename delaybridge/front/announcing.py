"""Shows a front to its operators: its announcement in Redis, and whether the broker's nodes answer.

Nothing of it is in the way of what passes through; without Redis the front is only not shown.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from delaybridge.errors import StoreError
from delaybridge.front.counts import FrontCounts
from delaybridge.front.opening import Node
from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import AsyncStore

if TYPE_CHECKING:
    from delaybridge.front.front import FrontProcess

_ANSWER_S, _STAY_S = 3.0, 0.2  # that a node has to accept a connection, and keeps a silent one
_LEAVE_S = 1.0
_MOST_EXCHANGES = 200


async def announce(front: FrontProcess, store: AsyncStore) -> None:
    """Announce a front every `lease.renew_ms`, as long as it runs."""
    lease = front.all_settings.lease
    while True:
        await _say(front, store, lease.ttl_ms)
        await asyncio.sleep(lease.renew_ms / 1000)


async def leave(front: FrontProcess, store: AsyncStore) -> None:
    """Withdraw the announcement; if Redis does not answer at once, it expires."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_S):
            await _say(front, store, 0)


async def _say(front: FrontProcess, store: AsyncStore, ttl_ms: int) -> None:
    who, names = front.identity, sorted(_exchanges(front))[:_MOST_EXCHANGES]
    told = json.loads(who.info) | {"listen": front.listen, "exchanges": names}
    info = json.dumps(told | front.counts.announcement()).encode()
    about = front.all_settings.namespace, who.name, who.instance, ttl_ms, info
    with suppress(StoreError):
        await store.run_one(registry.announce(*about, kind=registry.FRONT))


def _exchanges(front: FrontProcess) -> Iterator[str]:
    """The delayed exchanges that it knows, as `VHOST NAME`."""
    for vhost, of in front.vhosts.items():
        yield from (f"{vhost} {name.decode(errors='replace')}" for name in of.names.values())


async def probe(front: FrontProcess) -> None:
    """Look after the broker's nodes: connect to those that no client is connected to."""
    while True:
        used = {each.node for each in front.counts.connections}
        for node in front.nodes.listed:
            if str(node) not in used:
                await _try(front.counts, node)
        await asyncio.sleep(front.all_settings.lease.renew_ms / 1000)


async def _try(counts: FrontCounts, node: Node) -> None:
    """A node that closes a connection at once is not there: only what stands before it is."""
    writer = None
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(*node)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STAY_S):
                await reader.readexactly(1)
        counts.reached(str(node))
    except EOFError:
        counts.unreachable(str(node), "it closes connections at once")
    except (OSError, TimeoutError) as exc:
        counts.unreachable(str(node), str(exc) or "no answer")
    finally:
        if writer is not None:
            writer.close()

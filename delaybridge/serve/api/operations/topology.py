"""Who serves which buckets, in the form of xtimer's topology."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec

from delaybridge.serve.http.routes import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.command import Steps
from delaybridge.store.protocol.keys import bucket_key

routes = Routes()


class TopologyServer(msgspec.Struct, rename="camel"):
    """A worker. last_heart_beat: epoch milliseconds. serve_keys: of the buckets that it holds."""

    last_heart_beat: int
    addr: str
    serve_keys: list[str]


@routes("GET /topology", "Show which worker serves which buckets", answer=dict[str, TopologyServer])
async def topology(call: Call) -> Any:
    """The living workers by name, each with the keys in Redis that it serves, as xtimer tells it.

    addr: HOST:PID, for workers listen on no port that messages come through.
    """
    client, settings = call.site.client, call.site.settings
    births = await client.run(_births)
    found = await client.stats()
    keys: dict[str | None, list[str]] = defaultdict(list)
    for bucket in found.buckets:
        birth = births.get(bucket.bucket, "")
        keys[bucket.owner].append(bucket_key(settings.namespace, bucket.bucket, "due", birth))
    return {
        worker.name: TopologyServer(
            min(found.now_ms, worker.expires_ms - settings.lease.ttl_ms),
            f"{worker.host}:{worker.pid}",
            keys[worker.name],
        )
        for worker in found.workers
    }


def _births(calls: Calls) -> Steps[dict[int, str]]:
    buckets = yield from calls.open()
    return {bucket.number: bucket.birth for bucket in buckets}

"""Who serves which buckets, in the form of xtimer's topology."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from delaybridge.serve.http.endpoint import Endpoint, Reply, Scope
from delaybridge.serve.shared.call import Call
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.command import Steps
from delaybridge.store.protocol.keys import bucket_key


class TopologyServer(msgspec.Struct, rename="camel"):
    """A worker. last_heart_beat: epoch milliseconds. serve_keys: of the buckets that it holds."""

    last_heart_beat: int
    addr: str
    serve_keys: list[str]


async def topology(call: Call) -> Reply:
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
    return Reply(
        {
            worker.name: TopologyServer(
                min(found.now_ms, worker.expires_ms - settings.lease.ttl_ms),
                f"{worker.host}:{worker.pid}",
                keys[worker.name],
            )
            for worker in found.workers
        }
    )


def _births(calls: Calls) -> Steps[dict[int, str]]:
    buckets = yield from calls.open()
    return {bucket.number: bucket.birth for bucket in buckets}


ENDPOINTS = (
    Endpoint(
        method="GET", path="/topology", scope=Scope.READ, handler=topology,
        summary="Show which worker serves which buckets", answers={200: dict[str, TopologyServer]},
    ),
)  # fmt: skip

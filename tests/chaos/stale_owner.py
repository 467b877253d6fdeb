"""A worker that has lost its lease and does not know it: it calls every verb of an owner.

With a token that is not the lease's, and with the lease's token and the number of another claim.
Prints what the store did, which must be nothing: one JSON object on one line.

python -m tests.chaos.stale_owner URL NAMESPACE SECONDS
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

import redis

from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import Store

BUCKETS, TTL_MS = 16, 2000
GHOST = "ghost:0123456789abcdef:1"


def verbs(bucket: Bucket, token: str, items: list[Item]) -> dict[str, RedisCommand[object]]:
    """Every verb that an owner calls about messages."""
    groups = [(item.claim, [item.id]) for item in items]
    return {
        "settle": bucket.settle(token, TTL_MS, groups),
        "retry": bucket.retry(token, TTL_MS, [(item, 60_000, True, "x\nx") for item in items]),
        "park": bucket.park(token, TTL_MS, items),
        "bury": bucket.bury(token, TTL_MS, [(item, True, False, "stale") for item in items]),
    }


def of_owner(bucket: Bucket) -> dict[str, RedisCommand[object]]:
    return {
        "claim": bucket.claim(GHOST, TTL_MS, 0, ahead_ms=2000, limit=10, max_bytes=10_000),
        "fire": bucket.fire(GHOST, TTL_MS, time.time() * 1000 + 60_000, 10**6, 0),
    }


def main(url: str, namespace: str, seconds: str) -> None:
    store, direct = Store(url), redis.Redis.from_url(url)
    took_effect: dict[str, int] = {}
    asked = late_calls = 0

    def ask(what: str, command: RedisCommand[object], is_refusal: Callable[[object], bool]) -> None:
        nonlocal asked
        asked += 1
        if not is_refusal(*store.run([command])):
            took_effect[what] = took_effect.get(what, 0) + 1

    until_s = time.monotonic() + float(seconds)
    while time.monotonic() < until_s:
        number = random.randrange(BUCKETS)
        bucket = Bucket(namespace, number, "")
        mirror = direct.zrange(bucket_key(namespace, number, "mirror"), 0, 4, withscores=True)
        items = [Item(id.decode(), int(claim), 0.0) for id, claim in mirror]
        for name, command in {**verbs(bucket, GHOST, items), **of_owner(bucket)}.items():
            ask(f"{name} without the lease", command, lambda answer: answer is None)
        lease = direct.get(bucket_key(namespace, number, "lease"))
        if lease is not None and items:
            late = [item._replace(claim=item.claim - 1) for item in items]
            for command in verbs(bucket, lease.decode(), late).values():
                store.run([command])
                late_calls += 1
        time.sleep(0.02)
    print(json.dumps({"asked": asked, "late": late_calls, "took_effect": took_effect}))


if __name__ == "__main__":
    main(*sys.argv[1:])

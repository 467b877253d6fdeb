"""Alarms that end by themselves: with a ledger, what Redis has lost is rebuilt."""

from __future__ import annotations

import asyncio
import logging

from delaybridge.errors import StoreError
from delaybridge.ledger.comparing.rebuilt import end_rebuilt
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say

_LOOK_S = 1.0


async def end_alarms(store: AsyncStore, namespace: str) -> None:
    """Look each second whether the buckets of an alarm are rebuilt; it ends then. Never ends."""
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            ended = await store.complete(end_rebuilt(namespace, store.node_of))
        except StoreError:
            continue  # the next look tells
        if ended:
            what = ["all" if each.bucket is None else str(each.bucket) for each in ended]
            say(logging.INFO, "alarm_ended", buckets=",".join(what), reason="the ledger rebuilt it")

"""What is to be known of a Redis: its name, how far away it is, and what its clock says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from delaybridge.store import registry

if TYPE_CHECKING:
    from delaybridge.store.store import Store

_PINGS = 5


def measured(store: Store) -> tuple[float, float]:
    """Round trip, and by how much this host's clock is ahead of the store's, both in ms.

    From the quickest of some round trips, so the second is exact to half of the first.
    """
    trips = []
    for _ in range(_PINGS):
        sent_s, sent_ns = time.perf_counter(), time.time_ns()
        (store_us,) = store.run([registry.store_time()])
        trip_ms = (time.perf_counter() - sent_s) * 1000
        trips.append((trip_ms, sent_ns / 1e6 + trip_ms / 2 - store_us / 1000))
    return min(trips)


def server_name(info: Mapping[str, str]) -> str:
    """`redis 7.0.15` or `valkey 9.1.2`, from INFO server."""
    if "valkey_version" in info:
        return f"valkey {info['valkey_version']}"
    return f"redis {info.get('redis_version', '?')}"

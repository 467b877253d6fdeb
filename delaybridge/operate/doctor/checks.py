"""Measurements of a Redis, and the recurring definitions, for `doctor`, `health` and `stats`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.store.namespace import registry

if TYPE_CHECKING:
    from delaybridge.recurring.summary import DefinitionCounts
    from delaybridge.store.redis.store import Store

_PINGS = 5
_NAMED = 5  # failing definitions that are shown one by one


def measured(store: Store) -> tuple[float, float]:
    """Round trip, and by how much this host's clock is ahead of the store's, both in ms.

    Both are of the quickest of five round trips; the clock is exact to half a round trip.
    """
    trips = []
    for _ in range(_PINGS):
        sent_s, sent_ns = time.perf_counter(), time.time_ns()
        (store_us,) = store.run([registry.store_time()])
        trip_ms = (time.perf_counter() - sent_s) * 1000
        trips.append((trip_ms, sent_ns / 1e6 + trip_ms / 2 - store_us / 1000))
    return min(trips)


def server_name(info: Mapping[str, str]) -> str:
    """`redis 7.0.15`, `valkey 9.1.2`, or `kvrocks 2.10.0, as redis 7.0.0`, from INFO server."""
    redis = f"redis {info.get('redis_version', '?')}"
    for field, version in info.items():
        own, mark, _ = field.partition("_version")
        if mark and own not in ("redis", "gcc"):
            return f"{own} {version}" + ("" if own == "valkey" else f", as {redis}")
    return redis


def recurring_definitions(found: DefinitionCounts) -> Iterator[Finding]:
    """The recurring definitions that fail, a few by name."""
    failing = [*found.failing.items()]
    for name, error in failing[:_NAMED]:
        yield trouble("recurring_failing", name=name, error=error)
    if len(failing) > _NAMED:
        what = f"{len(failing) - _NAMED} more definitions fail"
        yield trouble("recurring_failing", what, name=failing[_NAMED][0])
    if found.definitions and not failing:
        yield ok("recurring", f"definitions: {found.definitions}, none fails")

"""The reader: asks Redis for the gauges, when a scrape or a probe wants them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from delaybridge.errors import StoreError
from delaybridge.operate.views.gauges import Gauges, read_gauges
from delaybridge.operate.views.tally import DestinationCounts
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from delaybridge.worker.service import ProcessReport

_TIMEOUT_S = 2.0
_COUNTED_S = 10.0  # counting by destination costs Redis more than all others: not more often


class Reading(NamedTuple):
    """The answer of Redis. gauges: None if it did not answer; error: why.

    skew_s: Redis' clock minus this host's. unowned_s: bucket -> for how long no worker has held
    it, as far as this reader knows.
    """

    gauges: Gauges | None = None
    error: str = ""
    skew_s: float = 0.0
    unowned_s: Mapping[int, float] = {}

    def overdue_s(self, reports: Iterable[ProcessReport]) -> float:
        """How late the oldest message is, in the buckets held here or by no worker.

        Workers say how late parked ones are; they do not hear of those that are cancelled.
        """
        if self.gauges is None:
            return 0.0
        now_ms = self.gauges.now_us / 1000
        late_ms: list[float] = [
            count.overdue_ms for count in (*self.gauges.held, *self.gauges.alone)
        ]
        if any(count.parked for count in self.gauges.held):
            late_ms += [now_ms - r.parked_ms for r in reports if r.parked_ms is not None]
        return max([0.0, *late_ms]) / 1000


class Reader:
    """Reads through a connection of its own; it blocks, at most a few time-outs. One at a time."""

    def __init__(self, url: str, namespace: str, kinds: Mapping[str, str] = {}) -> None:
        """kinds: broker -> its kind."""
        self._store, self._namespace = Store(url, timeout_s=_TIMEOUT_S), namespace
        self._kinds = kinds
        self._since_s: dict[int, float] = {}  # bucket -> when it was first seen unowned
        self._counted: tuple[float, set[int]] = float("-inf"), set()  # when, and which buckets
        self._counts: Sequence[DestinationCounts] = ()

    def read(self, held: Collection[int]) -> Reading:
        """The gauges; held: the buckets that these processes hold. Raises nothing of Redis."""
        try:
            sent_s = time.time()
            (store_us,) = self._store.run([registry.store_time(keys.birth(self._namespace))])
            skew_s = store_us / 1e6 - (sent_s + time.time()) / 2
            gauges = self._store.complete(
                read_gauges(
                    self._namespace,
                    held,
                    self._kinds,
                    destinations=self._recent(held),
                    placement=self._store,
                )
            )
        except StoreError as exc:
            return Reading(error=str(exc) or type(exc).__name__)
        now_s = time.monotonic()
        if gauges.destinations is not self._counts:
            self._counted, self._counts = (now_s, {*held}), gauges.destinations
        self._since_s = {b: self._since_s.get(b, now_s) for b in gauges.unowned}
        unowned_s = {bucket: now_s - since_s for bucket, since_s in self._since_s.items()}
        return Reading(gauges, "", skew_s, unowned_s)

    def _recent(self, held: Collection[int]) -> Sequence[DestinationCounts] | None:
        """The counts by destination, unless they are old or of other buckets."""
        counted_s, buckets = self._counted
        is_recent = time.monotonic() - counted_s < _COUNTED_S and {*held} == buckets
        return self._counts if is_recent else None

    def close(self) -> None:
        """Disconnect from Redis for good."""
        self._store.close()

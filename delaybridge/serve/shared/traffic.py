"""What this process answered: requests by endpoint and status, and how long they took."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING

from delaybridge.histogram import BOUNDS_MS, Histogram
from delaybridge.operate.metrics.catalog import PREFIX

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


class Traffic:
    """Counted by the path of the endpoint, of which there are few, never by that of a request."""

    def __init__(self) -> None:
        self._requests = Counter[tuple[str, str, int]]()
        self._took: dict[tuple[str, str], Histogram] = {}

    def count(self, method: str, path: str, status: int, took_s: float | None) -> None:
        """A request was answered. took_s: None for a stream, which takes as long as it likes."""
        self._requests[method, path, status] += 1
        if took_s is None:
            return
        found = self._took.get((method, path))
        if found is None:
            found = self._took[method, path] = Histogram(BOUNDS_MS)
        found.observe(took_s * 1000)

    def text(self) -> tuple[bytes, str]:
        """As Prometheus reads it, and its content type."""
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        collector: Collector = self
        return generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterable[Metric]:
        """The families, as the client library of Prometheus asks a collector for them."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        process, of_endpoint = str(os.getpid()), ("process", "method", "path")
        requests = CounterMetricFamily(
            f"{PREFIX}http_requests", "Requests answered.", labels=(*of_endpoint, "status")
        )
        for (method, path, status), count in self._requests.items():
            requests.add_metric((process, method, path, str(status)), count)
        took = HistogramMetricFamily(
            f"{PREFIX}http_request_duration_seconds",
            "From the end of a request's headers to its answer; without streams.",
            labels=of_endpoint,
        )
        for (method, path), found in self._took.items():
            names = [*(str(bound / 1000) for bound in found.bounds), "+Inf"]
            buckets = list(zip(names, accumulate(found.counts), strict=True))
            took.add_metric((process, method, path), buckets, found.sum / 1000)
        return (requests, took)

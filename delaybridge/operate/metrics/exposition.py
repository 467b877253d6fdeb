"""Exposition: totals and gauges as the text that Prometheus reads."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from delaybridge import __version__
from delaybridge.histogram import Histogram
from delaybridge.operate.metrics.catalog import METRICS, PREFIX
from delaybridge.operate.metrics.counts import Counts, Key

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

T = TypeVar("T")
_BEGINNINGS: Mapping[str, dict[Key, float]] = {
    "leases_lost_total": {("expired",): 0, ("released",): 0}
}
TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"


def exposed(counts: Counts, gauges: Mapping[Key, float], format: str) -> tuple[bytes, str]:
    """The text in this format, and its content type."""
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    families = list(_families(counts, gauges))
    collector: Any = SimpleNamespace(collect=lambda: families)  # all that they ask of one
    if format == OPENMETRICS:
        text = openmetrics.generate_latest(collector)  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return exposition.generate_latest(collector), exposition.CONTENT_TYPE_PLAIN_0_0_4


def _families(counts: Counts, gauges: Mapping[Key, float]) -> Iterator[Family]:
    totals, histograms = _by_name(counts.totals), _by_name(counts.histograms)
    values = _by_name(gauges)
    for name, metric in METRICS.items():
        if metric.kind == "counter":
            # Where the labels are known it is 0 before it first counts: a rate needs a beginning.
            has_beginning = not (metric.labels or metric.of_redis)
            nothing: dict[Key, float] = {(): 0} if has_beginning else _BEGINNINGS.get(name, {})
            yield _simple(name, nothing | (values if metric.of_redis else totals).get(name, {}))
        elif metric.kind == "gauge":
            yield _simple(name, values.get(name) or totals.get(name, {}))
        elif metric.kind == "histogram":
            yield _distribution(name, histograms.get(name, {}))
        else:
            yield _build(name)


def _simple(name: str, values: Mapping[Key, float]) -> Family:
    """A counter or a gauge."""
    from prometheus_client import core

    metric = METRICS[name]
    kind = core.CounterMetricFamily if metric.kind == "counter" else core.GaugeMetricFamily
    family = kind(PREFIX + name, metric.means, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _distribution(name: str, histograms: Mapping[Key, Histogram]) -> Family:
    from prometheus_client import core

    metric = METRICS[name]
    family = core.HistogramMetricFamily(PREFIX + name, metric.means, labels=metric.labels)
    unit = 1000 if name.endswith("_seconds") else 1  # times are counted in ms
    for labels, histogram in histograms.items():
        bounds = [*(repr(bound / unit) for bound in histogram.bounds), "+Inf"]
        counts = map(float, accumulate(histogram.counts))
        family.add_metric(labels, list(zip(bounds, counts, strict=True)), histogram.sum / unit)
    return family


def _build(name: str) -> Family:
    from prometheus_client import core

    brokers = f"pika {version('pika')}, confluent-kafka {version('confluent-kafka')}"
    versions = (__version__, platform.python_version(), version("redis"), brokers)
    family = core.InfoMetricFamily(PREFIX + name.removesuffix("_info"), METRICS[name].means)
    family.add_metric((), dict(zip(METRICS[name].labels, versions, strict=True)))
    return family


def _by_name(found: Mapping[Key, T]) -> dict[str, dict[Key, T]]:
    """Name -> labels -> value. A lone surrogate in a label cannot be sent."""
    named: dict[str, dict[Key, T]] = {}
    for (name, *labels), value in found.items():
        shown = tuple(label.encode(errors="replace").decode() for label in labels)
        named.setdefault(name, {})[shown] = value
    return named

"""Expressions of Prometheus, read as far as their names go: metrics, labels, what a result has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from delaybridge.operate.metrics.catalog import METRICS, PREFIX

_SERIES = re.compile(r"\b([a-zA-Z_:][\w:]*)\{([^}]*)\}|\b(delaybridge_\w+)")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_LABELS = re.compile(r"\b(by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_PARTS = {"_bucket": {"le"}, "_sum": set(), "_count": set()}
SCRAPED = {"instance", "job"}  # what Prometheus adds to each series


class Series(NamedTuple):
    """A selector: the metric as the catalogue has it, and the labels that it asks for."""

    metric: str
    asked: set[str]
    known: set[str]


def series_of(expression: str) -> Iterator[Series]:
    """Every selector of a metric of ours; of others those with matchers."""
    for found in _SERIES.finditer(expression):
        name = found[1] or found[3]
        metric, part = _metric_of(name)
        known = {*METRICS[metric].labels, *part} if metric in METRICS else set()
        yield Series(metric, set(_MATCHER.findall(found[2] or "")), known | SCRAPED)


def operands_of(expression: str) -> list[str]:
    """What `or`, `and` and `unless` stand between."""
    return re.split(r"\b(?:or|and|unless)\b", expression)


def grouped_by(expression: str) -> list[set[str]]:
    """The labels of each `by (...)` and the like."""
    return [
        {label for label in re.split(r"[\s,]+", found[2]) if label}
        for found in _LABELS.finditer(expression)
    ]


def labels_of(expression: str) -> set[str]:
    """The labels that a result may have: those it is grouped by, else all of its series."""
    groups = grouped_by(expression)
    return set().union(*(groups or (series.known for series in series_of(expression))))


def _metric_of(name: str) -> tuple[str, set[str]]:
    bare = name.removeprefix(PREFIX)
    for part, labels in _PARTS.items():
        whole = bare.removesuffix(part)
        if whole != bare and whole in METRICS and METRICS[whole].kind == "histogram":
            return whole, labels
    return bare if name.startswith(PREFIX) else name, set()

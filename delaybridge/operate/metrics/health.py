"""Health: whether processes live, and whether they are ready, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from delaybridge.errors import printable
from delaybridge.operate.metrics.gauges import is_read, sources_of
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.notices.announcements import waiting_text
from delaybridge.settings.urls import redact_text
from delaybridge.worker.service import ProcessReport

Latest = Mapping[str, ProcessReport]  # by name of the process
_CHARS = 300
_NAMED = 20


class Health(NamedTuple):
    """reasons: why not; none if all is well."""

    reasons: list[str]
    details: dict[str, Any]

    @property
    def is_well(self) -> bool:
        return not self.reasons

    @property
    def as_json(self) -> dict[str, Any]:
        """The body of the answer to a probe."""
        reasons = [printable(redact_text(reason))[:_CHARS] for reason in self.reasons[:_NAMED]]
        return {"status": "ok" if self.is_well else "failing", "reasons": reasons, **self.details}


def live(reports: Latest, silent: Mapping[str, float]) -> Health:
    """Whether the event loop of every process moves. silent: name -> seconds of those that do not.

    Redis and the brokers do not count: a restart does not mend them.
    """
    reasons = [f"{name} has been silent for {age_s:.0f} s" for name, age_s in silent.items()]
    return Health(reasons, {"processes": sorted(reports)})


def ready(reports: Latest, found: Reading, *, patience_s: float) -> Health:
    """Whether messages can go out. patience_s: how long a bucket may be unowned.

    A front is ready as long as it reaches the broker: without Redis, too, clients connect to it.
    """
    details = {
        "unowned_buckets": sorted(found.unowned_s),
        "oldest_overdue_s": found.overdue_s(reports.values()),
    }
    return Health(list(_obstacles(reports, found, patience_s)), details)


def _obstacles(reports: Latest, found: Reading, patience_s: float) -> Iterator[str]:
    if not reports:
        yield "no process has reported yet"
    if any(report.is_draining for report in reports.values()):
        yield "draining: it was told to stop"
    if any(report.front for report in reports.values()):
        yield from _without_nodes(reports)
        return
    if found.gauges is None:
        yield found.error
    else:
        yield from map(str, found.gauges.refused)
    yield from _without_brokers(reports)
    yield from _without_ledger(reports)
    alone = sorted(bucket for bucket, age_s in found.unowned_s.items() if age_s > patience_s)
    if alone:
        longest_s = max(found.unowned_s.values())
        yield f"{len(alone)} buckets have had no worker for up to {longest_s:.0f} s: {alone}"


def _without_ledger(reports: Latest) -> Iterator[str]:
    """Reasons to wait for the ledger's database."""
    for name, report in reports.items():
        if report.awaits:
            yield f"{name} waits for the record of the namespace: {report.awaits}"
    told = [report.ledger for report in reports.values() if report.ledger is not None]
    if waiting := sum(each["waiting"] for each in told):
        why = next((each["silent"] for each in told if each["silent"]), "")
        yield waiting_text(waiting, why)


def _without_nodes(reports: Latest) -> Iterator[str]:
    """Why clients of a front get no connection: no process of it reaches a node of the broker."""
    fronts = [report.nodes for report in reports.values() if report.front and report.nodes]
    if fronts and all(all(nodes.values()) for nodes in fronts):
        for node, reason in fronts[0].items():
            yield f"broker node {node}: {reason}"


def _without_brokers(reports: Latest) -> Iterator[str]:
    """Why no worker, or no ingest process, is connected to any of its brokers."""
    brokers = [item for report in reports.values() for item in report.brokers.items()]
    if brokers and all(reason is not None for _, reason in brokers):
        for name, reason in dict(brokers).items():
            yield f"broker {name}: {reason}"
    sources = list(sources_of(reports))
    if sources and not any(is_read(state) for _, (state, *_) in sources):
        for name, (state, *_) in dict(sources).items():
            yield f"source {name}: {state}"

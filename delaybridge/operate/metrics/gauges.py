"""Gauges: what processes say of themselves and Redis of the namespace, as values by metric."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from delaybridge.operate.metrics.counts import MOST_DESTINATIONS, Key
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.notices.repairs import summed
from delaybridge.operate.views.gauges import Gauges
from delaybridge.worker.service import ProcessReport

_MOST_RETRYING = 200  # groups of a destination and a reason
_MEMORY = {"store_memory_bytes": "used_memory", "store_memory_max_bytes": "maxmemory"}
_ORPHANS = ("due", "dead", "parked", "bare")  # what they became
_STATES = ("delayed", "in_flight", "parked", "dead")


def gauges_of(reports: Mapping[str, ProcessReport], found: Reading) -> dict[Key, float]:
    """Every gauge that is known; those of Redis only if it answered."""
    values: dict[Key, float] = dict(_of_processes(reports))
    if found.gauges is None:
        return values | {("store_up",): 0}
    memory = found.gauges.memory
    values |= {
        ("store_up",): 1,
        ("store_refusing",): len(found.gauges.refused),
        ("worker_clock_skew_seconds",): found.skew_s,
        ("buckets",): found.gauges.buckets,
        ("buckets_unowned",): len(found.gauges.unowned),
        ("buckets_unseen",): len(found.gauges.unseen),
        ("oldest_overdue_seconds",): found.overdue_s(reports.values()),
    }
    for name, field in _MEMORY.items():
        if memory.get(field, "").isdigit():
            values[name,] = int(memory[field])
    return values | dict(_of_messages(found.gauges))


def _of_messages(gauges: Gauges) -> Iterator[tuple[Key, float]]:
    for what, messages in gauges.accepted.items():
        yield (f"store_messages_{what}_total",), messages
    for state in _STATES:
        yield ("messages", state), sum(getattr(count, state) for count in gauges.held)
    found = summed({count.bucket: count.orphans for count in gauges.held})
    yield ("orphans_waiting_messages",), found.waiting
    for became in _ORPHANS:
        yield ("orphans_found_messages", became), getattr(found, became)
    due_ms = [count.next_due_ms for count in gauges.held if count.next_due_ms is not None]
    if due_ms:
        yield ("next_due_timestamp_seconds",), min(due_ms) / 1000
    for window, messages in gauges.horizon.items():
        yield ("horizon_messages", window), messages
    for group in gauges.retrying[:_MOST_RETRYING]:
        yield ("retrying_messages", group.destination, group.reason), group.messages
    for place in gauges.destinations:
        for state in _STATES:
            tally = getattr(place, state)
            yield ("destination_messages", place.destination, state), tally.messages
            yield ("destination_messages_error", place.destination, state), tally.error


def _of_processes(reports: Mapping[str, ProcessReport]) -> Iterator[tuple[Key, float]]:
    """The gauges that processes report of themselves."""
    yield ("worker_processes",), len(reports)
    workers = [report for report in reports.values() if report.scanned_s is not None]
    if workers:
        yield from _of_workers(workers)
    if any(report.awaits for report in reports.values()):
        yield ("ledger_up",), 0
    yield from _of_fronts([report for report in reports.values() if report.front])
    for source, (state, lag, faults) in sources_of(reports):
        yield ("source_up", source), is_read(state)
        yield ("source_faults", source), faults
        if lag is not None:
            yield ("source_lag_messages", source), lag


def _of_workers(workers: Sequence[ProcessReport]) -> Iterator[tuple[Key, float]]:
    yield ("worker_buckets",), sum(len(report.buckets) for report in workers)
    longest_s = time.monotonic() - min(report.scanned_s or 0 for report in workers)
    yield ("worker_last_scan_timestamp_seconds",), time.time() - longest_s
    for broker in {broker for report in workers for broker in report.brokers}:
        yield ("broker_up", broker), not any(report.brokers.get(broker) for report in workers)
        unconfirmed = sum(report.unconfirmed.get(broker, 0) for report in workers)
        yield ("publisher_unconfirmed_messages", broker), unconfirmed
    if told := [report.ledger for report in workers if report.ledger is not None]:
        yield ("ledger_up",), not any(each["silent"] for each in told)
        yield ("ledger_waiting_buckets",), sum(each["waiting"] for each in told)
        for what in ("lag", "restored", "without_row"):
            yield (f"ledger_{what}_messages",), sum(each.get(what, 0) for each in told)
    held = Counter[tuple[str, str]]()
    for report in workers:
        held.update(report.held)
    for (destination, cause), messages in held.most_common(MOST_DESTINATIONS):
        yield ("held_messages", destination, cause), messages


def _of_fronts(fronts: Sequence[ProcessReport]) -> Iterator[tuple[Key, float]]:
    for name in fronts[0].front if fronts else ():
        of_all = [report.front[name] for report in fronts]
        yield (name,), max(of_all) if name.endswith("_seconds") else sum(of_all)
    for node in {node for report in fronts for node in report.nodes}:
        yield ("front_node_up", node), not any(report.nodes.get(node) for report in fronts)


def sources_of(
    reports: Mapping[str, ProcessReport],
) -> Iterator[tuple[str, tuple[str, int | None, int]]]:
    """Each source of ingest with its state, its lag and its faults."""
    for report in reports.values():
        yield from report.sources.items()


def is_read(state: str) -> bool:
    """Whether a source of this state is read, here or by another process."""
    return state == "reading" or state.startswith("idle: ")

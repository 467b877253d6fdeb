"""Counts: cumulative totals of one process, made from its events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from delaybridge import events
from delaybridge.histogram import Histogram, Histograms
from delaybridge.store.protocol.record import first_word

Key = tuple[str, ...]  # a metric's name without the prefix `delaybridge_`, then its labels' values
MOST_DESTINATIONS, MOST_REASONS = 200, 50
MOST_PAIRS = 500  # of a destination and a reason
MOST_CHARS = 100  # of a reason
OTHER = "other"
_OfSeveral = events.Claimed | events.FireAllowed | events.Settled | events.LeaseAcquired


class Capped:
    """Labels that get totals of their own: the first `most`; all others share `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __call__(self, label: str) -> str:
        return self._known.get(label) or self._new(label)

    def _new(self, label: str) -> str:
        if len(self._known) >= self._most:
            return OTHER
        return self._known.setdefault(label, label or "?")


class Counts:
    """An `Emit` that counts. It does no I/O and sets no timer.

    totals: ("messages_published_total", "rabbitmq:orders") -> how often; absent means never.
    histograms: ("publish_lateness_seconds", "rabbitmq:orders") -> `Histogram`.
    `operate/metrics/catalog.py` lists all metrics with their labels. Totals begin at 0 with the
    process and never fall, so what happened in between is the difference of two `copy()`. Another
    thread may copy while the loop counts.

    A destination is a lane's label, such as `rabbitmq:orders`. The first 200 destinations and the
    first 50 reasons get totals of their own, all others share `other`. So memory is bounded.
    """

    def __init__(self) -> None:
        self.totals: defaultdict[Key, int] = defaultdict(int)
        self.histograms = Histograms()
        self.destination, self.source = Capped(MOST_DESTINATIONS), Capped(MOST_DESTINATIONS)
        self.name = Capped(MOST_DESTINATIONS)
        self._reasons, self._pairs = Capped(MOST_REASONS), Capped(MOST_PAIRS)

    def __call__(self, event: events.Event) -> None:
        count = _COUNTED.get(type(event))
        if count is not None:
            count(self, event)

    def copy(self) -> tuple[dict[Key, int], dict[Key, Histogram]]:
        """Totals and histograms as they are now."""
        return dict(self.totals), {key: found.copy() for key, found in [*self.histograms.items()]}

    def reason(self, text: str) -> str:
        """The label under which a reason is counted: its first word."""
        return self._reasons(first_word(text)[:MOST_CHARS])

    def published(self, event: events.Published) -> None:
        """A confirmed batch: its messages, and how late each was."""
        destination = self.destination(event.destination)
        self.totals["messages_published_total", destination] += event.messages
        found = self.histograms["publish_lateness_seconds", destination]
        found.add(event.lateness, event.late_sum_ms)
        for took_ms in event.confirm_ms:
            broker = event.destination.partition(":")[0]
            self.histograms["publish_confirm_seconds", broker].observe(took_ms)

    def failed(self, metric: str, event: events.Undelivered) -> None:
        """Messages of one destination that met with one reason."""
        destination, reason = self.destination(event.destination), self.reason(event.reason)
        if self._pairs(f"{destination} {reason}") == OTHER:
            reason = OTHER
        self.totals[metric, destination, reason] += event.messages

    def claimed(self, event: events.Claimed) -> None:
        """A claim, how many messages it returned, and how long its call took."""
        self.each("messages_claimed_total", event)
        self.histograms["claim_seconds",].observe(event.took_ms)
        self.histograms["scan_batch_messages",].observe(event.messages)

    def each(self, metric: str, event: _OfSeveral) -> None:
        """Add the messages of each destination."""
        for destination, messages in event.destinations.items():
            self.totals[metric, self.destination(destination)] += messages

    def stored(self, event: events.IngestStored) -> None:
        """Add the messages that ingest stored and changed."""
        destination = self.destination(event.destination)
        for metric, amount in (
            (("messages_scheduled_total", destination, "ingest"), event.messages),
            (("messages_cancelled_total", destination), event.cancelled),
            (("messages_rescheduled_total", destination), event.rescheduled),
        ):
            if amount:
                self.totals[metric] += amount
        if event.delays:
            found = self.histograms["requested_delay_seconds", destination]
            found.add(event.delays, event.delay_sum_ms)

    def runs(self, event: events.RunsMade) -> None:
        """Runs of a recurring definition."""
        if event.messages:
            destination = self.destination(event.destination)
            self.totals["messages_scheduled_total", destination, "recurring"] += event.messages
            last = "recurring_last_run_timestamp_seconds", self.name(event.name)
            self.totals[last] = max(self.totals[last], event.due_ms // 1000)
        if event.missed:
            self.totals["recurring_missed_total", self.name(event.name)] += event.missed

    def acquired(self, event: events.LeaseAcquired) -> None:
        """A lease was taken, and messages of dead sessions put back."""
        self.totals["leases_acquired_total",] += 1
        self.each("messages_reclaimed_total", event)

    def add(self, amount: int, *key: str) -> None:
        """Count `amount` more under a metric and its labels."""
        self.totals[key] += amount


def _failure(metric: str) -> Callable[[Counts, Any], None]:
    return lambda counts, event: counts.failed(metric, event)


_COUNTED: dict[type[events.Event], Callable[[Counts, Any], None]] = {
    events.Published: Counts.published,
    events.Retried: _failure("messages_retried_total"),
    events.Buried: _failure("messages_buried_total"),
    events.DeadLettered: _failure("messages_dead_lettered_total"),
    events.Dropped: _failure("messages_dropped_total"),
    events.Claimed: Counts.claimed,
    events.FireAllowed: lambda c, e: c.each("messages_fired_total", e),
    events.Settled: lambda c, e: c.each("messages_settled_total", e),
    events.PublishFailed: lambda c, e: c.add(
        e.messages, "publish_errors_total", e.destination.partition(":")[0], c.reason(e.reason)
    ),
    events.IngestStored: Counts.stored,
    events.RunsMade: Counts.runs,
    events.Ingested: lambda c, e: c.add(e.messages, "messages_ingested_total", c.source(e.source)),
    events.StoreSilent: lambda c, e: c.add(1, "store_silences_total"),
    events.ScannerFailed: lambda c, e: c.add(1, "scanner_failures_total"),
    events.DeadDropped: lambda c, e: c.add(e.messages, "dead_messages_deleted_total"),
    events.CircuitOpened: lambda c, e: c.add(
        1, "circuits_opened_total", c.destination(e.destination)
    ),
    events.LeaseAcquired: Counts.acquired,
    events.LeaseReleased: lambda c, e: c.add(1, "leases_lost_total", "released"),
    events.LeaseLost: lambda c, e: c.add(1, "leases_lost_total", "expired"),
    events.Quarantined: lambda c, e: c.add(
        e.messages, "messages_refused_total", c.reason(e.reason).removeprefix("ingress:")
    ),
}

"""Counts: cumulative totals of one process, made from its events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from delaybridge.events import (
    Buried,
    CircuitOpened,
    Claimed,
    DeadDropped,
    DeadLettered,
    Dropped,
    Event,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    Published,
    Quarantined,
    Retried,
)
from delaybridge.metrics.histogram import Histogram
from delaybridge.store.troubles import first_word

Key = tuple[str, ...]  # a metric's name without the prefix `delaybridge_`, then its labels' values
MOST_DESTINATIONS, MOST_REASONS = 200, 50
OTHER = "other"  # destinations and reasons beyond these


class Counts:
    """An `Emit` that counts. It does no I/O and sets no timer.

    totals: ("messages_published_total", "rabbitmq:orders") -> how often; absent means never.
    histograms: ("publish_lateness_seconds", "rabbitmq:orders") -> `Histogram`.
    `metrics/catalog.py` lists all metrics with their labels. Totals begin at 0 with the process and
    never fall, so what happened in between is the difference of two `copy()`. Another thread may
    copy while the loop counts.

    A destination is a lane's label, such as `rabbitmq:orders`. The first 200 destinations and the
    first 50 reasons get totals of their own, all others share `other`.
    """

    def __init__(self) -> None:
        self.totals: defaultdict[Key, int] = defaultdict(int)
        self.histograms: defaultdict[Key, Histogram] = defaultdict(Histogram)
        self._destinations: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        count = _COUNTED.get(type(event))
        if count is not None:
            count(self, event)

    def copy(self) -> tuple[dict[Key, int], dict[Key, Histogram]]:
        """Totals and histograms as they are now."""
        return dict(self.totals), {key: found.copy() for key, found in [*self.histograms.items()]}

    def destination(self, label: str) -> str:
        """The label under which a destination is counted."""
        return self._destinations.get(label) or _named(self._destinations, label, MOST_DESTINATIONS)

    def reason(self, text: str) -> str:
        """The label under which a reason is counted: its first word."""
        word = first_word(text)
        return self._reasons.get(word) or _named(self._reasons, word, MOST_REASONS)

    def published(self, event: Published) -> None:
        """A confirmed batch: its messages, and how late each was."""
        destination = self.destination(event.destination)
        self.totals["messages_published_total", destination] += event.messages
        found = self.histograms["publish_lateness_seconds", destination]
        found.add(event.lateness, event.late_sum_ms)

    def failed(self, metric: str, event: Retried | Buried | DeadLettered | Dropped) -> None:
        """Messages of one destination that met with one reason."""
        key = metric, self.destination(event.destination), self.reason(event.reason)
        self.totals[key] += event.messages

    def acquired(self, event: LeaseAcquired) -> None:
        """A lease was taken, and messages of dead sessions put back."""
        self.totals["leases_acquired_total",] += 1
        if event.reclaimed:
            self.totals["messages_reclaimed_total",] += event.reclaimed

    def add(self, amount: int, *key: str) -> None:
        """Count `amount` more under a metric and its labels."""
        self.totals[key] += amount


def _named(names: dict[str, str], label: str, most: int) -> str:
    """Give a label totals of its own, while there are fewer than `most`."""
    if len(names) >= most:
        return OTHER
    return names.setdefault(label, label or "?")


def _failure(metric: str) -> Callable[[Counts, Any], None]:
    return lambda counts, event: counts.failed(metric, event)


_COUNTED: dict[type[Event], Callable[[Counts, Any], None]] = {
    Published: Counts.published,
    Retried: _failure("messages_retried_total"),
    Buried: _failure("messages_buried_total"),
    DeadLettered: _failure("messages_dead_lettered_total"),
    Dropped: _failure("messages_dropped_total"),
    Claimed: lambda counts, event: counts.add(event.messages, "messages_claimed_total"),
    DeadDropped: lambda counts, event: counts.add(event.messages, "dead_messages_deleted_total"),
    CircuitOpened: lambda counts, event: counts.add(
        1, "circuits_opened_total", counts.destination(event.destination)
    ),
    LeaseAcquired: Counts.acquired,
    LeaseReleased: lambda counts, event: counts.add(1, "leases_lost_total", "released"),
    LeaseLost: lambda counts, event: counts.add(1, "leases_lost_total", "expired"),
    Quarantined: lambda counts, event: counts.add(
        event.messages,
        "messages_refused_total",
        counts.reason(event.reason).removeprefix("ingress:"),
    ),
}

"""What a worker tells whoever listens: one `emit(event)`, heard by the log, metrics and tracing.

Never per message: an event speaks of a batch. No bodies, no secrets, no addresses with passwords.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something worth a log line."""


Emit = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAcquired(Event):
    """The right to scan a bucket was taken; what dead sessions left was put back."""

    bucket: int
    reclaimed: int
    fired: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased(Event):
    """A bucket was given back, drained."""

    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """A bucket was lost: its lease ran out, or the store lost writes. Its wheel was thrown away."""

    bucket: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Event):
    """Messages due soon were moved to the mirror."""

    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked(Event):
    """Copies on the wheel were dropped: cancelled, rescheduled or replaced meanwhile."""

    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """A broker confirmed messages. late_ms: the latest of them, confirm minus due time."""

    destination: str
    messages: int
    late_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Event):
    """Publishes failed or ended unknown; they wait for their back-off."""

    destination: str
    messages: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried(Event):
    """Messages went to the dead set."""

    destination: str
    messages: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Event):
    """At-most-once messages were given up after a failed publish: never published twice."""

    destination: str
    messages: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpened(Event):
    """A destination takes nothing: its messages are parked, in order, at no attempt's cost."""

    destination: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitClosed(Event):
    """A destination takes messages again."""

    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSilent(Event):
    """Redis did not answer; the call is made again until it does."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStepped(Event):
    """The store's clock moved against this machine's monotonic clock. Negative: backwards."""

    step_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck(Event):
    """Nothing moves although messages are overdue: the scanner gives its leases up."""

    overdue_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannerFailed(Event):
    """The scanner met something unexpected; it gives its leases up and begins anew."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestStarted(Event):
    """A delay exchange, or a partition of a delay topic, is read from now on."""

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestFailed(Event):
    """A source cannot be read; it is tried again, unless the reason says what must be done."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested(Event):
    """Messages were taken from a source: stored, or published where they asked for no delay."""

    source: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Event):
    """Messages of a source could not be accepted: they lie in the dead set, as they came."""

    source: str
    messages: int
    reason: str

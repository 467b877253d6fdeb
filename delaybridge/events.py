"""What a worker tells whoever listens: one `emit(event)`, heard by the log, metrics and tracing.

Never per message: an event speaks of a batch. No bodies, no secrets, no addresses with passwords.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True):
    """Something worth a log line."""


Emit = Callable[[Event], None]


class LeaseAcquired(Event, frozen=True, kw_only=True):
    """The right to scan a bucket was taken; what dead sessions left was put back."""

    bucket: int
    reclaimed: int
    fired: int


class LeaseReleased(Event, frozen=True, kw_only=True):
    """A bucket was given back, drained."""

    bucket: int


class LeaseLost(Event, frozen=True, kw_only=True):
    """A bucket was lost: its lease ran out, or the store lost writes. Its wheel was thrown away."""

    bucket: int
    reason: str


class BucketDamaged(Event, frozen=True, kw_only=True):
    """The store refused a bucket's verbs: it waits to be mended by hand, the others go on."""

    bucket: int
    reason: str


class BucketMended(Event, frozen=True, kw_only=True):
    """Such a bucket is tried again."""

    bucket: int


class FleetDamaged(Event, frozen=True, kw_only=True):
    """A key of the namespace is damaged: it is unknown who else lives, and what is held is kept."""

    reason: str


class Claimed(Event, frozen=True, kw_only=True):
    """Messages due soon were moved to the mirror."""

    messages: int


class Revoked(Event, frozen=True, kw_only=True):
    """Copies on the wheel were dropped: cancelled, rescheduled or replaced meanwhile."""

    messages: int


class Published(Event, frozen=True, kw_only=True):
    """A broker confirmed messages. late_ms: the latest of them, confirm minus due time."""

    destination: str
    messages: int
    late_ms: int


class Retried(Event, frozen=True, kw_only=True):
    """Publishes failed or ended unknown; they wait for their back-off."""

    destination: str
    messages: int
    reason: str


class Buried(Event, frozen=True, kw_only=True):
    """Messages went to the dead set."""

    destination: str
    messages: int
    reason: str


class DeadLettered(Event, frozen=True, kw_only=True):
    """Messages given up go to their broker's dead-letter destination; if that fails, `Buried`."""

    destination: str
    messages: int
    reason: str


class DeadDropped(Event, frozen=True, kw_only=True):
    """The dead set was beyond its bounds: its oldest messages were dropped for good."""

    messages: int


class Dropped(Event, frozen=True, kw_only=True):
    """At-most-once messages were given up after a failed publish: never published twice."""

    destination: str
    messages: int
    reason: str


class CircuitOpened(Event, frozen=True, kw_only=True):
    """A destination takes nothing: its messages are parked, in order, at no attempt's cost."""

    destination: str
    reason: str


class CircuitClosed(Event, frozen=True, kw_only=True):
    """A destination takes messages again."""

    destination: str


class StoreSilent(Event, frozen=True, kw_only=True):
    """Redis did not answer; the call is made again until it does."""

    reason: str


class ClockStepped(Event, frozen=True, kw_only=True):
    """The store's clock moved against this machine's monotonic clock. Negative: backwards."""

    step_ms: int


class Stuck(Event, frozen=True, kw_only=True):
    """Nothing moves although messages are overdue: the scanner gives its leases up."""

    overdue_ms: int


class ScannerFailed(Event, frozen=True, kw_only=True):
    """The scanner met something unexpected; it gives its leases up and begins anew."""

    reason: str


class IngestStarted(Event, frozen=True, kw_only=True):
    """A delay exchange, or a partition of a delay topic, is read from now on."""

    source: str


class IngestFailed(Event, frozen=True, kw_only=True):
    """A source cannot be read; it is tried again, unless the reason says what must be done."""

    source: str
    reason: str


class SourceUnguarded(Event, frozen=True, kw_only=True):
    """A source is read, and something that would protect it cannot be done or is not so."""

    source: str
    reason: str


class Ingested(Event, frozen=True, kw_only=True):
    """Messages were taken from a source: stored, or published where they asked for no delay."""

    source: str
    messages: int


class ChangeRefused(Event, frozen=True, kw_only=True):
    """Cancels or reschedules from a source were of messages that are bound elsewhere: not done."""

    source: str
    messages: int


class IdMissing(Event, frozen=True, kw_only=True):
    """The first message of a source that comes without an id: delivered again it comes twice."""

    source: str
    hint: str = "give each message a message_id: after a crash those without may come twice"


class Quarantined(Event, frozen=True, kw_only=True):
    """Messages of a source could not be accepted: they lie in the dead set, as they came."""

    source: str
    messages: int
    reason: str

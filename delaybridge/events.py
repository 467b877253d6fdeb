"""What workers and ingest processes report through `emit(event)`.

`worker/eventlog.py` passes it to the log and to the counts.

An event is about a batch, and says how many messages. `copies` are the messages themselves, for who
names some of them: they must not be kept. It contains no secrets and no URLs with passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

# Upper bounds of a histogram. A lateness belongs to the first bound that is not below it; index
# len(LATENESS_BOUNDS_MS) means above all of them.
LATENESS_BOUNDS_MS = (
    1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000
)  # fmt: skip


class Event(Struct, frozen=True, kw_only=True):
    """Anything that may be logged, under the name of its class: `LeaseLost` is `lease_lost`."""


Emit = Callable[[Event], None]


class Named(Protocol):
    """A message, as far as an event tells who it is."""

    id: str


class Undelivered(Struct, frozen=True, kw_only=True):
    """What an event says of messages that were not delivered."""

    destination: str
    messages: int
    reason: str
    copies: Sequence[Named] = ()


class LeaseAcquired(Event, frozen=True, kw_only=True):
    """A worker took a bucket's lease, and put back the messages that dead sessions left.

    reclaimed: how many messages; fired: how many of them had been fired and may arrive twice.
    destinations: how many of each.
    """

    bucket: int
    reclaimed: int
    fired: int
    destinations: Mapping[str, int] = {}


class LeaseReleased(Event, frozen=True, kw_only=True):
    """A worker drained a bucket and released its lease."""

    bucket: int


class LeaseLost(Event, frozen=True, kw_only=True):
    """A bucket's lease expired, or Redis lost writes. The session's copies were dropped."""

    bucket: int
    reason: str


class BucketDamaged(Event, frozen=True, kw_only=True):
    """A key of a bucket is damaged. The bucket waits for a repair by hand; others continue."""

    bucket: int
    reason: str


class BucketMended(Event, frozen=True, kw_only=True):
    """A damaged bucket was repaired; it is scanned again."""

    bucket: int


class CounterMended(Event, frozen=True, kw_only=True):
    """With a ledger: a bucket's counter was lost, and begins above all numbers that it gave out."""

    bucket: int
    reason: str


class OrphansMended(Event, frozen=True, kw_only=True):
    """Keys of a bucket contradicted one another, and were mended before the first claim.

    due, dead, parked: messages that were in no set, by where they are now; the parked ones wait for
    an operator. bare: messages whose records are gone. other: other entries put right.
    """

    bucket: int
    due: int
    dead: int
    parked: int
    bare: int
    other: int


class FleetDamaged(Event, frozen=True, kw_only=True):
    """The list of workers is damaged. The worker keeps its buckets and takes any free one."""

    reason: str


class WorkerGone(Event, frozen=True, kw_only=True):
    """Redis has the connection of a worker no more: its leases were released before they ran out.

    name, host: of that worker. released: how many leases.
    """

    name: str
    host: str
    released: int


class TakenForDead(Event, frozen=True, kw_only=True):
    """A fellow released this worker's leases, since its connection was gone. It happens once."""


class Claimed(Event, frozen=True, kw_only=True):
    """Messages due soon were moved to the mirror. took_ms: the call to the store.

    destinations: how many of each.
    """

    messages: int
    took_ms: float = 0.0
    destinations: Mapping[str, int] = {}


class FireAllowed(Event, frozen=True, kw_only=True):
    """The store allowed messages to be published, and they are due.

    destinations: how many of each.
    """

    messages: int
    destinations: Mapping[str, int] = {}


class Revoked(Event, frozen=True, kw_only=True):
    """Copies were dropped: their messages were cancelled, rescheduled or replaced."""

    messages: int


class Published(Event, frozen=True, kw_only=True):
    """A broker confirmed messages. late_ms: the longest time between due time and confirm.

    lateness: all of these times, as `histogram.py: spread` counts them; late_sum_ms: their
    sum. confirm_ms: for each batch that is answered by now, how long that took.
    """

    destination: str
    messages: int
    late_ms: int
    late_sum_ms: int = 0
    lateness: Mapping[int, int] = {}
    confirm_ms: Sequence[int] = ()
    copies: Sequence[Named] = ()


class Settled(Event, frozen=True, kw_only=True):
    """The store has forgotten messages: they are delivered. destinations: how many of each.

    At-most-once messages are settled before they are published.
    """

    messages: int
    destinations: Mapping[str, int] = {}


class PublishFailed(Undelivered, Event, frozen=True, kw_only=True):
    """Publishes failed, or their outcome is unknown. The messages are parked or `Retried`."""


class Retried(Undelivered, Event, frozen=True, kw_only=True):
    """Publishes failed, or their outcome is unknown. The messages wait for their back-off."""


class Buried(Undelivered, Event, frozen=True, kw_only=True):
    """Messages moved to the dead set."""


class DeadLettered(Undelivered, Event, frozen=True, kw_only=True):
    """Dead messages are published to the dead-letter destination; if that fails, `Buried`."""


class DeadDropped(Event, frozen=True, kw_only=True):
    """The dead set exceeded a bound: its oldest messages were deleted."""

    messages: int


class Dropped(Undelivered, Event, frozen=True, kw_only=True):
    """At-most-once messages were deleted after a failed publish: they are never repeated."""


class CircuitOpened(Event, frozen=True, kw_only=True):
    """A destination refuses everything. Its messages are parked; that counts as no attempt."""

    destination: str
    reason: str


class CircuitClosed(Event, frozen=True, kw_only=True):
    """A destination accepts messages again."""

    destination: str


class StoreSilent(Event, frozen=True, kw_only=True):
    """Redis did not answer. The call is repeated until it does."""

    reason: str


class StoreWentBack(Event, frozen=True, kw_only=True):
    """Redis has an older past than before: a restored snapshot, or a replica that was behind.

    missing: how many scheduled messages are not counted any more, at least: what was accepted in
    the last second before was never counted.
    """

    buckets: list[int]
    missing: int
    reason: str


class ClockStepped(Event, frozen=True, kw_only=True):
    """Redis' clock was set. step_ms: by how much, against this host's monotonic clock."""

    step_ms: int


class ClockDiffers(Event, frozen=True, kw_only=True):
    """This host's clock and Redis' differ by more than two seconds.

    ahead_ms: by how much this one is ahead, at least; below 0: behind.
    """

    ahead_ms: int


class Stuck(Event, frozen=True, kw_only=True):
    """Messages are overdue and nothing moves. The scanner releases its leases."""

    overdue_ms: int


class ScannerFailed(Event, frozen=True, kw_only=True):
    """An unexpected error ended the scanner. Its leases are released, and a new one starts."""

    reason: str


class IngestStarted(Event, frozen=True, kw_only=True):
    """Ingest reads a delay exchange, or a delay topic, from now on."""

    source: str


class IngestFailed(Event, frozen=True, kw_only=True):
    """A source cannot be read. Ingest tries again, unless the reason names a remedy."""

    source: str
    reason: str


class SourceUnguarded(Event, frozen=True, kw_only=True):
    """A source is read, but one of its protections is missing."""

    source: str
    reason: str


class Ingested(Event, frozen=True, kw_only=True):
    """Messages from a source were stored, or published at once if they have no delay."""

    source: str
    messages: int


class IngestStored(Event, frozen=True, kw_only=True):
    """What came of messages from a source. destination: that of the source.

    messages: those scheduled, now or by an earlier delivery; cancelled, rescheduled: pending ones.
    delays: how long the scheduled ones are to wait, as `histogram.py: spread` counts it;
    delay_sum_ms: the sum.
    """

    source: str
    destination: str
    messages: int = 0
    cancelled: int = 0
    rescheduled: int = 0
    delays: Mapping[int, int] = {}
    delay_sum_ms: int = 0


class ChangeRefused(Event, frozen=True, kw_only=True):
    """Cancels or reschedules were refused: their messages go to other destinations."""

    source: str
    messages: int


class IdMissing(Event, frozen=True, kw_only=True):
    """The first message of a source without an id; such a message may be delivered twice."""

    source: str
    hint: str = "give each message a message_id: after a crash those without may come twice"


class Quarantined(Event, frozen=True, kw_only=True):
    """Ingest refused messages. They are in the dead set, unchanged."""

    source: str
    messages: int
    reason: str


class RunsMade(Event, frozen=True, kw_only=True):
    """Runs of a recurring definition were scheduled, or were missed.

    messages: how many runs. due_ms: of the last of them; 0 if there is none. missed: how many
    became due before that; the definition's policy decided which of them were made.
    """

    name: str
    destination: str
    messages: int
    missed: int
    due_ms: int


class RecurringFailed(Event, frozen=True, kw_only=True):
    """A recurring definition cannot be made. It is tried again; others are not affected."""

    reason: str
    name: str = ""


class FrontTrouble(Event, frozen=True, kw_only=True):
    """A front sent clients away, closed their channels, or did not reach a node of the broker.

    source: `clients`, the exchange that a method is about, or the node. reason: also the remedy.
    """

    source: str
    reason: str

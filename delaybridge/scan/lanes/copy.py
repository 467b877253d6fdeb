"""A claimed message in a worker's hands, and the letter that a given-up one becomes.

A dead letter is published to another destination of the same broker. Its message stays in flight
until the letter is confirmed, and is then settled. If it cannot be published, the message is buried
with both reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from msgspec.structs import replace

from delaybridge.amqp.decoding import entries
from delaybridge.amqp.encoding import encode_table
from delaybridge.message import PULL, Delivery, Destination, Record, id_as_given
from delaybridge.scan.lanes.lane import Lane
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import Tried

HEADERS = ("x-dead-reason", "x-dead-destination", "x-dead-attempts")
_NAMES = frozenset(name.encode() for name in HEADERS)


class Lot:
    """What one claim of a session returned. Its copies share this object, to be grouped by it."""

    __slots__ = ("claim", "session")

    def __init__(self, session: Session, claim: int) -> None:
        self.session, self.claim = session, claim


class Copy(Delivery):
    """One claimed message, named by (id, claim number) as in the store.

    is_plain: only its session or its lane can keep it from being published. It was never tried, has
    no ttl, may be delivered twice, and its headers are encoded for its broker's kind.
    late_from_ms: lateness counts from here: the due time (of a message that is spread, the time at
    which it leaves) or the time it was accepted, whichever is later. refusals: the lane's counter
    when the copy was admitted. stamp: of the call that scheduled it.
    """

    __slots__ = (
        "claim",
        "is_plain",
        "lane",
        "late_from_ms",
        "lot",
        "refusals",
        "score",
        "session",
        "stamp",
        "tried",
    )
    refusals: int
    stamp: bytes

    def __init__(
        self,
        lot: Lot,
        id: str,
        score: float,
        tried: Tried,
        record: Record,
        destination: Destination,
        lane: Lane,
    ) -> None:
        # This runs for each message: it does what `Delivery.__init__` does, without a second call.
        failures, _, first_due_ms = tried
        self.id, self.record, self.destination, self.size = id, record, destination, record.size
        if first_due_ms is None:
            self.due_ms = self.late_from_ms = int(score)
        else:
            self.due_ms = first_due_ms
            # What a consumer had and did not finish is due again when its time is over.
            counts = failures and destination.kind != PULL
            self.late_from_ms = first_due_ms if counts else int(score)
        tenant = record.tenant
        self.given_id = id_as_given(id, tenant) if tenant else id
        self.attempt = failures + 1
        self.lot, self.session, self.claim = lot, lot.session, lot.claim
        self.score, self.tried, self.lane = score, tried, lane
        self.is_plain = type(record.headers) is lane.headers_type and not (
            failures or record.ttl_ms is not None or record.at_most_once
        )

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time to live, counted from the due time, is over."""
        ttl_ms = self.record.ttl_ms
        return ttl_ms is not None and now_ms > self.due_ms + ttl_ms

    def leaves_at(self, spread_ms: int) -> float:
        """The score at which it leaves, if messages due at one instant are spread over this time.

        Messages of one key keep their order: they are all moved by the same time.
        """
        key = self.id.encode() if self.record.key is None else self.record.key
        return self.due_ms + (crc32(key) * spread_ms >> 32) + self.score % 1

    @property
    def item(self) -> Item:
        """Its name in a script call."""
        return Item(self.id, self.claim, self.score, self.stamp)


def by_lane(copies: Iterable[Copy]) -> Iterable[tuple[Lane, list[Copy]]]:
    """Lane -> its copies, in their order."""
    lanes: dict[Lane, list[Copy]] = {}
    for copy in copies:
        lanes.setdefault(copy.lane, []).append(copy)
    return lanes.items()


class DeadLetter(Copy):
    """A copy whose attempts are used up, to be published to the dead-letter destination.

    reason: why it was given up. maybe: its last publish may have been delivered.
    """

    __slots__ = ("maybe", "reason")

    def __init__(
        self, copy: Copy, to: str, destination: Destination, lane: Lane, reason: str, *, maybe: bool
    ) -> None:
        record = _addressed(copy.record, to, reason, copy.attempt)
        lot, id, score, tried = copy.lot, copy.id, copy.score, copy.tried
        super().__init__(lot, id, score, tried, record, destination, lane)
        self.stamp, self.reason, self.maybe = copy.stamp, reason, maybe


def _addressed(record: Record, to: str, reason: str, attempts: int) -> Record:
    """The record as it is published there. Its headers replace those of an earlier letter."""
    text = reason.encode(errors="replace").decode()
    values = dict(zip(HEADERS, (text, record.destination, str(attempts)), strict=True))
    headers = record.headers
    if isinstance(headers, bytes):
        kept = [headers[at:end] for name, at, _, end in entries(headers) if name not in _NAMES]
        table = b"".join([*kept, encode_table(values.items())])
        return replace(record, destination=to, headers=table)
    kept_pairs = [(name, value) for name, value in headers if name not in values]
    added = [(name, value.encode()) for name, value in values.items()]
    return replace(record, destination=to, headers=(*kept_pairs, *added), partition=None)

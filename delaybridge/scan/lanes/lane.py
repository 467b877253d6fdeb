"""A lane: the way out to one exchange, topic, stream or queue; its copies; and its share of all.

The window bounds how many messages may be in flight to all brokers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from delaybridge.amqp.decoding import entries
from delaybridge.amqp.encoding import encode_table
from delaybridge.message import PULL, Delivery, Destination, Record
from delaybridge.publish import Publisher
from delaybridge.scan.lanes.flow import Circuit, Flow
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.protocol.record import LACKING, SLOW, Tried, other_kind

ERROR_CHARS = 200  # of an error that is kept with a message, or announced
HEADERS = ("x-dead-reason", "x-dead-destination", "x-dead-attempts")
_NAMES = frozenset(name.encode() for name in HEADERS)
PATIENCE_MS = 50  # a full lane that would hold up others for longer has its ripe copies parked
_LONG_PATIENCE_MS = 10_000  # if no other lane waits; a message for one may still be unclaimed
_lane_of = attrgetter("lane")


class Broker(NamedTuple):
    """A configured broker. publisher: how messages get there."""

    kind: str
    publisher: Publisher


class LaneRules(NamedTuple):
    """What settings, and rules from Redis, say about the messages of one lane.

    paused: the place that is paused, empty if none is. rates: each place with a rate, and it.
    dead_letter: where messages go that are given up; None: to the dead set.
    """

    policy: RetryPolicy
    paused: str = ""
    spread_ms: int = 0
    rates: tuple[tuple[str, float], ...] = ()
    dead_letter: str | None = None


class Refusing(NamedTuple):
    """Every publish has failed since `since_ms`; the last one at `last_ms`, for this reason."""

    since_ms: int
    last_ms: int
    reason: str


class Lane:
    """One destination's way out.

    load: messages admitted that have no outcome; flow: those of them that the broker has.
    refusals: how often fired copies were refused and parked; copies fired before that are parked
    behind them.
    is_slow: messages were parked only because the lane was full, or lacked permits. is_left: its
    broker was replaced, or some of its destinations got lanes of their own; its parked messages go
    back to `due` and are routed again. behind: the lanes that were left for this one; their fired
    messages go out first. family: the label of its exchange or topic. limit: its permits, None if
    it has no rate. refusing: None if the last publish was confirmed, or none was made yet.
    """

    def __init__(
        self, label: str, broker: Broker | None, flow: Flow, rules: LaneRules, family: str = ""
    ) -> None:
        """broker: None if this worker has no such broker; `lacks` then names it."""
        self.label, self.flow = label, flow
        self.family = family or label
        self.behind: list[Lane] = []
        self.publisher = None if broker is None else broker.publisher
        self.lacks: str | None = None
        self.kind = "" if broker is None else broker.kind
        # The type of the headers tells most records of another kind apart; kombu's may be either.
        self.headers_type = {"rabbitmq": bytes, "kombu": None}.get(self.kind, tuple)
        self.circuit = Circuit(random.random)
        self.probes = 0  # messages that may still pass while the circuit is probed
        self.load = self.load_bytes = self.refusals = 0
        self.parked: dict[Session, Parked] = {}
        self.is_slow = self.is_left = False
        self.limit: Limit | None = None
        self.refusing: Refusing | None = None
        self.follow(rules)

    def follow(self, rules: LaneRules) -> None:
        """These rules hold from now on. Permits granted at other rates are dropped."""
        self.rules = rules
        if rules.rates != (() if self.limit is None else self.limit.places):
            self.limit = Limit(rules.rates) if rules.rates else None

    def failed(self, now_ms: int, reason: str) -> None:
        """A publish failed, and not because its broker is away."""
        since_ms = now_ms if self.refusing is None else self.refusing.since_ms
        self.refusing = Refusing(since_ms, now_ms, reason)

    @property
    def name(self) -> str:
        """The name of its broker, as configured."""
        return self.label.partition(":")[0]

    @property
    def is_shut(self) -> bool:
        """Whether its messages must be parked; a circuit being probed lets a handful pass."""
        return self.is_cut_off or (self.circuit.is_open and self.probes == 0)

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing may pass: its broker cannot be reached, or it is paused."""
        publisher = self.publisher
        if publisher is None or publisher.unavailable is not None or self.rules.paused:
            return True
        return self.is_left or (bool(self.behind) and any(lane.load for lane in self.behind))

    @property
    def trouble(self) -> str:
        """Why its messages are parked, if not because its broker is unavailable."""
        if self.lacks is None:
            return self.circuit.reason or (SLOW if self.limit is None else str(self.limit))
        if self.label == other_kind(self.lacks):
            return f"other_kind: {self.lacks} was another kind of broker when it was scheduled"
        return f"{LACKING}: this worker has no broker named {self.lacks!r}"

    @property
    def hold(self) -> str | None:
        """Why its messages wait though nothing is wrong: `paused`, `rate`; None: something is."""
        if self.rules.paused:
            return "paused"
        is_limited = self.limit is not None and self.limit.error is None
        return "rate" if is_limited and not self.is_shut else None

    @property
    def lacks_permit(self) -> bool:
        """Whether it has a rate, and no permit is left."""
        return self.limit is not None and self.limit.permits <= 0

    def is_clear(self, now_ms: int) -> bool:
        """Whether its messages need only room in the window."""
        obstructed = self.is_shut or self.parked or self.circuit.is_open or self.limit is not None
        return not obstructed and not self.flow.is_stalled(now_ms)

    @property
    def returnable(self) -> dict[Session, Parked]:
        """Parked messages that may come back, if the lane can take them.

        Not before a new session knows all of its bucket; those of a draining bucket are inherited.
        """
        return {s: parked for s, parked in self.parked.items() if s.ready and not s.draining}

    def holds_back(self, now_ms: int) -> bool:
        """Whether messages that an earlier session of their bucket parked must wait on."""
        is_slow = self.is_slow or self.limit is not None or self.flow.is_stalled(now_ms)
        return is_slow or self.is_shut

    @property
    def knows_parked(self) -> bool:
        """Whether the id of each parked message is known."""
        return all(parked.is_whole for parked in self.parked.values())

    def is_behind(self, session: Session, score: float) -> bool:
        """Whether an earlier message of that bucket is parked."""
        parked = self.parked.get(session) if self.parked else None
        return parked is not None and parked.is_before(score)


class Lot(Struct, eq=False):
    """What one claim of a session returned. Its copies share this object, to be grouped by it."""

    session: Session
    claim: int


class Copy(Delivery):
    """One claimed message, named by (id, claim number) as in the store.

    is_plain: only its session or its lane can keep it from being published. It was never tried, has
    no ttl, may be delivered twice, and its headers are encoded for its broker's kind.
    late_from_ms: lateness counts from here: the due time (of a message that is spread, the time at
    which it leaves) or the time it was accepted, whichever is later. refusals: the lane's counter
    when the copy was admitted. stamp: of the call that scheduled it.
    """

    __slots__ = (
        "claim", "is_plain", "lane", "late_from_ms", "lot", "refusals", "score", "session", "stamp",
        "tried",
    )  # fmt: skip
    refusals: int
    stamp: bytes

    def __init__(
        self, lot: Lot, id: str, score: float, tried: Tried, record: Record,
        destination: Destination, lane: Lane,
    ) -> None:  # fmt: skip
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
        self.given_id = record.given_id(id, self.due_ms)
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


class Window:
    """Counts messages admitted to the lanes. unconfirmed: those that brokers have."""

    def __init__(self, messages: int, bytes: int) -> None:
        self.messages, self.bytes = messages, bytes
        self.load = self.load_bytes = self.unconfirmed = 0
        self.ripe: Counter[Lane] = Counter()  # number of copies that wait for room to be fired

    def admit(self, lane: Lane, size: int, *, may_wait: bool) -> bool:
        """Count one more message in a lane; False if it must wait for room there."""
        if may_wait and self.is_full(lane):
            return False
        lane.load += 1
        lane.load_bytes += size
        self.load += 1
        self.load_bytes += size
        return True

    def free(self, lane: Lane, copies: Sequence[Copy]) -> None:
        """Free the room of admitted copies: they have an outcome, or will not be published."""
        count, size = len(copies), sum([copy.size for copy in copies])
        lane.load -= count
        lane.load_bytes -= size
        self.load -= count
        self.load_bytes -= size

    def is_full(self, lane: Lane) -> bool:
        """Whether the lane may hold no more for now.

        A lane may hold as much as is free (dynamic thresholds, Choudhury & Hahne 1998): alone it
        gets half of the window, and no number of stuck lanes can take all of it.
        """
        load = lane.load  # this runs for each message
        return (
            load >= lane.flow.limit
            or load >= self.messages - self.load
            or (load > 0 and lane.load_bytes >= self.bytes - self.load_bytes)
        )

    def room(self, lane: Lane) -> int:
        """Messages that the lane may take at once: as many as it confirms soon, and its share.

        Each message taken makes the free part smaller too, hence half. Bytes count as messages of
        the average size of those in the lane.
        """
        free = self.messages - self.load - lane.load
        if lane.load_bytes > 0:
            free_bytes = self.bytes - self.load_bytes - lane.load_bytes
            free = min(free, free_bytes * lane.load // lane.load_bytes)
        return min(lane.flow.limit - lane.load, (free + 1) // 2)

    def has_room(self, lane: Lane) -> bool:
        """Whether a lane may take an eighth of what it holds, or others must not wait for that."""
        room = self.room(lane)
        return len(self.ripe) > 1 or (room > 0 and 8 * room >= lane.load)

    def is_in_the_way(self, lane: Lane, now_ms: int) -> bool:
        """Whether the full lane's ripe copies would hold up those behind them for too long."""
        if lane.flow.is_stalled(now_ms):
            return True
        others = any(other is not lane and not self.is_full(other) for other in self.ripe)
        patience_ms = PATIENCE_MS if others else _LONG_PATIENCE_MS
        return lane.flow.clear_ms(self.ripe[lane], now_ms, patient=not others) > patience_ms

    def ripened(self, copies: Sequence[Copy]) -> None:
        """These copies wait to be fired."""
        self.ripe.update(map(_lane_of, copies))

    def unripened(self, copies: Sequence[Copy]) -> None:
        """These copies wait to be fired no more."""
        for lane, count in Counter(map(_lane_of, copies)).items():
            self.ripe[lane] -= count
            if self.ripe[lane] <= 0:
                del self.ripe[lane]

"""A lane: the way out to one exchange, topic, stream or queue, apart from all others."""

from __future__ import annotations

import random
from typing import NamedTuple

from delaybridge.publish import Publisher
from delaybridge.scan.lanes.flow import Flow
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.retry import Circuit, RetryPolicy
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol.record import LACKING, SLOW, other_kind

ERROR_CHARS = 200  # of an error that is kept with a message, or announced


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

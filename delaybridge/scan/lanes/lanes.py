"""Lanes: the obstacles in a copy's way, and how it is handed to its broker."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf
from typing import cast

from delaybridge import failpoints
from delaybridge.events import Emit, FireAllowed
from delaybridge.message import Delivery
from delaybridge.publish import Outcome, Verdict
from delaybridge.scan.lanes.dead_letters import Letter
from delaybridge.scan.lanes.flow import STALLED_MS
from delaybridge.scan.lanes.lane import Broker, Lane
from delaybridge.scan.lanes.lane_rules import Steering
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.outcomes import ERROR_CHARS, Outcomes, by_lane
from delaybridge.scan.lanes.parking import NextPage, Parking
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.lanes.spans import PublishSpans
from delaybridge.scan.lanes.window import PATIENCE_MS, Window
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.leases.session import Session
from delaybridge.store.messages.destinations_of_state import BoundSlice
from delaybridge.store.namespace.rules import Rules
from delaybridge.store.protocol.troubles import other_kind

_LEAST_REFUSED_MS = 1000  # a lane fails for longer: one message may fail among many
_REFUSED_MS = 600_000  # then it is not known any more whether it would


class Way(Enum):
    """The next step of a ripe copy."""

    GO = "go"  # it is admitted to its lane: fire it
    WAIT = "wait"  # its lane is full: it and all later copies stay ripe
    LEAVE = "leave"  # it took another exit: revoked, expired, used up, unroutable, parked


GO, WAIT, LEAVE = Way


class Lanes:
    """All lanes of a worker, and the window that they share.

    routing: finds them. parking: what stands aside.
    """

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        retry: RetryPolicy,
        emit: Emit,
        *,
        window_messages: int,
        window_bytes: int,
        dead_letters: Mapping[str, str] = {},
        spans: PublishSpans | None = None,
    ) -> None:
        """window_messages, window_bytes: bounds of the messages in flight on all lanes together.

        dead_letters: broker -> destination of messages that are given up. spans: None if the
        worker does not trace.
        """
        self._brokers, self._spans, self._emit = brokers, spans, emit
        self._window = Window(window_messages, window_bytes)
        self._steering = Steering(retry, dead_letters)
        self.routing = Routing(brokers, window_messages, emit, self._steering)
        self.route = self.routing.route
        self.parking = Parking(self._window)
        self._outcomes = Outcomes(self.parking, emit, route=self.route, send=self._send_letter)
        self.is_spread = False  # some messages leave later than they are due
        self._clear: set[tuple[Session, Lane]] = set()  # found without obstacle in this batch
        self._waiting: dict[Lane, None] = {}  # lanes with ready copies, in order
        self._recalled: Counter[str] = Counter()  # copies taken back, by their lanes' labels
        self._has_rates = False
        self.ripened, self.unripened = self._window.ripened, self._window.unripened
        self.recover, self.session_over = self.parking.recover, self.parking.session_over

    def brokers_changed(self, names: Collection[str]) -> list[Lane]:
        """These brokers were added, replaced or removed; returns their old lanes.

        The old lanes finish the copies that are fired. All others are routed again, in order.
        """
        left = self.routing.brokers_changed(names)
        self.parking.routes_changed({*names})
        return left

    def rules_changed(self, rules: Rules) -> None:
        """The rules of destinations are these now. Fired messages go out as they were.

        Where destinations get lanes of their own, or lose them, the others are routed again.
        """
        self._steering.rules = rules
        self.is_spread = any(rule.spread_ms for rule in rules.by_place.values())
        self._has_rates = any(rule.rate is not None for rule in rules.by_place.values())
        self.parking.routes_changed(self.routing.rules_changed())

    # what a ripe copy may do

    def begin_batch(self) -> None:
        """A batch of `admit` calls begins: sessions and lanes are checked again."""
        self._clear.clear()

    def admit(self, copy: Copy, now_ms: int, *, may_wait: bool) -> Way:
        """Decide what a ripe copy may do; admit it to its lane, or give it another exit.

        may_wait False: a fire covers the copy anyway, so it goes though its lane is full.
        """
        lane = copy.lane
        is_clear = copy.is_plain and (
            (copy.session, lane) in self._clear or self._look(copy.session, lane, now_ms)
        )  # checked once per batch, not per message
        if not (is_clear and self._window.admit(lane, copy.size, may_wait=may_wait)):
            self._clear.clear()  # this copy's exit may stand in the way of the next one
            way = self._obstacle(copy, now_ms, may_wait=may_wait)
            if way is not GO:
                return way
            self._window.admit(lane, copy.size, may_wait=False)
            if lane.limit is not None:
                lane.limit.take(now_ms)
        if lane.probes:
            lane.probes -= 1
        copy.refusals = lane.refusals
        return GO

    def _look(self, session: Session, lane: Lane, now_ms: int) -> bool:
        """Whether a plain copy of theirs needs only room in the window."""
        is_clear = session.is_clear and lane.is_clear(now_ms)
        if is_clear:
            self._clear.add((session, lane))
        return is_clear

    def _obstacle(self, copy: Copy, now_ms: int, *, may_wait: bool) -> Way:
        """Find the copy's first obstacle, and give it its exit. The one place that decides this."""
        session, lane, record = copy.session, copy.lane, copy.record
        is_full = self._window.is_full(lane)
        if not session.alive:
            pass  # the bucket's next owner reclaims the message
        elif session.is_revoked(copy.id, copy.claim):
            session.ended(1)
        elif copy.is_expired(now_ms):
            reason = f"expired: {now_ms - copy.due_ms} ms late, its ttl is {record.ttl_ms} ms"
            self._outcomes.bury(copy, reason, counted=False)
        elif self._outcomes.is_used_up(copy):
            reason = self._outcomes.used_up(copy)
            self._outcomes.bury(copy, reason, counted=False)
        elif lane.publisher is None and lane.lacks is None:
            self._exit_misaddressed(copy, now_ms)
        elif lane.is_shut or lane.is_behind(copy):
            self.parking.park(copy)
        elif self._must_park(lane, is_full, now_ms, may_wait=may_wait):
            lane.is_slow = True
            self.parking.park(copy)
        elif not record.suits(lane.kind):
            self._park_misfit(copy, copy.destination.broker, now_ms)
        else:
            return WAIT if may_wait and (is_full or lane.lacks_permit) else GO
        return LEAVE

    def _must_park(self, lane: Lane, is_full: bool, now_ms: int, *, may_wait: bool) -> bool:
        """Whether the lane's copies would hold up others for too long, or exceed its rate."""
        limit = lane.limit
        if limit is not None and limit.permits <= 0 and (limit.is_short or not may_wait):
            return True
        return is_full and self._window.is_in_the_way(lane, now_ms)

    def _exit_misaddressed(self, copy: Copy, now_ms: int) -> None:
        """Its broker cannot parse the destination: it is of another kind, or damaged."""
        name = copy.record.destination.partition(":")[0]
        if name in self.routing.kinds and not copy.record.suits(self.routing.kinds[name]):
            self._park_misfit(copy, name, now_ms)
        else:
            reason = f"bad_destination: {self.routing.fault(copy.record.destination)}"
            self._outcomes.attempt_failed(copy, reason, now_ms)

    def _park_misfit(self, copy: Copy, name: str, now_ms: int) -> None:
        """Park it until the broker is again of the kind for which it was scheduled."""
        self.unripened([copy])
        copy.lane = self.routing.lane_lacking(name, other_kind(name), now_ms)
        self.ripened([copy])
        self.parking.park(copy)

    # how it is handed to its broker

    def ready(self, copies: Sequence[Copy]) -> None:
        """The copies are fired and due: publish them when there is room."""
        fired: dict[str, int] = {}
        for lane, ours in by_lane(copies):
            self._waiting[lane] = None
            lane.ready += ours
            fired[lane.label] = fired.get(lane.label, 0) + len(ours)
        if self._recalled:  # they were counted before
            again = Counter(fired)
            fired, self._recalled = again - self._recalled, self._recalled - again
        if fired:
            self._emit(FireAllowed(messages=sum(fired.values()), destinations=fired))

    def publish(self, now_ms: int) -> None:
        """Hand ready copies to the brokers, within the window."""
        for lane in list(self._waiting):
            room = self._window.messages - self._window.unconfirmed
            if room <= 0:
                return
            room = min(room, max(0, lane.flow.limit - lane.flow.in_flight))
            batch = [lane.ready.popleft() for _ in range(min(room, len(lane.ready)))]
            if not lane.ready:
                del self._waiting[lane]
            self._hand_over(lane, batch, now_ms)

    def _hand_over(self, lane: Lane, batch: list[Copy], now_ms: int) -> None:
        ours = [copy for copy in batch if copy.session.alive]
        if len(ours) < len(batch):
            self._unused(lane, [copy for copy in batch if not copy.session.alive])
        if lane.refusals and any(copy.refusals < lane.refusals for copy in ours):
            ours = self._not_behind_refused(lane, ours)
        if not ours or lane.publisher is None:
            return
        lane.flow.handed_over(len(ours), now_ms, lane.load)
        self._window.unconfirmed += len(ours)
        if self._spans is None:
            lane.publisher.publish(ours)
        else:
            self._spans.publish(lane, ours)
        if failpoints.ARE_SET:
            failpoints.reach("publish.after_write")

    def _not_behind_refused(self, lane: Lane, copies: Sequence[Copy]) -> list[Copy]:
        """Park copies fired before the broker refused earlier ones, which they would overtake."""
        ours = []
        for copy in copies:
            must_go = copy.record.at_most_once or isinstance(copy, Letter)
            if copy.refusals == lane.refusals or must_go:
                ours.append(copy)
            else:
                self._unused(lane, [copy])
                self.parking.park(copy)
        return ours

    def outcome(self, deliveries: Sequence[Delivery], outcome: Outcome, now_ms: int) -> None:
        """How publishes ended: each copy gets its exit."""
        if self._spans is not None:
            self._spans.outcome(deliveries, outcome, now_ms)
        for lane, copies in by_lane(cast(Sequence[Copy], deliveries)):
            self._window.free(lane, copies)
            self._window.unconfirmed -= len(copies)
            took_ms = lane.flow.answered(len(copies), now_ms)
            if outcome.verdict is Verdict.CONFIRMED:
                self._outcomes.confirmed(lane, copies, now_ms, took_ms)
            else:
                self._outcomes.failed(lane, copies, outcome, now_ms)

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """These admitted copies will not be published: free their room."""
        for lane, ours in by_lane(copies):
            self._unused(lane, ours)

    def _unused(self, lane: Lane, copies: Sequence[Copy]) -> None:
        """Free the room and the permits of admitted copies that will not be published."""
        self._window.free(lane, copies)
        if lane.limit is not None:
            lane.limit.permits += len(copies)

    def recall(self) -> list[Copy]:
        """Take back the ready copies: the clock was set back, so they may not be due any more.

        Dead letters stay: their messages were due, and published, before.
        """
        taken = []
        for lane in list(self._waiting):
            ours = [copy for copy in lane.ready if not isinstance(copy, Letter)]
            taken += ours
            self._recalled[lane.label] += len(ours)
            lane.ready = deque(copy for copy in lane.ready if isinstance(copy, Letter))
            if not lane.ready:
                del self._waiting[lane]
        return taken

    def _send_letter(self, letter: Letter) -> None:
        lane = letter.lane
        self._window.admit(lane, letter.size, may_wait=False)
        if lane.limit is not None:
            lane.limit.permits -= 1  # it cannot wait, so the next messages do
        if lane.probes:
            lane.probes -= 1
        letter.refusals = lane.refusals
        self._waiting[lane] = None
        lane.ready.append(letter)

    # rates

    def without_surplus(self, copies: list[Copy], now_ms: int) -> list[Copy]:
        """Park those copies of a claim whose destinations are to get fewer by then."""
        return self.parking.without_surplus(copies, now_ms) if self._has_rates else copies

    def limited(self, now_ms: int) -> Iterator[tuple[Lane, Limit, int]]:
        """Lanes with a rate, and how many of their messages wait for a permit."""
        if not self._has_rates:
            return
        for lane in {**self._window.ripe, **self.parking.troubled}:
            if lane.limit is not None:
                waiting = self._window.ripe[lane] + self.parking.can_return(lane, now_ms)
                yield lane, lane.limit, waiting

    def is_waiting(self, lane: Lane) -> bool:
        """Whether messages of the lane are ripe, parked or on their way back."""
        return lane in self._window.ripe or bool(lane.parked)

    # parked messages of earlier sessions

    def inherit(
        self, session: Session, left: Iterable[tuple[float, bytes, str]], now_ms: int
    ) -> list[bytes]:
        """See `Parking.inherit`."""
        return self.parking.inherit(session, left, self.route, now_ms)

    def add_page(self, page: NextPage, found: BoundSlice, now_ms: int) -> None:
        """See `Parking.add_page`."""
        self.parking.add_page(page, found, self.route, now_ms)

    # reports

    @property
    def is_calm(self) -> bool:
        """Whether nothing is parked, or ready and has room, so that an outcome allows no step."""
        has_room = any(lane.flow.has_room for lane in self._waiting)
        return self.parking.is_calm and not has_room

    def has_room(self, lane: Lane) -> bool:
        """Whether a lane may take an eighth of what it holds, or others must not wait for that."""
        room = self._window.room(lane)
        return len(self._window.ripe) > 1 or (room > 0 and 8 * room >= lane.load)

    @property
    def is_returning(self) -> bool:
        """Whether parked messages are going back to `due`, or can go at once."""
        return self.parking.is_returning

    def waits_for_room(self, copy: Copy, since_ms: int) -> bool:
        """Whether its lane is full, and its broker answered since then."""
        return self._window.is_full(copy.lane) and copy.lane.flow.moved_ms > since_ms

    def parked(self) -> Iterator[tuple[str, str]]:
        """Lanes with parked messages though their broker takes others, and why."""
        for lane in self.parking.troubled:
            is_up = lane.publisher is None or lane.publisher.unavailable is None
            if lane.parked and is_up and not lane.terms.paused:
                yield lane.label, lane.trouble[:ERROR_CHARS]

    def refused(self, now_ms: int) -> Iterator[tuple[str, str]]:
        """Lanes that have confirmed nothing of late, and refused something; and why."""
        for lane in self.routing.lanes.values():
            each = lane.refusing
            if each is None or lane.terms.paused or now_ms - each.last_ms > _REFUSED_MS:
                continue
            if now_ms - each.since_ms >= _LEAST_REFUSED_MS:
                yield lane.label, each.reason

    def held(self) -> tuple[dict[tuple[str, str], int], float | None]:
        """See `Parking.held`."""
        return self.parking.held()

    def unconfirmed(self) -> Counter[str]:
        """By broker, how many messages it has not answered."""
        counts: Counter[str] = Counter()
        for lane in self.routing.lanes.values():
            counts[lane.name] += lane.flow.in_flight
        return counts

    def next_looks_ms(self, now_ms: int, *, waiting: bool) -> Iterable[float]:
        """When a lane may go on though nothing else happens. waiting: ripe copies wait for room."""
        troubled = self.parking.troubled
        looks: list[float | None] = [lane.circuit.probe_at_ms for lane in troubled]
        if self._has_rates and (next_ms := self.parking.next_due_ms(now_ms)) < inf:
            looks.append(next_ms)
        flows = [lane.flow for lane in {**troubled, **self._window.ripe} if lane.flow.in_flight]
        looks += [flow.moved_ms + STALLED_MS + 1 for flow in flows]
        if waiting:
            looks.append(now_ms + PATIENCE_MS)
        return [at_ms for at_ms in looks if at_ms is not None and at_ms > now_ms]

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: shift the times measured by it."""
        for lane in self.routing.lanes.values():
            lane.flow.clock_stepped(step_ms)
            lane.circuit.clock_stepped(step_ms)
            if lane.limit is not None:
                lane.limit.clock_stepped(step_ms)

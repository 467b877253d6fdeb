"""Dispatch and outcomes: due copies go to their brokers, and get an exit when that ended."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from delaybridge import events, failpoints
from delaybridge.errors import DecodeError
from delaybridge.histogram import spread
from delaybridge.message import PULL, Delivery
from delaybridge.publish import Fault, Outcome, Verdict
from delaybridge.scan.lanes.flow import CircuitState
from delaybridge.scan.lanes.lane import ERROR_CHARS, Copy, DeadLetter, Lane, Lot, Window
from delaybridge.scan.lanes.parking import Parking
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.lanes.spans import PublishSpans

_REASON_CHARS = 500  # of the reason kept with a dead message


class Dispatch:
    """Hands the ready copies of each lane to its publisher when there is room."""

    def __init__(
        self, window: Window, parking: Parking, emit: events.Emit, spans: PublishSpans | None
    ) -> None:
        """spans: None if the worker does not trace."""
        self._window, self._parking, self._emit, self._spans = window, parking, emit, spans
        self._ready: dict[Lane, deque[Copy]] = {}  # fired and due; no lane is empty
        self._recalled: Counter[str] = Counter()  # copies taken back, by their lanes' labels

    def ready(self, copies: Sequence[Copy]) -> None:
        """The copies are fired and due: publish them when there is room."""
        fired: dict[str, int] = {}
        for lane, ours in by_lane(copies):
            self._queue(lane).extend(ours)
            fired[lane.label] = fired.get(lane.label, 0) + len(ours)
        if self._recalled:  # they were counted before
            again = Counter(fired)
            fired, self._recalled = again - self._recalled, self._recalled - again
        if fired:
            self._emit(events.FireAllowed(messages=sum(fired.values()), destinations=fired))

    def _queue(self, lane: Lane) -> deque[Copy]:
        if (queue := self._ready.get(lane)) is None:
            queue = self._ready[lane] = deque()
        return queue

    def publish(self, now_ms: int) -> None:
        """Hand ready copies to the brokers, within the window."""
        for lane, queue in list(self._ready.items()):
            room = self._window.messages - self._window.unconfirmed
            if room <= 0:
                return
            room = min(room, max(0, lane.flow.limit - lane.flow.in_flight))
            batch = [queue.popleft() for _ in range(min(room, len(queue)))]
            if not queue:
                del self._ready[lane]
            self._hand_over(lane, batch, now_ms)

    def _hand_over(self, lane: Lane, batch: list[Copy], now_ms: int) -> None:
        ours = [copy for copy in batch if copy.session.alive]
        if len(ours) < len(batch):
            self.withdraw([copy for copy in batch if not copy.session.alive])
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
        failpoints.reach("publish.after_write")

    def _not_behind_refused(self, lane: Lane, copies: Sequence[Copy]) -> list[Copy]:
        """Park copies fired before the broker refused earlier ones, which they would overtake."""
        ours = []
        for copy in copies:
            must_go = copy.record.at_most_once or isinstance(copy, DeadLetter)
            if copy.refusals == lane.refusals or must_go:
                ours.append(copy)
            else:
                self.withdraw([copy])
                self._parking.park(copy)
        return ours

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """Free the room and the permits of admitted copies that will not be published."""
        for lane, ours in by_lane(copies):
            self._window.free(lane, ours)
            if lane.limit is not None:
                lane.limit.permits += len(ours)

    def send(self, letter: DeadLetter) -> None:
        """Publish a letter after what is ready in its lane; it is admitted without room."""
        lane = letter.lane
        self._window.admit(lane, letter.size, may_wait=False)
        if lane.limit is not None:
            lane.limit.permits -= 1  # it cannot wait, so the next messages do
        if lane.probes:
            lane.probes -= 1
        letter.refusals = lane.refusals
        self._queue(lane).append(letter)

    def recall(self) -> list[Copy]:
        """Take back the ready copies: the clock was set back, so they may not be due any more.

        Dead letters stay: their messages were due, and published, before.
        """
        taken = []
        for lane, queue in list(self._ready.items()):
            ours = [copy for copy in queue if not isinstance(copy, DeadLetter)]
            taken += ours
            self._recalled[lane.label] += len(ours)
            letters = deque[Copy](copy for copy in queue if isinstance(copy, DeadLetter))
            if letters:
                self._ready[lane] = letters
            else:
                del self._ready[lane]
        return taken

    @property
    def may_go_on(self) -> bool:
        """Whether ready copies wait in a lane whose broker may be given more."""
        return any(lane.flow.has_room for lane in self._ready)


class Outcomes:
    """Gives an exit to each copy whose publish ended."""

    def __init__(
        self, window: Window, routing: Routing, parking: Parking, dispatch: Dispatch,
        emit: events.Emit, spans: PublishSpans | None,
    ) -> None:  # fmt: skip
        """spans: None if the worker does not trace."""
        self._window, self._routing, self._parking = window, routing, parking
        self._dispatch, self._emit, self._spans = dispatch, emit, spans

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome, now_ms: int) -> None:
        """How publishes ended: each copy gets its exit."""
        if self._spans is not None:
            self._spans.outcome(deliveries, outcome, now_ms)
        for lane, copies in by_lane(cast(Sequence[Copy], deliveries)):
            self._window.free(lane, copies)
            self._window.unconfirmed -= len(copies)
            took_ms = lane.flow.answered(len(copies), now_ms)
            if outcome.verdict is Verdict.CONFIRMED:
                self.confirmed(lane, copies, now_ms, took_ms)
            else:
                self.failed(lane, copies, outcome, now_ms)

    def confirmed(
        self, lane: Lane, copies: Sequence[Copy], now_ms: int, took_ms: Sequence[int]
    ) -> None:
        """The broker has taken responsibility for the copies: settle them.

        took_ms: of each batch that is answered by now.
        """
        lane.refusing = None
        failpoints.reach("settle.before")
        settled: dict[Lot, list[Copy]] = {}
        for copy in copies:
            if copy.record.at_most_once:
                copy.session.ended(1)  # settled before it was published
            elif lane.kind == PULL:
                copy.session.exits.offer(copy.item, copy.record.destination)
            else:
                settled.setdefault(copy.lot, []).append(copy)
        for lot, own in settled.items():
            lot.session.exits.settle(lot.claim, own, lane.label)
        late_ms = [now_ms - copy.late_from_ms for copy in copies]
        self._emit(
            events.Published(
                destination=lane.label,
                messages=len(copies),
                late_ms=max(late_ms),
                late_sum_ms=sum(late_ms),
                lateness=spread(late_ms),
                confirm_ms=took_ms,
                copies=copies,
            )
        )
        if lane.circuit.is_open:
            self._close(lane)

    def failed(self, lane: Lane, copies: Sequence[Copy], outcome: Outcome, now_ms: int) -> None:
        """Park the copies that were certainly not delivered, count an attempt for the others."""
        if outcome.fault is Fault.DESTINATION:
            lane.probes = 0
            self._parking.troubled[lane] = None
            if lane.circuit.fail(now_ms, outcome.reason):
                self._emit(events.CircuitOpened(destination=lane.label, reason=outcome.reason))
        elif (
            outcome.answered
            and lane.circuit.state is CircuitState.PROBING
            and not lane.flow.in_flight  # no other probe, which may still fail
        ):
            self._close(lane)
        label, reason = lane.label, outcome.reason
        if outcome.fault is not Fault.BROKER:
            lane.failed(now_ms, reason[:ERROR_CHARS])
        self._emit(events.PublishFailed(destination=label, messages=len(copies), reason=reason))
        maybe = outcome.verdict is Verdict.UNKNOWN
        for copy in copies:
            if isinstance(copy, DeadLetter):
                reason = f"{copy.reason}; dead_letter: {outcome.reason}"
                self.bury(copy, reason, counted=True, maybe=copy.maybe or maybe)
            elif copy.record.at_most_once:
                copy.session.ended(1)
                self._emit(_one(events.Dropped, copy, outcome.reason))
            elif maybe or outcome.fault is Fault.MESSAGE:
                self.attempt_failed(
                    copy, outcome.reason, now_ms, maybe=maybe, least_ms=outcome.wait_ms
                )
            else:
                lane.refusals += 1
                self._parking.park(copy)

    def _close(self, lane: Lane) -> None:
        lane.circuit.succeed()
        self._emit(events.CircuitClosed(destination=lane.label))

    def attempt_failed(
        self, copy: Copy, reason: str, now_ms: int, *, maybe: bool = False, least_ms: int = 0
    ) -> None:
        """Count a failed attempt: back off, for `least_ms` at least, or give up.

        maybe: the message may have been delivered.
        """
        policy = copy.lane.rules.policy.with_plan(copy.record.retry)
        delay_ms = policy.delay_ms(copy.tried.failures + 1, random.random)
        if delay_ms is None:
            if not self._dead_letter(copy, reason, now_ms, maybe=maybe):
                self.bury(copy, reason, counted=True, maybe=maybe)
        else:
            error = f"{copy.lane.label}\n{reason[:ERROR_CHARS]}"
            delay_ms = max(delay_ms, least_ms)
            copy.session.exits.retry(copy.item, delay_ms, maybe=maybe, error=error)
            self._emit(_one(events.Retried, copy, reason))

    def is_used_up(self, copy: Copy) -> bool:
        """Whether no attempt is left, because workers died while they published it."""
        failures = copy.tried.failures
        return failures > 0 and (
            failures >= copy.lane.rules.policy.with_plan(copy.record.retry).max_attempts
        )

    def used_up(self, copy: Copy) -> str:
        """Why no attempt is left."""
        if copy.lane.kind == PULL:
            return f"used_up: no consumer finished it in {copy.tried.failures} attempts"
        return "used_up: workers ended while they published it"

    def bury(self, copy: Copy, reason: str, *, counted: bool, maybe: bool = False) -> None:
        """Give up: the message goes to the dead set. counted: an attempt failed just now."""
        copy.session.exits.bury(copy.item, reason[:_REASON_CHARS], counted=counted, maybe=maybe)
        self._emit(_one(events.Buried, copy, reason))

    def _dead_letter(self, copy: Copy, reason: str, now_ms: int, *, maybe: bool) -> bool:
        """Publish it to its dead-letter destination; False if it has none, or that is paused.

        The store keeps it in flight until that ends: settled, or buried after all.
        """
        own = copy.record.retry
        to = copy.lane.rules.dead_letter if own is None or not own.dead_letter else own.dead_letter
        if to is None or to == copy.record.destination:
            return False
        destination, lane = self._routing.route(to, now_ms)
        if lane.publisher is None or not copy.record.suits(lane.kind) or lane.rules.paused:
            return False  # its broker was removed since, or replaced by one of another kind
        if lane.kind == PULL:
            return False  # set by hand: its record names another destination
        try:
            letter = DeadLetter(copy, to, destination, lane, reason[:_REASON_CHARS], maybe=maybe)
        except DecodeError:  # its header table is damaged: none can be added
            return False
        self._dispatch.send(letter)
        self._emit(_one(events.DeadLettered, copy, reason))
        return True


def by_lane(copies: Iterable[Copy]) -> Iterable[tuple[Lane, list[Copy]]]:
    """Lane -> its copies, in their order."""
    lanes: dict[Lane, list[Copy]] = {}
    for copy in copies:
        lanes.setdefault(copy.lane, []).append(copy)
    return lanes.items()


def _one(kind: Callable[..., events.Event], copy: Copy, reason: str) -> events.Event:
    """An event about a single message."""
    return kind(destination=copy.lane.label, messages=1, reason=reason, copies=(copy,))

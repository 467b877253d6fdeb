"""Lanes: each destination's way out, apart from the others'.

A lane is one exchange, topic or default-exchange queue. It holds what is fired for that destination
until its broker has answered, so that one that fails, blocks, stalls or is slow delays no other:
its messages are parked, in order and without an attempt being counted, and come back when it takes
messages again, to a slow one as many at a time as it has room for.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from delaybridge.accept import parse_destination
from delaybridge.errors import DecodeError, MessageError
from delaybridge.events import (
    Buried,
    CircuitClosed,
    CircuitOpened,
    DeadLettered,
    Dropped,
    Emit,
    Published,
    Retried,
)
from delaybridge.flow import STALLED_MS, Flow
from delaybridge.letters import Letter
from delaybridge.message import Delivery, Destination
from delaybridge.parked import Parked
from delaybridge.publish import Fault, Outcome, Publisher, Verdict
from delaybridge.retry import Circuit, RetryPolicy
from delaybridge.session import Copy, Session
from delaybridge.troubles import LACKING, SLOW, other_kind

_PROBES = 5  # messages that may pass while a circuit is probed
_PATIENCE_MS = 50  # a full lane that keeps the others waiting longer is parked
_LONG_PATIENCE_MS = 10_000  # the same where no other is known to wait: some may, unclaimed
_ROUTES = 10_000
_ERROR_CHARS = 200  # of an error that is kept with a message, or announced
_ANNOUNCED = 20  # destinations whose messages are parked
_NOWHERE = Destination("", "", "")
_lane_of = attrgetter("owner")


class Broker(NamedTuple):
    """A configured broker. publisher: how messages get there."""

    kind: str
    publisher: Publisher


class Lane:
    """One destination. load: fired and without outcome; flow: the broker's part of it.

    refusals: of fired copies, which were parked: what was fired before follows them. is_slow: some
    of its messages were parked only because it was full. is_left: its broker's settings changed;
    what it holds goes back to due and is routed anew.
    """

    def __init__(self, label: str, broker: Broker | None, flow: Flow) -> None:
        self.label, self.flow = label, flow
        # None: `lacks` says why, or it is no destination at all
        self.publisher = None if broker is None else broker.publisher
        self.lacks: str | None = None  # the broker, where none of that name and kind is here
        self.kind = "" if broker is None else broker.kind
        # By it alone most records of another kind are known. kombu's need a closer look.
        self.headers_type = {"rabbitmq": bytes, "kombu": None}.get(self.kind, tuple)
        self.circuit = Circuit(random.random)
        self.probes = 0
        self.ready: deque[Copy] = deque()
        self.load = self.load_bytes = self.refusals = 0
        self.parked: dict[Session, Parked] = {}
        self.is_slow = self.is_left = False

    @property
    def name(self) -> str:
        """The broker's."""
        return self.label.partition(":")[0]

    @property
    def is_shut(self) -> bool:
        """Whether its messages must be parked; a circuit being probed lets a handful pass."""
        return self.is_cut_off or (self.circuit.is_open and self.probes == 0)

    @property
    def is_cut_off(self) -> bool:
        """Whether no broker can be reached through it."""
        publisher = self.publisher
        return self.is_left or publisher is None or publisher.unavailable is not None

    @property
    def trouble(self) -> str:
        """Why its messages are parked, where that is not its broker's own trouble."""
        if self.lacks is None:
            return self.circuit.reason or SLOW
        if self.label == other_kind(self.lacks):
            return f"other_kind: {self.lacks} was another kind of broker when it was scheduled"
        return f"{LACKING}: this worker has no broker named {self.lacks!r}"

    def is_clear(self, now_ms: int) -> bool:
        """Whether nothing stands in the way of its messages but the window."""
        in_the_way = self.is_shut or self.parked or self.circuit.is_open
        return not in_the_way and not self.flow.is_stalled(now_ms)

    def is_behind(self, copy: Copy) -> bool:
        """Whether something earlier of its bucket is parked."""
        parked = self.parked.get(copy.session) if self.parked else None
        return parked is not None and parked.is_before(copy)


class Lanes:
    """All lanes of a worker, and the window that they share."""

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        retry: RetryPolicy,
        emit: Emit,
        *,
        window_messages: int,
        window_bytes: int,
        dead_letters: Mapping[str, str] = {},
    ) -> None:
        """dead_letters: broker -> where its messages go that are given up."""
        self._brokers, self._dead_letters = brokers, dead_letters
        self._kinds: dict[str, str] = {}
        self._changed: set[str] = set()  # brokers whose messages are to be routed anew
        self._retry, self._emit = retry, emit
        self._window, self._window_bytes = window_messages, window_bytes
        self._lanes: dict[str, Lane] = {}
        self._routes: dict[str, tuple[Destination, Lane]] = {}
        self._waiting: dict[Lane, None] = {}  # lanes with something ready
        self._troubled: dict[Lane, None] = {}  # lanes with a circuit open, or messages parked
        self._returning: list[tuple[Lane, Session]] = []  # parked ones on their way back to due
        self._load = self._load_bytes = self._unconfirmed = 0
        self._ripe: Counter[Lane] = Counter()  # copies that may be fired, as room allows
        self.brokers_changed(())

    def brokers_changed(self, names: Collection[str]) -> list[Lane]:
        """These brokers were added, replaced or removed; the lanes that are left behind.

        What was fired already is still theirs. All else is routed anew, in order.
        """
        self._kinds = {name: broker.kind for name, broker in self._brokers.items()}
        self._routes.clear()
        left = [lane for lane in self._lanes.values() if lane.name in names]
        for lane in left:
            del self._lanes[lane.label]
            lane.is_left, lane.is_slow = True, False
        self._changed.update(names)
        return left

    @property
    def is_calm(self) -> bool:
        """Whether no outcome makes anything possible here: nothing waits, nothing is parked."""
        return not (self._waiting or self._troubled)

    @property
    def is_returning(self) -> bool:
        """Whether parked messages are on their way back to due, or will be at once."""
        lanes = (lane for lane in self._troubled if lane.parked)
        return any(lane.is_left or not lane.is_shut for lane in lanes)

    def announced(self) -> dict[str, Any]:
        """Which brokers take messages, and whose messages are parked and why: some of them."""
        reasons = {name: broker.publisher.unavailable for name, broker in self._brokers.items()}
        parked = (
            lane
            for lane in self._troubled
            if lane.parked and (lane.publisher is None or lane.publisher.unavailable is None)
        )
        return {
            "brokers": {n: why and why[:_ERROR_CHARS] for n, why in reasons.items()},
            "parked": {
                lane.label: lane.trouble[:_ERROR_CHARS] for lane in islice(parked, _ANNOUNCED)
            },
        }

    # on the way in

    def route(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        """Destination and lane of a stored destination."""
        route = self._routes.get(text)
        if route is None:
            if len(self._routes) >= _ROUTES:  # routing keys and queues may be without number
                self._routes.clear()
                if len(self._lanes) >= _ROUTES // 2:
                    used = WeakValueDictionary(self._lanes)  # by a copy, or in trouble
                    self._lanes = {}
                    self._lanes = dict(used)
            route = self._routes[text] = self._find(text, now_ms)
        return route

    def _find(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        name, _, address = text.partition(":")
        if name and address and name not in self._kinds:
            return _NOWHERE, self._lacking(name, f"{name}:", now_ms)
        try:
            destination = parse_destination(text, self._kinds)
        except MessageError:
            destination, label, broker = _NOWHERE, text, None
        else:
            label, broker = destination.label, self._brokers[destination.broker]
        return destination, self._lane(label, broker, now_ms)

    def _lane(self, label: str, broker: Broker | None, now_ms: int) -> Lane:
        lane = self._lanes.get(label)
        if lane is None:
            lane = self._lanes[label] = Lane(label, broker, Flow(self._window, now_ms))
        return lane

    def _lacking(self, name: str, label: str, now_ms: int) -> Lane:
        """The lane of what waits for a worker that has such a broker."""
        lane = self._lane(label, None, now_ms)
        if lane.lacks is None:
            lane.lacks = name
            self._emit(CircuitOpened(destination=label, reason=lane.trouble))
        return lane

    def ripened(self, copies: Sequence[Copy]) -> None:
        """The copies wait to be fired."""
        self._ripe.update(map(_lane_of, copies))

    def unripened(self, copies: Sequence[Copy]) -> None:
        """They wait no more."""
        for lane, count in Counter(map(_lane_of, copies)).items():
            self._ripe[lane] -= count
            if self._ripe[lane] <= 0:
                del self._ripe[lane]

    def exit_unpublished(self, copy: Copy, now_ms: int) -> bool:
        """Whether the copy left without being fired: too late, used up, nowhere to go, parked."""
        record, lane = copy.record, _lane(copy)
        if record.ttl_ms is not None and now_ms > copy.due_ms + record.ttl_ms:
            reason = f"expired: {now_ms - copy.due_ms} ms late, its ttl is {record.ttl_ms} ms"
            self._bury(copy, reason, counted=False)
        elif copy.tried.failures >= self._retry.max_attempts:
            self._bury(copy, "used_up: workers ended while they published it", counted=False)
        elif lane.publisher is None and lane.lacks is None:
            self._exit_misaddressed(copy, now_ms)
        elif lane.is_shut or lane.is_behind(copy):
            self._park(copy)
        elif self._is_full(lane) and self._is_in_the_way(lane, now_ms):
            lane.is_slow = True
            self._park(copy)
        elif not record.suits(lane.kind):
            self._park_misfit(copy, copy.destination.broker, now_ms)
        else:
            return False
        return True

    def _exit_misaddressed(self, copy: Copy, now_ms: int) -> None:
        """Its broker cannot read the destination: written for another kind, or damaged."""
        name = copy.record.destination.partition(":")[0]
        if name in self._kinds and not copy.record.suits(self._kinds[name]):
            self._park_misfit(copy, name, now_ms)
        else:
            self._attempt_failed(copy, "bad_destination: it is not BROKER:ADDRESS", now_ms)

    def _park_misfit(self, copy: Copy, name: str, now_ms: int) -> None:
        """Park it until the broker is again of the kind for which the message was scheduled."""
        self.unripened([copy])
        copy.owner = self._lacking(name, other_kind(name), now_ms)
        self.ripened([copy])
        self._park(copy)

    def admit(self, copy: Copy, *, may_wait: bool) -> bool:
        """Count the copy into its lane; False if it must wait for room there.

        A lane may hold as much as is free (dynamic thresholds, Choudhury & Hahne 1998): alone it
        gets half of the window, and no number of stuck ones can take all of it.
        """
        lane, size = _lane(copy), copy.size
        if may_wait and self._is_full(lane):
            return False
        if lane.probes:
            lane.probes -= 1
        copy.refusals = lane.refusals
        lane.load += 1
        lane.load_bytes += size
        self._load += 1
        self._load_bytes += size
        return True

    def _is_full(self, lane: Lane) -> bool:
        load = lane.load  # asked for each message, and so not by `_room`
        return (
            load >= lane.flow.limit
            or load >= self._window - self._load
            or (load > 0 and lane.load_bytes >= self._window_bytes - self._load_bytes)
        )

    def _room(self, lane: Lane) -> int:
        """Messages that it may take at once: as many as it confirms soon, and its share.

        Each of them takes from what is free as well, so half of that. Bytes count as messages of
        the size of those that it holds.
        """
        free = self._window - self._load - lane.load
        if lane.load_bytes > 0:
            free_bytes = self._window_bytes - self._load_bytes - lane.load_bytes
            free = min(free, free_bytes * lane.load // lane.load_bytes)
        return min(lane.flow.limit - lane.load, (free + 1) // 2)

    def _is_in_the_way(self, lane: Lane, now_ms: int) -> bool:
        """Whether the full lane's ripe copies would hold up those behind them for too long."""
        if lane.flow.is_stalled(now_ms):
            return True
        others = any(other is not lane and not self._is_full(other) for other in self._ripe)
        patience_ms = _PATIENCE_MS if others else _LONG_PATIENCE_MS
        return lane.flow.clear_ms(self._ripe[lane], now_ms) > patience_ms

    def waits_for_room(self, copy: Copy, since_ms: int) -> bool:
        """Whether its lane is full, and its broker answered since then."""
        lane = _lane(copy)
        return self._is_full(lane) and lane.flow.moved_ms > since_ms

    # on the way out

    def ready(self, copies: Sequence[Copy]) -> None:
        """The copies are fired and due."""
        for lane, ours in _by_lane(copies):
            self._waiting[lane] = None
            lane.ready += ours

    def recall(self) -> list[Copy]:
        """Take back what is ready: the clock was set back, and it may not be due any more.

        But no letter: it was due, and published, before.
        """
        taken = []
        for lane in list(self._waiting):
            taken += [copy for copy in lane.ready if not isinstance(copy, Letter)]
            lane.ready = deque(copy for copy in lane.ready if isinstance(copy, Letter))
            if not lane.ready:
                del self._waiting[lane]
        return taken

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: what is measured by it goes on as if it was not."""
        for lane in self._lanes.values():
            lane.flow.clock_stepped(step_ms)
            lane.circuit.clock_stepped(step_ms)

    def publish(self, now_ms: int) -> None:
        """Hand to the brokers what is ready, within the window."""
        for lane in list(self._waiting):
            room = self._window - self._unconfirmed
            if room <= 0:
                return
            room = min(room, max(0, lane.flow.limit - lane.flow.in_flight))
            batch = [lane.ready.popleft() for _ in range(min(room, len(lane.ready)))]
            if not lane.ready:
                del self._waiting[lane]
            self._hand_over(lane, batch, now_ms)

    def _hand_over(self, lane: Lane, batch: list[Copy], now_ms: int) -> None:
        ours = [copy for copy in batch if copy.session.alive]
        for copy in batch:
            if not copy.session.alive:
                self.give_back(copy)
        if lane.refusals and any(copy.refusals < lane.refusals for copy in ours):
            ours = self._not_behind_refused(lane, ours)
        if not ours or lane.publisher is None:
            return
        lane.flow.handed_over(len(ours), now_ms)
        self._unconfirmed += len(ours)
        lane.publisher.publish(ours)

    def _not_behind_refused(self, lane: Lane, copies: Sequence[Copy]) -> list[Copy]:
        """Park what was fired before the broker refused others: now it would overtake them."""
        ours = []
        for copy in copies:
            must_go = copy.record.at_most_once or isinstance(copy, Letter)
            if copy.refusals == lane.refusals or must_go:
                ours.append(copy)
            else:
                self.give_back(copy)
                self._park(copy)
        return ours

    def give_back(self, copy: Copy) -> None:
        """An admitted copy will not be published after all: its room is free again."""
        self._count(_lane(copy), -1, -copy.size)

    def outcome(self, deliveries: Sequence[Delivery], outcome: Outcome, now_ms: int) -> None:
        """How publishes ended: each copy gets its exit."""
        for lane, copies in _by_lane(deliveries):
            self._count(lane, -len(copies), -sum(copy.size for copy in copies))
            lane.flow.answered(len(copies), now_ms)
            self._unconfirmed -= len(copies)
            if outcome.verdict is Verdict.CONFIRMED:
                self._confirmed(lane, copies, now_ms)
            else:
                self._failed(lane, copies, outcome, now_ms)

    def _confirmed(self, lane: Lane, copies: Sequence[Copy], now_ms: int) -> None:
        settled: dict[tuple[Session, int], list[str]] = {}
        for copy in copies:
            if copy.record.at_most_once:
                copy.session.gone(1)  # settled before it was published
            else:
                settled.setdefault((copy.session, copy.claim), []).append(copy.id)
        for (session, claim), ids in settled.items():
            session.settle(claim, ids)
        late_ms = now_ms - min(copy.late_from_ms for copy in copies)
        self._emit(Published(destination=lane.label, messages=len(copies), late_ms=late_ms))
        if lane.circuit.is_open and lane.circuit.succeed():
            self._emit(CircuitClosed(destination=lane.label))

    def _failed(self, lane: Lane, copies: Sequence[Copy], outcome: Outcome, now_ms: int) -> None:
        """Not confirmed: park what was never written, count an attempt for the rest."""
        if outcome.fault is Fault.DESTINATION:
            lane.probes = 0
            self._troubled[lane] = None
            if lane.circuit.fail(now_ms, outcome.reason):
                self._emit(CircuitOpened(destination=lane.label, reason=outcome.reason))
        maybe = outcome.verdict is Verdict.UNKNOWN
        for copy in copies:
            if isinstance(copy, Letter):
                reason = f"{copy.reason}; dead_letter: {outcome.reason}"
                self._bury(copy, reason, counted=True, maybe=copy.maybe or maybe)
            elif copy.record.at_most_once:
                copy.session.gone(1)
                self._emit(Dropped(destination=lane.label, messages=1, reason=outcome.reason))
            elif maybe or outcome.fault is Fault.MESSAGE:
                self._attempt_failed(copy, outcome.reason, now_ms, maybe=maybe)
            else:
                lane.refusals += 1
                self._park(copy)

    # exits

    def _attempt_failed(self, copy: Copy, reason: str, now_ms: int, *, maybe: bool = False) -> None:
        """Count a failed attempt: back off, or give up when they are used up."""
        delay_ms = self._retry.delay_ms(copy.tried.failures + 1, random.random)
        if delay_ms is None:
            if not self._send_letter(copy, reason, now_ms, maybe=maybe):
                self._bury(copy, reason, counted=True, maybe=maybe)
        else:
            error = f"{_lane(copy).label}\n{reason[:_ERROR_CHARS]}"
            copy.session.retry(copy.item, delay_ms, maybe=maybe, error=error)
            self._emit(Retried(destination=_lane(copy).label, messages=1, reason=reason))

    def _send_letter(self, copy: Copy, reason: str, now_ms: int, *, maybe: bool) -> bool:
        """Publish it to its broker's dead-letter destination; False if it has none.

        The store keeps it in flight until that ends: settled, or buried after all.
        """
        to = self._dead_letters.get(copy.destination.broker)
        if to is None or to == copy.record.destination:
            return False
        destination, lane = self.route(to, now_ms)
        if lane.publisher is None or not copy.record.suits(lane.kind):
            return False  # its broker was removed since, or replaced by one of another kind
        try:
            letter = Letter(copy, to, destination, lane, reason[:500], maybe=maybe)
        except DecodeError:  # headers that nothing can be added to
            return False
        self.admit(letter, may_wait=False)
        self.ready([letter])
        self._emit(DeadLettered(destination=_lane(copy).label, messages=1, reason=reason))
        return True

    def _bury(self, copy: Copy, reason: str, *, counted: bool, maybe: bool = False) -> None:
        copy.session.bury(copy.item, reason[:500], counted=counted, maybe=maybe)
        self._emit(Buried(destination=_lane(copy).label, messages=1, reason=reason))

    def _park(self, copy: Copy) -> None:
        lane, session = _lane(copy), copy.session
        session.park(copy.item)
        if not session.alive:
            return  # it is forgotten; what it parked is not its to bring back
        self._troubled[lane] = None
        parked = lane.parked.get(session)
        if parked is None:
            parked = lane.parked[session] = Parked()
        parked.add(copy)

    # back to normal

    def recover(self, now_ms: int, remove: Callable[[Callable[[Copy], bool]], list[Copy]]) -> None:
        """Let a handful pass where a circuit's time has come, and all where the way is free.

        What is parked goes back to due, and with it what waits on the wheel of the same lane and
        session: the next claim finds them all, in order. remove: takes such copies off the wheel.
        To be called while no claim is under way; none is made until all are back.
        """
        self._end_returns()
        self._empty_left(remove)
        ways = self._ways(now_ms)
        if ways:
            for copy in remove(lambda copy: (copy.owner, copy.session) in ways):
                self._park(copy)
        for (lane, session), most in ways.items():
            self._bring_back(lane, session, lane.parked[session].take(most))

    def _empty_left(self, remove: Callable[[Callable[[Copy], bool]], list[Copy]]) -> None:
        """Bring back what lanes hold whose broker changed, and what is on the wheel for it."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for copy in remove(lambda copy: _lane(copy).name in changed):
                self._park(copy)
        for lane in [lane for lane in self._troubled if lane.is_left]:
            for session, parked in lane.parked.items():
                if not parked.is_returning:
                    self._bring_back(lane, session, parked.take(None))
            if not lane.parked:
                del self._troubled[lane]

    def _ways(self, now_ms: int) -> dict[tuple[Lane, Session], int | None]:
        """Where parked messages may come back, and how many; None: all."""
        ways: dict[tuple[Lane, Session], int | None] = {}
        for lane in list(self._troubled):
            if lane.is_cut_off:
                continue
            most = None
            if lane.circuit.is_open:
                if not lane.circuit.probe(now_ms):
                    continue
                lane.probes = most = _PROBES
            elif lane.flow.is_stalled(now_ms):
                continue
            elif not lane.parked:
                del self._troubled[lane]
                lane.is_slow = False
            elif lane.is_slow:
                self._bring_back_some(lane)
                continue
            ways |= {(lane, s): most for s, p in lane.parked.items() if not p.is_returning}
        return ways

    def _bring_back_some(self, lane: Lane) -> None:
        """To a slow lane: as many of the earliest as it has room for, once that is worth a call."""
        room = self._room(lane)
        # What a session parked that drains is for the next one to bring back.
        ours = {session: p for session, p in lane.parked.items() if not session.draining}
        is_busy = lane in self._ripe or any(p.is_returning for p in ours.values())
        parked_count = sum(len(parked) for parked in ours.values())
        if is_busy or room < min(parked_count, (room + lane.load) / 2):
            return
        back: dict[Session, list[str]] = {}
        heads = [(p.first, n, session) for n, (session, p) in enumerate(ours.items())]
        heapq.heapify(heads)
        while heads and room > 0:
            _, n, session = heapq.heappop(heads)
            parked = lane.parked[session]
            ids = parked.take(1)
            if ids is None:  # the rest is not known one by one
                back.pop(session, None)
                self._bring_back(lane, session, None)
                continue
            back.setdefault(session, []).extend(ids)
            room -= 1
            if not parked.is_empty:
                heapq.heappush(heads, (parked.first, n, session))
        for session, ids in back.items():
            self._bring_back(lane, session, ids)

    def _bring_back(self, lane: Lane, session: Session, ids: list[str] | None) -> None:
        session.unpark(ids)
        lane.parked[session].is_returning = True
        self._returning.append((lane, session))

    def _end_returns(self) -> None:
        """What is back in due is claimed like anything else."""
        under_way = []
        for lane, session in self._returning:
            if session.is_unparking or (lane.is_slow and session.next_score == -inf):
                under_way.append((lane, session))
            elif lane.parked[session].is_empty:
                del lane.parked[session]
            else:
                lane.parked[session].is_returning = False
        self._returning = under_way

    def forget(self, session: Session) -> None:
        """The session is over: what it parked is for the next one to bring back."""
        for lane in self._troubled:
            lane.parked.pop(session, None)
        self._returning = [way for way in self._returning if way[1] is not session]

    def next_looks_ms(self, now_ms: int, *, waiting: bool) -> Iterable[int]:
        """When time alone makes something possible. waiting: copies wait for room in a lane."""
        looks = [lane.circuit.probe_at_ms for lane in self._troubled]
        if waiting or self._troubled:
            flows = [lane.flow for lane in self._lanes.values() if lane.flow.in_flight]
            looks += [flow.moved_ms + STALLED_MS + 1 for flow in flows]
        if waiting:
            looks.append(now_ms + _PATIENCE_MS)
        return [at_ms for at_ms in looks if at_ms is not None and at_ms > now_ms]

    def _count(self, lane: Lane, copies: int, size: int) -> None:
        lane.load += copies
        lane.load_bytes += size
        self._load += copies
        self._load_bytes += size


def _lane(delivery: Delivery) -> Lane:
    lane: Lane = delivery.owner
    return lane


def _by_lane(deliveries: Sequence[Delivery]) -> Iterable[tuple[Lane, Sequence[Copy]]]:
    lanes: dict[Lane, list[Copy]] = {}
    for copy in deliveries:
        lanes.setdefault(copy.owner, []).append(copy)  # type: ignore[arg-type]
    return lanes.items()

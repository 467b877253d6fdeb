"""Routing: a stored destination becomes the destination and the lane of a copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from weakref import WeakValueDictionary

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import MessageError
from delaybridge.events import CircuitOpened, Emit
from delaybridge.message import Destination
from delaybridge.scan.lanes.flow import Flow
from delaybridge.scan.lanes.lane import Broker, Lane
from delaybridge.scan.lanes.lane_rules import Steering, Terms

_ROUTES = 10_000  # kept; routing keys are unbounded
_APART = 2000  # lanes of single destinations; beyond, those without a rule lose theirs
_NOWHERE = Destination("", "", "")


class Routing:
    """Finds the lane of each destination. lanes: by label. kinds: broker -> its kind.

    routes: those found so far, by destination as messages have it.
    """

    def __init__(
        self, brokers: Mapping[str, Broker], window_messages: int, emit: Emit, steering: Steering
    ) -> None:
        """brokers: may change under this; then call `brokers_changed`."""
        self._brokers, self._window_messages, self._emit = brokers, window_messages, emit
        self._steering = steering
        self._apart: dict[str, str] = {}  # whole destinations with lanes of their own -> labels
        self._left: list[Lane] = []  # replaced lanes that may have fired messages
        self.kinds: dict[str, str] = {}
        self.lanes: dict[str, Lane] = {}
        self.routes: dict[str, tuple[Destination, Lane]] = {}
        self.brokers_changed(())

    def route(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        """Destination and lane of a stored destination."""
        route = self.routes.get(text)
        if route is None:
            if len(self.routes) >= _ROUTES:
                self.routes.clear()
                if len(self.lanes) >= _ROUTES // 2:
                    used = WeakValueDictionary(self.lanes)  # by a copy, or in trouble
                    self.lanes = {}
                    self.lanes = dict(used)
            route = self.routes[text] = self._find(text, now_ms)
        return route

    def _find(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        name, _, address = text.partition(":")
        if name and address and name not in self.kinds:
            return _NOWHERE, self.lane_lacking(name, f"{name}:", now_ms)
        try:
            destination = parse_destination(text, self.kinds)
        except MessageError:
            return _NOWHERE, self._lane(text, None, now_ms)
        broker, label = self._brokers[destination.broker], destination.label
        whole = str(destination)
        return destination, self._lane(whole if whole in self._apart else label, broker, now_ms)

    def fault(self, text: str) -> str:
        """Why a stored destination cannot be parsed."""
        try:
            parse_destination(text, self.kinds)
        except MessageError as exc:
            return exc.detail
        return "it could not be parsed"

    def _lane(self, label: str, broker: Broker | None, now_ms: int) -> Lane:
        lane = self.lanes.get(label)
        if lane is None:
            flow = Flow(self._window_messages, now_ms)
            family = self._apart.get(label, label)
            terms = self._terms(label, family, has_broker=broker is not None)
            lane = self.lanes[label] = Lane(label, broker, flow, terms, family)
            lane.behind = [old for old in self._left if old.family == family and old.load]
        return lane

    def _terms(self, label: str, family: str, *, has_broker: bool) -> Terms:
        terms = self._steering.terms(label.partition(":")[0], family, label)
        return terms if has_broker else terms._replace(dead_letter=None)

    def lane_lacking(self, name: str, label: str, now_ms: int) -> Lane:
        """The lane of messages that wait for a worker that has such a broker."""
        lane = self._lane(label, None, now_ms)
        if lane.lacks is None:
            lane.lacks = name
            self._emit(CircuitOpened(destination=label, reason=lane.trouble))
        return lane

    def brokers_changed(self, names: Collection[str]) -> list[Lane]:
        """These brokers were added, replaced or removed; returns their old lanes."""
        self.kinds = {name: broker.kind for name, broker in self._brokers.items()}
        left = [lane for lane in self.lanes.values() if lane.name in names]
        self._leave(left)
        self._apart = self._steering.apart(self.kinds)
        return left

    def rules_changed(self) -> set[str]:
        """The rules are others; returns the labels whose waiting messages must be routed again.

        That is so if some of their destinations change their lane, or if they are spread.

        Their lanes are left, as if their broker had been replaced.
        """
        apart = self._steering.apart(self.kinds)
        if len(self._apart) < _APART:  # a lane that lost its rule stays: nothing is routed again
            apart = self._apart | apart
        families = {(self._apart | apart)[w] for w in self._apart.keys() ^ apart.keys()}
        self._apart = apart
        left = [lane for lane in self.lanes.values() if lane.family in families]
        self._leave(left)
        self._left = [lane for lane in [*self._left, *left] if lane.load]
        for lane in self.lanes.values():
            has_broker = lane.publisher is not None
            was = lane.terms
            lane.follow(self._terms(lane.label, lane.family, has_broker=has_broker))
            if was.paused and not lane.terms.paused:
                lane.is_slow = bool(lane.parked)  # they come back as there is room, earliest first
            if was.spread_ms < lane.terms.spread_ms:
                families.add(lane.family)  # also those on the wheel are spread
        return families

    def _leave(self, lanes: Sequence[Lane]) -> None:
        self.routes.clear()
        for lane in lanes:
            del self.lanes[lane.label]
            lane.is_left, lane.is_slow, lane.behind = True, False, []

"""Routing: a stored destination becomes the destination and the lane of a copy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from weakref import WeakValueDictionary

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import MessageError
from delaybridge.events import CircuitOpened, Emit
from delaybridge.message import Destination
from delaybridge.scan.flow import Flow
from delaybridge.scan.lane import Broker, Lane

_ROUTES = 10_000  # kept; routing keys are unbounded
_NOWHERE = Destination("", "", "")


class Routing:
    """Finds the lane of each destination. lanes: by label. kinds: broker -> its kind."""

    def __init__(self, brokers: Mapping[str, Broker], window_messages: int, emit: Emit) -> None:
        """brokers: may change under this; then call `brokers_changed`."""
        self._brokers, self._window_messages, self._emit = brokers, window_messages, emit
        self.kinds: dict[str, str] = {}
        self.lanes: dict[str, Lane] = {}
        self._routes: dict[str, tuple[Destination, Lane]] = {}
        self.brokers_changed(())

    def route(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        """Destination and lane of a stored destination."""
        route = self._routes.get(text)
        if route is None:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
                if len(self.lanes) >= _ROUTES // 2:
                    used = WeakValueDictionary(self.lanes)  # by a copy, or in trouble
                    self.lanes = {}
                    self.lanes = dict(used)
            route = self._routes[text] = self._find(text, now_ms)
        return route

    def _find(self, text: str, now_ms: int) -> tuple[Destination, Lane]:
        name, _, address = text.partition(":")
        if name and address and name not in self.kinds:
            return _NOWHERE, self.lane_lacking(name, f"{name}:", now_ms)
        try:
            destination = parse_destination(text, self.kinds)
        except MessageError:
            return _NOWHERE, self._lane(text, None, now_ms)
        broker = self._brokers[destination.broker]
        return destination, self._lane(destination.label, broker, now_ms)

    def _lane(self, label: str, broker: Broker | None, now_ms: int) -> Lane:
        lane = self.lanes.get(label)
        if lane is None:
            flow = Flow(self._window_messages, now_ms)
            lane = self.lanes[label] = Lane(label, broker, flow)
        return lane

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
        self._routes.clear()
        left = [lane for lane in self.lanes.values() if lane.name in names]
        for lane in left:
            del self.lanes[lane.label]
            lane.is_left, lane.is_slow = True, False
        return left

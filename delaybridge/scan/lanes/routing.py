"""Routing: a stored destination becomes the destination and the lane of a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from delaybridge.accept.destination import parse_destination
from delaybridge.errors import MessageError
from delaybridge.events import CircuitOpened, Emit
from delaybridge.message import Destination
from delaybridge.scan.lanes.flow import Flow
from delaybridge.scan.lanes.lane import Broker, Lane, LaneRules
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.store.namespace.rules import NO_RULES, Rules, places_of

_ROUTES = 10_000  # kept; routing keys are unbounded
_APART = 2000  # lanes of single destinations; beyond, those without a rule lose theirs
_NOWHERE = Destination("", "", "")
_LEAST_REFUSED_MS = 1000  # a lane fails for longer: one message may fail among many
_REFUSED_MS = 600_000  # then it is not known any more whether it would


class RuleBook:
    """Settings and rules together.

    is_spread: some messages leave later than they are due. has_rates: some lanes have a rate.
    """

    def __init__(self, policy: RetryPolicy, dead_letters: Mapping[str, str]) -> None:
        """dead_letters: broker -> destination of messages that are given up."""
        self._policy, self._dead_letters = policy, dead_letters
        self.follow(NO_RULES)

    def follow(self, rules: Rules) -> None:
        """The rules of destinations are these now."""
        self._rules = rules
        self.is_spread = any(rule.spread_ms for rule in rules.by_place.values())
        self.has_rates = any(rule.rate is not None for rule in rules.by_place.values())

    def of_lane(self, broker: str, label: str, destination: str) -> LaneRules:
        """The rules of a lane. destination: the whole one, if it has a lane of its own."""
        policy, paused, spread_ms = self._policy, "", 0
        dead_letter = self._dead_letters.get(broker)
        levels = self._rules.levels(broker, label, destination)
        for place, rule in levels:
            if rule.paused:
                paused = paused or place
            if rule.spread_ms is not None:
                spread_ms = rule.spread_ms
            policy = policy.with_plan(rule.retry)
            if rule.dead_letter is not None:
                dead_letter = rule.dead_letter or None
        rates = tuple((place, rule.rate) for place, rule in levels if rule.rate is not None)
        return LaneRules(policy, paused, spread_ms, rates, dead_letter)

    def apart(self, kinds: Mapping[str, str]) -> dict[str, str]:
        """Whole destinations with a rule, which need lanes of their own -> their label.

        kinds: broker -> its kind.
        """
        ours = (place for place in self._rules.by_place if place.partition(":")[0] in kinds)
        covering = (places_of(place, kinds) for place in ours)
        return {places[2]: places[1] for places in covering if len(places) > 2}


class Routing:
    """Finds the lane of each destination. lanes: by label. kinds: broker -> its kind.

    routes: those found so far, by destination as messages have it. rule_book: what settings and
    rules say.
    """

    def __init__(
        self, brokers: Mapping[str, Broker], window_messages: int, emit: Emit, rule_book: RuleBook
    ) -> None:
        """brokers: may change under this; then call `brokers_changed`."""
        self._brokers, self._window_messages, self._emit = brokers, window_messages, emit
        self.rule_book = rule_book
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
            rules = self._rules(label, family, has_broker=broker is not None)
            lane = self.lanes[label] = Lane(label, broker, flow, rules, family)
            lane.behind = [old for old in self._left if old.family == family and old.load]
        return lane

    def _rules(self, label: str, family: str, *, has_broker: bool) -> LaneRules:
        rules = self.rule_book.of_lane(label.partition(":")[0], family, label)
        return rules if has_broker else rules._replace(dead_letter=None)

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
        self._apart = self.rule_book.apart(self.kinds)
        return left

    def rules_changed(self, rules: Rules) -> set[str]:
        """Follow these rules; returns the labels whose waiting messages must be routed again.

        That is so if some of their destinations change their lane, or if they are spread.

        Their lanes are left, as if their broker had been replaced.
        """
        self.rule_book.follow(rules)
        apart = self.rule_book.apart(self.kinds)
        if len(self._apart) < _APART:  # a lane that lost its rule stays: nothing is routed again
            apart = self._apart | apart
        families = {(self._apart | apart)[w] for w in self._apart.keys() ^ apart.keys()}
        self._apart = apart
        left = [lane for lane in self.lanes.values() if lane.family in families]
        self._leave(left)
        self._left = [lane for lane in [*self._left, *left] if lane.load]
        for lane in self.lanes.values():
            has_broker = lane.publisher is not None
            was = lane.rules
            lane.follow(self._rules(lane.label, lane.family, has_broker=has_broker))
            if was.paused and not lane.rules.paused:
                lane.is_slow = bool(lane.parked)  # they come back as there is room, earliest first
            if was.spread_ms < lane.rules.spread_ms:
                families.add(lane.family)  # also those on the wheel are spread
        return families

    def _leave(self, lanes: Sequence[Lane]) -> None:
        self.routes.clear()
        for lane in lanes:
            del self.lanes[lane.label]
            lane.is_left, lane.is_slow, lane.behind = True, False, []

    def clock_stepped(self, step_ms: int) -> None:
        """The store's clock was set: shift the times measured by it."""
        for lane in self.lanes.values():
            lane.flow.clock_stepped(step_ms)
            lane.circuit.clock_stepped(step_ms)
            if lane.limit is not None:
                lane.limit.clock_stepped(step_ms)

    def refused(self, now_ms: int) -> Iterator[tuple[str, str]]:
        """Lanes that have confirmed nothing of late, and refused something; and why."""
        for lane in self.lanes.values():
            each = lane.refusing
            if each is None or lane.rules.paused or now_ms - each.last_ms > _REFUSED_MS:
                continue
            if now_ms - each.since_ms >= _LEAST_REFUSED_MS:
                yield lane.label, each.reason

    def unconfirmed(self) -> Counter[str]:
        """By broker, how many messages it has not answered."""
        counts: Counter[str] = Counter()
        for lane in self.lanes.values():
            counts[lane.name] += lane.flow.in_flight
        return counts

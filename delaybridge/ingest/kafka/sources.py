"""The delay topics of one cluster as `stats` shows them: their counts, and their states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from delaybridge.events import Emit, IngestFailed, IngestStarted, SourceUnguarded
from delaybridge.ingest.counts import SourceCounts
from delaybridge.ingest.kafka.subscription import ELSEWHERE
from delaybridge.ingest.kafka.topics import Place
from delaybridge.ingest.owner import Owner
from delaybridge.ingest.routes import SUFFIX, Route, topics_pattern

CLUSTER = "kafka"  # the place for trouble that concerns no topic


class Sources:
    """Keeps the counts of each topic, and the states that the consumer reports."""

    def __init__(
        self, routes: Sequence[Route], owner: Owner, emit: Emit, on_change: Callable[[], None]
    ) -> None:
        """asked: the topics to read, as the consumer takes them."""
        self._on_change = on_change
        self.asked = [topics_pattern(r.source) if r.is_pattern else r.source for r in routes]
        self._routes, self._owner, self._emit = routes, owner, emit
        self._named = {route.source for route in routes}
        self._counts: dict[str, SourceCounts] = {}
        self._troubles: dict[str, str] = {}  # place -> the reason
        self._reading: set[str] = set()
        self._idle: dict[str, str] = {}  # topic or pattern not read here -> why
        for route in routes:
            self._add(route)

    @property
    def counts(self) -> list[SourceCounts]:
        """The counts of each topic, and of each pattern of which nothing is read."""
        shown = self._idle if self._reading else self._counts
        return [c for name, c in self._counts.items() if "*" not in name or name in shown]

    def counts_of(self, topic: str) -> SourceCounts:
        """The counts of a topic that was read."""
        return self._counts[topic]

    def route_of(self, topic: str) -> Route:
        """The route by which a topic is read."""
        for route in self._routes:
            if route.source == topic:
                return route
        return next(route for route in self._routes if route.is_pattern).for_topic(topic)

    def set_lags(self, lags: Mapping[str, int]) -> None:
        """How many records wait, by topic."""
        for topic in lags.keys() & self._counts.keys():
            self._counts[topic].lag = lags[topic]

    # reported by the consumer

    def place_changed(self, place: str, reason: str | None) -> None:
        """The trouble at a topic, TOPIC/PARTITION or `CLUSTER`; None once it is well."""
        topic = place.partition("/")[0]
        if topic != CLUSTER:
            self._add(self.route_of(topic))
        if reason is not None:
            if self._troubles.get(place) != reason:  # it may be reported every second
                self._emit(IngestFailed(source=f"{self._routes[0].broker}:{place}", reason=reason))
            self._troubles[place] = reason
        else:
            self._troubles.pop(place, None)
            if place == topic != CLUSTER:
                self._troubles.pop(CLUSTER, None)
                if topic not in self._reading:
                    self._emit(IngestStarted(source=str(self.route_of(topic))))
                self._reading.add(topic)
        self._update_states()

    def topic_left(self, topic: str) -> None:
        """None of its partitions is read here any more: its trouble is another process's."""
        self._troubles.pop(topic, None)
        self._reading.discard(topic)
        self._update_states()

    def topic_foreign(self, topic: str, owner: str) -> None:
        """A topic is not read, because it belongs to another namespace."""
        self.place_changed(topic, self._owner.refusal(self.route_of(topic), owner))

    def unguarded(self, reason: str) -> None:
        """Why topics cannot be marked as this namespace's."""
        self._emit(SourceUnguarded(source=self._routes[0].broker, reason=reason))

    def topics_read(self, read: set[str], idle: Mapping[str, str]) -> None:
        """The topics read here, and why others, or what was asked for, are not."""
        self._reading &= read
        names = {asked: r.source for asked, r in zip(self.asked, self._routes, strict=True)}
        self._idle = {names.get(name, name): reason for name, reason in idle.items()}
        for topic in self._idle:
            self._troubles.pop(topic, None)
        self._update_states()

    def _add(self, route: Route) -> None:
        if route.source not in self._counts:
            target = f"{route.broker}:{route.target or route.source.removesuffix(SUFFIX)}"
            self._counts[route.source] = SourceCounts(
                source=str(route), target=target, on_change=self._on_change
            )

    def _update_states(self) -> None:
        for topic, counts in self._counts.items():
            found = [
                f"{place}: {reason}"
                for place, reason in self._troubles.items()
                if place.partition("/")[0] in (topic, CLUSTER)
            ]
            idle = self._idle.get(topic, "starting" if topic in self._named else ELSEWHERE)
            well = "reading" if topic in self._reading else idle
            counts.state = found[-1] if found else well


class Troubles:
    """The topics that a consumer reports as failing. To be used in its thread.

    topics: a partition of each that fails.
    """

    def __init__(self, tell: Callable[..., None], sources: Sources) -> None:
        """tell: calls a method of `sources` on the loop."""
        self.topics: dict[str, int] = {}
        self._tell, self._sources = tell, sources

    def begin(self, topic: str, partition: int, reason: str) -> None:
        """A topic cannot be read."""
        self.topics[topic] = partition
        self._tell(self._sources.place_changed, topic, reason)

    def end(self, topic: str) -> None:
        """A topic is read again, or for the first time."""
        self.topics.pop(topic, None)
        self._tell(self._sources.place_changed, topic, None)

    def records_came(self, topic: str) -> None:
        """A topic that may have failed is read."""
        if topic in self.topics:
            self.end(topic)

    def leave(self, read: Iterable[Place], asked: Collection[str]) -> None:
        """Forget topics that were given up: their new reader announces whether they are read."""
        for name, partition in [*self.topics.items()]:
            left = [number for topic, number in read if topic == name]
            if left and partition not in left:
                self.topics[name] = left[0]
            elif not left and name not in asked:
                del self.topics[name]
                self._tell(self._sources.topic_left, name)

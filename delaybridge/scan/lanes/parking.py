"""Parked messages: set aside, in order and without counting an attempt, until the way is free.

A lane parks its messages while its broker is unavailable, while its circuit is open, or when it is
too slow for the messages that are due. They go back to `due` when it takes messages again; for a
slow lane, as many at a time as it has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from delaybridge.scan.lanes.lane import ERROR_CHARS, Copy, Lane, Window
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.leases.session import Session

_ALL_KNOWN = 1_000_000  # ids of parked messages in memory, about 150 bytes each


class Parking:
    """Parks copies, and knows what stands aside.

    troubled: lanes whose circuit is open, or that have parked messages. bound: how many ids are
    remembered of one lane and session.
    """

    def __init__(self, window: Window, routing: Routing) -> None:
        self._window, self._routing = window, routing
        self.troubled: dict[Lane, None] = {}
        self.bound = _ALL_KNOWN

    def park(self, copy: Copy) -> None:
        """Park it, after the messages that its session has parked of this lane already."""
        lane, session = copy.lane, copy.session
        session.exits.park(copy.item)
        if not session.alive:
            return  # the bucket's next session brings back the messages that this one parked
        self._note(lane, session, copy.score, copy.id)

    def inherit(
        self, session: Session, left: Iterable[tuple[float, bytes, str]], now_ms: int
    ) -> list[bytes]:
        """Messages that an earlier session parked: remember those that must still wait.

        left: score, id and destination of each, in order. Returns the ids of the others, which can
        go back to `due`; also those that cannot be read, which are buried when they are claimed.
        """
        self.share_bound()
        back = []
        lanes: dict[str, Lane | None] = {"": None}  # None: its messages need not wait
        for score, raw_id, destination in left:
            if destination not in lanes:
                _, lane = self._routing.route(destination, now_ms)
                lanes[destination] = lane if lane.holds_back(now_ms) else None
            found = lanes[destination]
            id = raw_id.decode(errors="replace")
            if found is None or id.encode() != raw_id:
                back.append(raw_id)
            else:
                self._note(found, session, score, id)
        return back

    def share_bound(self) -> None:
        """Divide the ids that are remembered among the lanes and sessions with parked messages."""
        pairs = sum([len(lane.parked) for lane in self.troubled])
        self.bound = max(1, _ALL_KNOWN // max(1, pairs))

    def _note(self, lane: Lane, session: Session, score: float, id: str) -> None:
        self.troubled[lane] = None
        parked = lane.parked.get(session)
        if parked is None:
            parked = lane.parked[session] = Parked()
        parked.add(score, id, self.bound)

    @property
    def is_calm(self) -> bool:
        """Whether an outcome allows no step here: nothing is parked that is not paused."""
        return all(lane.rules.paused and not lane.is_left for lane in self.troubled)

    @property
    def is_returning(self) -> bool:
        """Whether parked messages are going back to `due`, or can go at once."""
        lanes = (lane for lane in self.troubled if lane.parked)
        return any(lane.is_left or not lane.is_shut for lane in lanes)

    def held(self) -> tuple[dict[tuple[str, str], int], float | None]:
        """Messages that wait because someone wants it, and the earliest score of all others.

        By lane and cause, `paused` or `rate`; of one bucket and lane at most 50,000.
        """
        waiting: dict[tuple[str, str], int] = {}
        firsts: list[float] = []
        for lane in self.troubled:
            cause = lane.hold
            if cause is None:
                firsts += (p.first for p in lane.parked.values() if p.first > -inf)
            elif messages := sum(map(len, lane.parked.values())):
                waiting[lane.label, cause] = messages
        return waiting, min(firsts, default=None)

    def blocked(self) -> Iterator[tuple[str, str]]:
        """Lanes with parked messages though their broker takes others, and why."""
        for lane in self.troubled:
            is_up = lane.publisher is None or lane.publisher.unavailable is None
            if lane.parked and is_up and not lane.rules.paused:
                yield lane.label, lane.trouble[:ERROR_CHARS]

    def next_due_ms(self, now_ms: int) -> float:
        """When the next message falls due that was parked before, because its rate is used up."""
        limited = (lane for lane in self.troubled if lane.limit is not None)
        firsts = (p.first for lane in limited for p in lane.parked.values())
        return min((first for first in firsts if first >= now_ms + 1), default=inf)

    def without_surplus(self, copies: Sequence[Copy], now_ms: int) -> list[Copy]:
        """Park copies of a claim that cannot be on time, as too many are due; returns the others.

        Of a late claim: those behind parked messages. They would only be in the way of what can go.
        """
        kept = []
        for copy in copies:
            lane = copy.lane
            if lane.limit is None or self._fits(lane, lane.limit, copy, now_ms):
                kept.append(copy)
            else:
                self.park(copy)
        return kept

    def _fits(self, lane: Lane, limit: Limit, copy: Copy, now_ms: int) -> bool:
        if copy.score >= now_ms + 1:
            return limit.plan(int(copy.score), now_ms)
        parked = lane.parked.get(copy.session)
        # While some are returning, it may be one of them.
        return parked is None or parked.is_returning or not parked.is_before(copy.score)

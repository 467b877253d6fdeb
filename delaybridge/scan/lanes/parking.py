"""Parked messages: set aside, in order and without counting an attempt, until the way is free.

A lane parks its messages while its broker is unavailable, while its circuit is open, or when it is
too slow for the messages that are due. They go back to `due` when it takes messages again; for a
slow lane, as many at a time as it has room for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from delaybridge.message import Destination
from delaybridge.scan.lanes.lane import Lane
from delaybridge.scan.lanes.limit import Limit
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.window import Window
from delaybridge.scan.leases.copy import Copy
from delaybridge.scan.leases.session import Session
from delaybridge.store.messages.destinations_of_state import BoundSlice

_ALL_KNOWN = 1_000_000  # ids of parked messages in memory, about 150 bytes each
_PROBES = 5  # messages that may pass while a circuit is probed

Remove = Callable[[Callable[[Copy], bool]], list[Copy]]
Route = Callable[[str, int], tuple[Destination, Lane]]


class NextPage(NamedTuple):
    """Parked messages of a session that are to be read, after this one.

    lanes: they lack ids. What the first of them knows ends earliest: the page begins there.
    """

    session: Session
    lanes: Sequence[Lane]
    after: tuple[float, str]


class Parking:
    """Parks copies, and brings messages back.

    troubled: lanes whose circuit is open, or that have parked messages. lacking: session -> lanes
    that are to know more ids of it; the session that has waited longest comes first.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self.troubled: dict[Lane, None] = {}
        self.lacking: dict[Session, dict[Lane, None]] = {}
        self._returning: list[tuple[Lane, Session]] = []
        self._bound = _ALL_KNOWN  # ids to be remembered of one lane and session
        self._changed: set[str] = set()  # brokers, families: their messages must be routed again

    def park(self, copy: Copy) -> None:
        """Park it, after the messages that its session has parked of this lane already."""
        lane, session = copy.lane, copy.session
        session.exits.park(copy.item)
        if not session.alive:
            return  # the bucket's next session brings back the messages that this one parked
        self._note(lane, session, copy.score, copy.id)

    def inherit(
        self, session: Session, left: Iterable[tuple[float, bytes, str]], route: Route, now_ms: int
    ) -> list[bytes]:
        """Messages that an earlier session parked: remember those that must still wait.

        left: score, id and destination of each, in order. Returns the ids of the others, which can
        go back to `due`; also those that cannot be read, which are buried when they are claimed.
        """
        self._set_bound()
        back = []
        lanes: dict[str, Lane | None] = {"": None}  # None: its messages need not wait
        for score, raw_id, destination in left:
            if destination not in lanes:
                _, lane = route(destination, now_ms)
                lanes[destination] = lane if lane.holds_back(now_ms) else None
            found = lanes[destination]
            id = raw_id.decode(errors="replace")
            if found is None or id.encode() != raw_id:
                back.append(raw_id)
            else:
                self._note(found, session, score, id)
        return back

    def _set_bound(self) -> None:
        pairs = sum([len(lane.parked) for lane in self.troubled])
        self._bound = max(1, _ALL_KNOWN // max(1, pairs))

    def _note(self, lane: Lane, session: Session, score: float, id: str) -> None:
        self.troubled[lane] = None
        parked = lane.parked.get(session)
        if parked is None:
            parked = lane.parked[session] = Parked()
        parked.add(score, id, self._bound)

    def begin_page(self) -> NextPage | None:
        """The next page to be read, of the bucket whose turn it is; None if none is lacking.

        All that was parked before must be in the store by then: what is parked later is noted.
        """
        for session in [s for s in self.lacking if not s.exits.is_parking]:
            lanes = [lane for lane in self.lacking.pop(session) if self._lacks_page(lane, session)]
            if lanes:
                afters = {lane: lane.parked[session].begin_page() for lane in lanes}
                lanes.sort(key=afters.__getitem__)
                return NextPage(session, lanes, afters[lanes[0]])
        return None

    def add_page(self, page: NextPage, found: BoundSlice, route: Route, now_ms: int) -> None:
        """The page that was read: each of its lanes remembers its own messages.

        One whose record cannot be read any more goes back with the first lane's, and is buried.
        """
        names = {to for _, _, to in found.messages}
        routed = {to: route(to, now_ms)[1] if to else page.lanes[0] for to in names}
        ours: dict[Lane, list[tuple[float, str]]] = {lane: [] for lane in routed.values()}
        ids = [(score, id.decode(errors="replace")) for score, id, _ in found.messages]
        for one, (_, _, to) in zip(ids, found.messages, strict=True):
            ours[routed[to]].append(one)
        for lane in page.lanes:
            parked = lane.parked.get(page.session)
            if parked is None:
                continue
            parked.add_page(ours.get(lane, ()), ids[-1] if found.more else None, self._bound)
            if parked.is_empty and not parked.is_returning:  # all others were cancelled
                del lane.parked[page.session]

    def routes_changed(self, names: set[str]) -> None:
        """Messages of these brokers, exchanges or topics must be routed again."""
        self._changed |= names

    @property
    def is_calm(self) -> bool:
        """Whether an outcome allows no step here: nothing is parked that is not paused."""
        return all(lane.terms.paused and not lane.is_left for lane in self.troubled)

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

    def recover(self, now_ms: int, remove: Remove) -> None:
        """Probe lanes whose circuit is due for it with a handful; bring all back to healthy ones.

        Parked messages go back to `due`, together with the copies of the same lane and session that
        wait on the wheel: the next claim then finds all of them in order. remove: takes such copies
        off the wheel. Call it only while no claim is under way; none starts until they are back.
        """
        self._end_returns()
        self._empty_left(remove)
        ways = self._ways(now_ms)
        if ways:
            for copy in remove(lambda copy: (copy.lane, copy.session) in ways):
                self.park(copy)
        for (lane, session), most in ways.items():
            self._bring_back(lane, session, lane.parked[session].take(most))

    def can_return(self, lane: Lane, now_ms: int) -> int:
        """How many parked messages of a lane can come back now, if it may publish them."""
        if lane.is_cut_off or lane.flow.is_stalled(now_ms):
            return 0
        probe_at_ms = lane.circuit.probe_at_ms
        if probe_at_ms is not None:
            return _PROBES if probe_at_ms <= now_ms else 0
        ours = lane.returnable.values()
        if lane.limit is None:
            return sum(map(len, ours))
        due, most = 0, lane.limit.most  # more are not asked for
        for parked in ours:
            if due < most:
                due += parked.count_due(now_ms, most - due)
        return due

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
        return parked is None or parked.is_returning or not parked.is_before(copy)

    def session_over(self, session: Session) -> None:
        """Forget the session's parked messages: the bucket's next session brings them back."""
        for lane in self.troubled:
            lane.parked.pop(session, None)
        self.lacking.pop(session, None)
        self._returning = [way for way in self._returning if way[1] is not session]

    def _empty_left(self, remove: Remove) -> None:
        """Bring back the messages whose routes changed, parked or on the wheel."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for copy in remove(lambda c: c.lane.name in changed or c.lane.family in changed):
                self.park(copy)
        for lane in [lane for lane in self.troubled if lane.is_left]:
            for session, parked in lane.parked.items():
                if not parked.is_returning:
                    self._bring_back(lane, session, parked.take_all())
            if not lane.parked:
                del self.troubled[lane]

    def _ways(self, now_ms: int) -> dict[tuple[Lane, Session], int | None]:
        """(lane, session) whose messages may come back -> how many, None: all."""
        ways: dict[tuple[Lane, Session], int | None] = {}
        self._set_bound()
        for lane in [lane for lane in self.troubled if not lane.is_cut_off]:
            self._look_for_lack(lane)
            most = None
            if lane.circuit.is_open:
                most = self._probes(lane, now_ms)
                if not most:
                    continue
            elif lane.flow.is_stalled(now_ms):
                continue
            elif not lane.parked:
                del self.troubled[lane]
                lane.is_slow = False
            elif lane.is_slow or lane.limit is not None or not lane.knows_parked:
                self._bring_back_some(lane, now_ms)
                continue
            ours = lane.returnable.items()
            ways |= {(lane, s): most for s, p in ours if p.may_return}
        return ways

    def _look_for_lack(self, lane: Lane) -> None:
        for session in lane.returnable:
            if self._lacks_page(lane, session):
                self.lacking.setdefault(session, {})[lane] = None

    def _lacks_page(self, lane: Lane, session: Session) -> bool:
        parked = lane.parked.get(session)
        lacks = parked is not None and parked.lacks_page(self._bound)
        return lacks and not (session.draining or lane.is_cut_off)

    def _probes(self, lane: Lane, now_ms: int) -> int:
        """How many messages may probe the lane's circuit now; with a rate, each needs a permit."""
        if lane.lacks_permit or not lane.circuit.probe(now_ms):
            return 0
        lane.probes = _PROBES if lane.limit is None else min(_PROBES, lane.limit.permits)
        return lane.probes

    def _bring_back_some(self, lane: Lane, now_ms: int) -> None:
        """Bring back the earliest messages of a slow lane that it has room for, if worth a call.

        With a rate: as many as it has permits.
        """
        lane.is_slow = True
        room = self._window.room(lane)
        worth = (room + lane.load) / 2
        if lane.limit is not None:
            worth = min(worth, lane.limit.permits)
            room = min(room, lane.limit.permits)
        ours = lane.returnable
        is_busy = lane in self._window.ripe or any(p.is_returning for p in ours.values())
        parked_count = sum(len(parked) for parked in ours.values())
        if is_busy or room <= 0 or room < min(parked_count, worth):
            return
        # Before it is due, a message of a lane with a rate would only use up permits.
        self._bring_back_first(lane, ours, room, inf if lane.limit is None else now_ms + 1)

    def _bring_back_first(
        self, lane: Lane, ours: dict[Session, Parked], room: int, to: float
    ) -> None:
        """Bring back the earliest `room` messages with a score below `to`."""
        back: dict[Session, list[str]] = {}
        firsts = ((p.first, session) for session, p in ours.items() if len(p))
        heads = [(first, n, session) for n, (first, session) in enumerate(firsts) if first < to]
        heapq.heapify(heads)
        while heads and room > 0:
            _, n, session = heapq.heappop(heads)
            parked = lane.parked[session]
            back.setdefault(session, []).extend(parked.take(1))
            room -= 1
            if len(parked) and parked.first < to:
                heapq.heappush(heads, (parked.first, n, session))
        for session, ids in back.items():
            self._bring_back(lane, session, ids)

    def _bring_back(self, lane: Lane, session: Session, ids: list[str] | None) -> None:
        session.exits.unpark(ids)
        lane.parked[session].is_returning = True
        self._returning.append((lane, session))

    def _end_returns(self) -> None:
        """Messages that are back in `due` are claimed like all others: forget they were parked."""
        under_way = []
        for lane, session in self._returning:
            if session.exits.is_unparking or (lane.is_slow and session.next_score == -inf):
                under_way.append((lane, session))
            elif lane.parked[session].is_empty:
                del lane.parked[session]
            else:
                lane.parked[session].is_returning = False
        self._returning = under_way

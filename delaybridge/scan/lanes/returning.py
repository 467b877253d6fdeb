"""Parked messages come back when the way is free: which, how many at a time, in what order.

They go back to `due`, and the next claim finds them in order. Of very many, the worker knows the
earliest ids only; the next ones are read a page at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from delaybridge.message import State
from delaybridge.scan.lanes.lane import Copy, Lane, Window
from delaybridge.scan.lanes.parked import Parked
from delaybridge.scan.lanes.parking import Parking
from delaybridge.scan.lanes.routing import Routing
from delaybridge.scan.leases.bucket_calls import BucketCalls, Settling
from delaybridge.scan.leases.exits import ExitReport
from delaybridge.scan.leases.session import Session
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.protocol.record import ORPHAN_SCORE

_PROBES = 5  # messages that may pass while a circuit is probed
_PAGE = 1000  # parked messages that are read at once: about five milliseconds of Redis

Remove = Callable[[Callable[[Copy], bool]], list[Copy]]


class NextPage(NamedTuple):
    """Parked messages of a session that are to be read, after this one.

    lanes: they lack ids. What the first of them knows ends earliest: the page begins there.
    """

    session: Session
    lanes: Sequence[Lane]
    after: tuple[float, str]


class Returning:
    """Brings parked messages back.

    changed: brokers and families whose messages must be routed again. lacking: session -> lanes
    that are to know more ids of it; the session that has waited longest comes first.
    """

    def __init__(self, window: Window, routing: Routing, parking: Parking) -> None:
        self._window, self._routing, self._parking = window, routing, parking
        self.lacking: dict[Session, dict[Lane, None]] = {}
        self._under_way: list[tuple[Lane, Session]] = []
        self.changed: set[str] = set()

    def routes_changed(self, names: set[str]) -> None:
        """Messages of these brokers, exchanges or topics must be routed again."""
        self.changed |= names

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
                self._parking.park(copy)
        for (lane, session), most in ways.items():
            self._bring_back(lane, session, lane.parked[session].take_earliest(most))

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

    def _empty_left(self, remove: Remove) -> None:
        """Bring back the messages whose routes changed, parked or on the wheel."""
        if self.changed:
            changed, self.changed = self.changed, set()
            for copy in remove(lambda c: c.lane.name in changed or c.lane.family in changed):
                self._parking.park(copy)
        for lane in [lane for lane in self._parking.troubled if lane.is_left]:
            for session, parked in lane.parked.items():
                if not parked.is_returning:
                    self._bring_back(lane, session, parked.take_all())
            if not lane.parked:
                del self._parking.troubled[lane]

    def _ways(self, now_ms: int) -> dict[tuple[Lane, Session], int | None]:
        """(lane, session) whose messages may come back -> how many, None: all."""
        ways: dict[tuple[Lane, Session], int | None] = {}
        self._parking.share_bound()
        for lane in [lane for lane in self._parking.troubled if not lane.is_cut_off]:
            self._look_for_lack(lane)
            most = None
            if lane.circuit.is_open:
                most = self._probes(lane, now_ms)
                if not most:
                    continue
            elif lane.flow.is_stalled(now_ms):
                continue
            elif not lane.parked:
                del self._parking.troubled[lane]
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
        lacks = parked is not None and parked.lacks_page(self._parking.bound)
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
            back.setdefault(session, []).extend(parked.take_earliest(1))
            room -= 1
            if len(parked) and parked.first < to:
                heapq.heappush(heads, (parked.first, n, session))
        for session, ids in back.items():
            self._bring_back(lane, session, ids)

    def _bring_back(self, lane: Lane, session: Session, ids: list[str] | None) -> None:
        session.exits.unpark(ids)
        lane.parked[session].is_returning = True
        self._under_way.append((lane, session))

    def _end_returns(self) -> None:
        """Messages that are back in `due` are claimed like all others: forget they were parked."""
        under_way = []
        for lane, session in self._under_way:
            if session.exits.is_unparking or (lane.is_slow and session.next_score == -inf):
                under_way.append((lane, session))
            elif lane.parked[session].is_empty:
                del lane.parked[session]
            else:
                lane.parked[session].is_returning = False
        self._under_way = under_way

    def session_over(self, session: Session) -> None:
        """Forget the session's parked messages: the bucket's next session brings them back."""
        for lane in self._parking.troubled:
            lane.parked.pop(session, None)
        self.lacking.pop(session, None)
        self._under_way = [way for way in self._under_way if way[1] is not session]

    # pages of ids

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

    def add_page(self, page: NextPage, found: BoundSlice, now_ms: int) -> None:
        """The page that was read: each of its lanes remembers its own messages.

        One whose record cannot be read any more goes back with the first lane's, and is buried.
        """
        names = {to for _, _, to in found.messages}
        route = self._routing.route
        routed = {to: route(to, now_ms)[1] if to else page.lanes[0] for to in names}
        ours: dict[Lane, list[tuple[float, str]]] = {lane: [] for lane in routed.values()}
        ids = [(score, id.decode(errors="replace")) for score, id, _ in found.messages]
        for one, (_, _, to) in zip(ids, found.messages, strict=True):
            ours[routed[to]].append(one)
        for lane in page.lanes:
            parked = lane.parked.get(page.session)
            if parked is None:
                continue
            end = ids[-1] if found.more else None
            parked.add_page(ours.get(lane, ()), end, self._parking.bound)
            if parked.is_empty and not parked.is_returning:  # all others were cancelled
                del lane.parked[page.session]


class Paging:
    """Reads the next page of a bucket whose messages are coming back. One at a time."""

    def __init__(self, returning: Returning, calls: BucketCalls, settling: Settling) -> None:
        self._returning, self._calls, self._settling = returning, calls, settling
        self._is_under_way = False

    def start(self) -> None:
        """Read a page, if one is lacking."""
        if self._is_under_way:
            return
        page = self._returning.begin_page()
        if page is not None:
            self._is_under_way = True
            self._calls.start(self._read(page, page.session.exits.take_report()))

    async def _read(self, page: NextPage, report: ExitReport) -> None:
        session = page.session
        read = bound(
            session.bucket, State.PARKED, limit=_PAGE, after=page.after, high=ORPHAN_SCORE - 1
        )
        answers = await self._calls.ask({session: [*report.commands, read]})
        self._is_under_way = False
        self._settling.answered(answers, {session: report})
        if session in answers:
            found: BoundSlice = answers[session][-1]
            self._returning.add_page(page, found, self._calls.clock.now_ms())

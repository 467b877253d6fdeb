"""Parked messages: set aside, in order and without counting an attempt, until the way is free.

A lane whose broker is away, whose circuit is open, or that is too slow for what is due parks its
messages. They go back to due when it takes messages again; to a slow lane, as many at a time as it
has room for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf

from delaybridge.scan.copy import Copy
from delaybridge.scan.lane import Lane
from delaybridge.scan.parked import Parked
from delaybridge.scan.session import Session
from delaybridge.scan.window import Window

_PROBES = 5  # messages that may pass while a circuit is probed

Remove = Callable[[Callable[[Copy], bool]], list[Copy]]


class Parking:
    """Parks copies of lanes, and brings messages back. troubled: lanes with a circuit open, or
    with messages parked.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self.troubled: dict[Lane, None] = {}
        self._returning: list[tuple[Lane, Session]] = []
        self._changed: set[str] = set()  # brokers whose messages are to be routed again

    def park(self, copy: Copy) -> None:
        """Set it aside behind what its session parked of the lane before."""
        lane, session = copy.lane, copy.session
        session.exits.park(copy.item)
        if not session.alive:
            return  # what a dead session parked is for the next one to bring back
        self.troubled[lane] = None
        parked = lane.parked.get(session)
        if parked is None:
            parked = lane.parked[session] = Parked()
        parked.add(copy)

    def brokers_changed(self, names: set[str]) -> None:
        """Messages of these brokers are to be routed again."""
        self._changed |= names

    @property
    def is_returning(self) -> bool:
        """Whether parked messages are on their way back to due, or will be at once."""
        lanes = (lane for lane in self.troubled if lane.parked)
        return any(lane.is_left or not lane.is_shut for lane in lanes)

    def recover(self, now_ms: int, remove: Remove) -> None:
        """Let a handful pass where a circuit's time has come, and all where the way is free.

        What is parked goes back to due, and with it what waits on the wheel of the same lane and
        session: the next claim finds them all, in order. remove: takes such copies off the wheel.
        To be called while no claim is under way; none is made until all are back.
        """
        self._end_returns()
        self._empty_left(remove)
        ways = self._ways(now_ms)
        if ways:
            for copy in remove(lambda copy: (copy.lane, copy.session) in ways):
                self.park(copy)
        for (lane, session), most in ways.items():
            self._bring_back(lane, session, lane.parked[session].take(most))

    def session_over(self, session: Session) -> None:
        """What it parked is for the next session to bring back."""
        for lane in self.troubled:
            lane.parked.pop(session, None)
        self._returning = [way for way in self._returning if way[1] is not session]

    def _empty_left(self, remove: Remove) -> None:
        """Bring back what waits for brokers that changed, parked or on the wheel."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for copy in remove(lambda copy: copy.lane.name in changed):
                self.park(copy)
        for lane in [lane for lane in self.troubled if lane.is_left]:
            for session, parked in lane.parked.items():
                if not parked.is_returning:
                    self._bring_back(lane, session, parked.take(None))
            if not lane.parked:
                del self.troubled[lane]

    def _ways(self, now_ms: int) -> dict[tuple[Lane, Session], int | None]:
        """Where parked messages may come back, and how many; None: all."""
        ways: dict[tuple[Lane, Session], int | None] = {}
        for lane in list(self.troubled):
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
                del self.troubled[lane]
                lane.is_slow = False
            elif lane.is_slow:
                self._bring_back_some(lane)
                continue
            ways |= {(lane, s): most for s, p in lane.parked.items() if not p.is_returning}
        return ways

    def _bring_back_some(self, lane: Lane) -> None:
        """To a slow lane: as many of the earliest as it has room for, once that is worth a call."""
        room = self._window.room(lane)
        # What a draining session parked is for the next one to bring back.
        ours = {session: p for session, p in lane.parked.items() if not session.draining}
        is_busy = lane in self._window.ripe or any(p.is_returning for p in ours.values())
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
        session.exits.unpark(ids)
        lane.parked[session].is_returning = True
        self._returning.append((lane, session))

    def _end_returns(self) -> None:
        """What is back in due is claimed like anything else."""
        under_way = []
        for lane, session in self._returning:
            if session.exits.is_unparking or (lane.is_slow and session.next_score == -inf):
                under_way.append((lane, session))
            elif lane.parked[session].is_empty:
                del lane.parked[session]
            else:
                lane.parked[session].is_returning = False
        self._returning = under_way

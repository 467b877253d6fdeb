"""The window: how many messages may be in flight to all brokers, and each lane's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from delaybridge.scan.lanes.copy import Copy, by_lane
from delaybridge.scan.lanes.lane import Lane

PATIENCE_MS = 50  # a full lane that would hold up others for longer has its ripe copies parked
_LONG_PATIENCE_MS = 10_000  # if no other lane waits; a message for one may still be unclaimed
_lane_of = attrgetter("lane")


class Window:
    """Counts messages admitted to the lanes. unconfirmed: those that brokers have."""

    def __init__(self, messages: int, bytes: int) -> None:
        self.messages, self.bytes = messages, bytes
        self.load = self.load_bytes = self.unconfirmed = 0
        self.ripe: Counter[Lane] = Counter()  # number of copies that wait for room to be fired

    def admit(self, lane: Lane, size: int, *, may_wait: bool) -> bool:
        """Count one more message in a lane; False if it must wait for room there."""
        if may_wait and self.is_full(lane):
            return False
        lane.load += 1
        lane.load_bytes += size
        self.load += 1
        self.load_bytes += size
        return True

    def free(self, lane: Lane, copies: Sequence[Copy]) -> None:
        """Free the room of admitted copies: they have an outcome, or will not be published."""
        count, size = len(copies), sum([copy.size for copy in copies])
        lane.load -= count
        lane.load_bytes -= size
        self.load -= count
        self.load_bytes -= size

    def withdraw(self, copies: Sequence[Copy]) -> None:
        """Free the room and the permits of admitted copies that will not be published."""
        for lane, ours in by_lane(copies):
            self.free(lane, ours)
            if lane.limit is not None:
                lane.limit.permits += len(ours)

    def is_full(self, lane: Lane) -> bool:
        """Whether the lane may hold no more for now.

        A lane may hold as much as is free (dynamic thresholds, Choudhury & Hahne 1998): alone it
        gets half of the window, and no number of stuck lanes can take all of it.
        """
        load = lane.load  # this runs for each message
        return (
            load >= lane.flow.limit
            or load >= self.messages - self.load
            or (load > 0 and lane.load_bytes >= self.bytes - self.load_bytes)
        )

    def room(self, lane: Lane) -> int:
        """Messages that the lane may take at once: as many as it confirms soon, and its share.

        Each message taken makes the free part smaller too, hence half. Bytes count as messages of
        the average size of those in the lane.
        """
        free = self.messages - self.load - lane.load
        if lane.load_bytes > 0:
            free_bytes = self.bytes - self.load_bytes - lane.load_bytes
            free = min(free, free_bytes * lane.load // lane.load_bytes)
        return min(lane.flow.limit - lane.load, (free + 1) // 2)

    def has_room(self, lane: Lane) -> bool:
        """Whether a lane may take an eighth of what it holds, or others must not wait for that."""
        room = self.room(lane)
        return len(self.ripe) > 1 or (room > 0 and 8 * room >= lane.load)

    def is_in_the_way(self, lane: Lane, now_ms: int) -> bool:
        """Whether the full lane's ripe copies would hold up those behind them for too long."""
        if lane.flow.is_stalled(now_ms):
            return True
        others = any(other is not lane and not self.is_full(other) for other in self.ripe)
        patience_ms = PATIENCE_MS if others else _LONG_PATIENCE_MS
        return lane.flow.clear_ms(self.ripe[lane], now_ms, patient=not others) > patience_ms

    def ripened(self, copies: Sequence[Copy]) -> None:
        """These copies wait to be fired."""
        self.ripe.update(map(_lane_of, copies))

    def unripened(self, copies: Sequence[Copy]) -> None:
        """These copies wait to be fired no more."""
        for lane, count in Counter(map(_lane_of, copies)).items():
            self.ripe[lane] -= count
            if self.ripe[lane] <= 0:
                del self.ripe[lane]

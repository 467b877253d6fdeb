"""What a bucket's earlier sessions left: messages in the mirror, and parked ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from delaybridge.message import State
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.leases.session import Session
from delaybridge.store.messages.destinations_of_state import BoundSlice, bound
from delaybridge.store.namespace import orphans
from delaybridge.store.protocol.command import RedisCommand
from delaybridge.store.protocol.record import ORPHANED
from delaybridge.store.protocol.replies import Reclaimed


class Inherited:
    """Goes through it for a new session, which may claim once `is_done`.

    Messages in the mirror go back to `due`. Parked ones are read in order, a slice at a time. Those
    whose lane would park them again stay, and are known from then on as if this session had parked
    them; all others go back. moved, fired: messages that were in the mirror;
    destinations: the moved ones by lane. What was parked for an operator stays, unknown.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.moved = self.fired = 0
        self.destinations: Counter[str] = Counter()
        self.is_done = False
        self._after: tuple[float, bytes] | None = None
        self._back: list[bytes] = []

    def commands(self, limit: int) -> list[RedisCommand[Any]]:
        """The next step. limit: parked messages to read."""
        bucket, owner = self.session.bucket, self.session.owner
        back = [bucket.unpark(*owner, ids=self._back)] if self._back else []
        look = bound(bucket, State.PARKED, limit=limit, after=self._after, high=ORPHANED - 1)
        return [bucket.reclaim(*owner), *back, look, orphans.count(bucket, owner)]

    def answered(self, answers: Sequence[Any], lanes: Lanes, now_ms: int) -> None:
        """The answers to `commands`."""
        reclaimed: Reclaimed = answers[0]
        left: BoundSlice = answers[-2]
        self.session.counts = answers[-1]
        self.moved += reclaimed.moved
        self.fired += reclaimed.fired
        for text, messages in reclaimed.destinations.items():
            _, lane = lanes.route(text, now_ms)
            self.destinations[lane.label] += messages
        if left.messages:
            self._after = left.messages[-1][:2]
        self._back = lanes.inherit(self.session, left.messages, now_ms)
        self.is_done = not (reclaimed.left or left.more or self._back)

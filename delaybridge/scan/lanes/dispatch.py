"""Hand-over: fired copies that are due go to their brokers, within the window."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from delaybridge import failpoints
from delaybridge.events import Emit, FireAllowed
from delaybridge.scan.lanes.copy import Copy, DeadLetter, by_lane
from delaybridge.scan.lanes.lane import Lane
from delaybridge.scan.lanes.parking import Parking
from delaybridge.scan.lanes.spans import PublishSpans
from delaybridge.scan.lanes.window import Window


class Dispatch:
    """Hands the ready copies of each lane to its publisher when there is room."""

    def __init__(
        self, window: Window, parking: Parking, emit: Emit, spans: PublishSpans | None
    ) -> None:
        """spans: None if the worker does not trace."""
        self._window, self._parking, self._emit, self._spans = window, parking, emit, spans
        self._ready: dict[Lane, deque[Copy]] = {}  # fired and due; no lane is empty
        self._recalled: Counter[str] = Counter()  # copies taken back, by their lanes' labels

    def ready(self, copies: Sequence[Copy]) -> None:
        """The copies are fired and due: publish them when there is room."""
        fired: dict[str, int] = {}
        for lane, ours in by_lane(copies):
            self._queue(lane).extend(ours)
            fired[lane.label] = fired.get(lane.label, 0) + len(ours)
        if self._recalled:  # they were counted before
            again = Counter(fired)
            fired, self._recalled = again - self._recalled, self._recalled - again
        if fired:
            self._emit(FireAllowed(messages=sum(fired.values()), destinations=fired))

    def _queue(self, lane: Lane) -> deque[Copy]:
        if (queue := self._ready.get(lane)) is None:
            queue = self._ready[lane] = deque()
        return queue

    def publish(self, now_ms: int) -> None:
        """Hand ready copies to the brokers, within the window."""
        for lane, queue in list(self._ready.items()):
            room = self._window.messages - self._window.unconfirmed
            if room <= 0:
                return
            room = min(room, max(0, lane.flow.limit - lane.flow.in_flight))
            batch = [queue.popleft() for _ in range(min(room, len(queue)))]
            if not queue:
                del self._ready[lane]
            self._hand_over(lane, batch, now_ms)

    def _hand_over(self, lane: Lane, batch: list[Copy], now_ms: int) -> None:
        ours = [copy for copy in batch if copy.session.alive]
        if len(ours) < len(batch):
            self._window.withdraw([copy for copy in batch if not copy.session.alive])
        if lane.refusals and any(copy.refusals < lane.refusals for copy in ours):
            ours = self._not_behind_refused(lane, ours)
        if not ours or lane.publisher is None:
            return
        lane.flow.handed_over(len(ours), now_ms, lane.load)
        self._window.unconfirmed += len(ours)
        if self._spans is None:
            lane.publisher.publish(ours)
        else:
            self._spans.publish(lane, ours)
        failpoints.reach("publish.after_write")

    def _not_behind_refused(self, lane: Lane, copies: Sequence[Copy]) -> list[Copy]:
        """Park copies fired before the broker refused earlier ones, which they would overtake."""
        ours = []
        for copy in copies:
            must_go = copy.record.at_most_once or isinstance(copy, DeadLetter)
            if copy.refusals == lane.refusals or must_go:
                ours.append(copy)
            else:
                self._window.withdraw([copy])
                self._parking.park(copy)
        return ours

    def send(self, letter: DeadLetter) -> None:
        """Publish a letter after what is ready in its lane; it is admitted without room."""
        lane = letter.lane
        self._window.admit(lane, letter.size, may_wait=False)
        if lane.limit is not None:
            lane.limit.permits -= 1  # it cannot wait, so the next messages do
        if lane.probes:
            lane.probes -= 1
        letter.refusals = lane.refusals
        self._queue(lane).append(letter)

    def recall(self) -> list[Copy]:
        """Take back the ready copies: the clock was set back, so they may not be due any more.

        Dead letters stay: their messages were due, and published, before.
        """
        taken = []
        for lane, queue in list(self._ready.items()):
            ours = [copy for copy in queue if not isinstance(copy, DeadLetter)]
            taken += ours
            self._recalled[lane.label] += len(ours)
            letters = deque[Copy](copy for copy in queue if isinstance(copy, DeadLetter))
            if letters:
                self._ready[lane] = letters
            else:
                del self._ready[lane]
        return taken

    @property
    def may_go_on(self) -> bool:
        """Whether ready copies wait in a lane whose broker may be given more."""
        return any(lane.flow.has_room for lane in self._ready)

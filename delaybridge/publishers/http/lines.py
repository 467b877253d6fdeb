"""Which message of which path is posted next, so that a path that hangs holds up no other. No I/O.

Each path has a line of its own. A free connection goes to the path that has the fewest, within
these bounds, of which each keeps connections free for others:

- No path has more than a quarter while another one waits, nor while it answers nothing for a
  second.
- The last eighth is for paths that have none, unless there is no other path.
- A path is silent once a POST ended without an answer, and nothing else was answered meanwhile. It
  has one connection until it answers again, and all silent paths together have a quarter.
- A path is slow if its last answer took more than a second, and late if it was quick, but has
  answered nothing for as long. It gets one more only while all that are not quick, or late, hold
  less than three quarters, unless there is no other path.
- A new path gets its first one while those that never were quick hold less than seven eighths, more
  while all that are not quick, or late, hold less than a quarter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import Enum
from math import inf

from delaybridge.message import Delivery

MOST_LINES = 256  # of one path each; paths beyond share a line, until others have nothing to do
SLOW_S = 1.0  # an answer that takes longer is slow; a path without one for longer is late


class LineState(Enum):
    """What is known of a line, by the last POST that ended."""

    NEW = "new"  # none was answered yet
    QUICK = "quick"  # it was answered soon, whatever the answer
    SLOW = "slow"  # it was answered, but not soon
    SILENT = "silent"  # it was not answered, nor was another one meanwhile


class PathLine:
    """The messages of one path.

    ready: those that may be posted now. under_way: the number of POSTs. answered_s: when the last
    answer came. moved_s: the same, or when a POST began with none under way.
    """

    def __init__(self) -> None:
        self.ready: deque[Delivery] = deque()
        self.under_way = 0
        self.state = LineState.NEW
        self.answered_s = self.moved_s = -inf
        # A key is here while a message of it is ready or under way; the others of the key wait.
        self._behind: dict[tuple[str, bytes], deque[Delivery]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it has no message."""
        return not (self.ready or self.under_way)

    def is_late(self, now_s: float) -> bool:
        """Whether it was quick, but answers nothing any more."""
        is_quick = self.state is LineState.QUICK
        return is_quick and self.under_way > 0 and now_s - self.moved_s > SLOW_S

    def add(self, delivery: Delivery) -> None:
        """Queue it; behind an earlier one of its key and path, if there is one."""
        key = delivery.record.key
        if key is not None:
            of_key = path_of(delivery), key
            if (behind := self._behind.get(of_key)) is not None:
                behind.append(delivery)
                return
            self._behind[of_key] = deque()
        self.ready.append(delivery)

    def ended(self, delivery: Delivery) -> None:
        """A POST has its outcome: the next message of its key may go."""
        self.under_way -= 1
        self._go_on(delivery)

    def _go_on(self, delivery: Delivery) -> None:
        """This one is neither ready nor under way any more."""
        if (key := delivery.record.key) is not None:
            of_key = path_of(delivery), key
            if behind := self._behind[of_key]:
                self.ready.appendleft(behind.popleft())
            else:
                del self._behind[of_key]

    def take_waiting(self, path: str | None) -> list[Delivery]:
        """Remove and return the messages of a path (None: all) that are not under way, in order.

        Those of a path stay if they may be delivered once at most: the store has them no more.
        """

        def may_go(one: Delivery) -> bool:
            return path is None or (path == path_of(one) and not one.record.at_most_once)

        was_ready, self.ready = _split(self.ready, may_go)
        taken = [*was_ready]
        for of_key, behind in self._behind.items():
            ours, self._behind[of_key] = _split(behind, may_go)
            taken += ours
        for one in was_ready:
            self._go_on(one)
        return taken


class Lines:
    """All messages for one host that have no outcome. under_way: the number of POSTs."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._quarter = max(1, connections // 4)
        self._three_quarters = max(1, connections - self._quarter)
        self._seven_eighths = connections - connections // 8
        self._by_path: dict[str, PathLine] = {}
        self._shared = PathLine()
        self._sharing: Counter[str] = Counter()  # messages in the shared line
        self._idle: dict[str, None] = {}  # paths whose line may be given up, the oldest first
        self._waiting: dict[PathLine, None] = {}  # lines with ready messages, by turn
        self._busy: dict[PathLine, None] = {}  # lines with a POST under way
        self._held = dict.fromkeys(LineState, 0)  # connections
        self.under_way = 0

    @property
    def is_idle(self) -> bool:
        """Whether every message has its outcome."""
        return not (self.under_way or self._waiting)

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Queue them behind those of the same path."""
        for delivery in deliveries:
            line = self._line(path_of(delivery))
            line.add(delivery)
            if line.ready:
                self._waiting.setdefault(line)

    def next(self, now_s: float) -> tuple[PathLine, Delivery] | None:
        """Take the message to post now; None if there is none, or no connection for it.

        Call `ended` when it has its outcome.
        """
        best: PathLine | None = None
        if self._waiting and self.under_way < self._connections:
            late = sum(line.under_way for line in self._busy if line.is_late(now_s))
            for line in self._waiting:
                is_first = best is None or line.under_way < best.under_way
                if is_first and self._may_go(line, late, now_s):
                    best = line
        if best is None:
            return None
        del self._waiting[best]
        delivery = best.ready.popleft()
        if best.ready:
            self._waiting[best] = None  # the last one in turn
        if best.under_way == 0:
            best.moved_s = now_s
            self._busy[best] = None
        best.under_way += 1
        self.under_way += 1
        self._held[best.state] += 1
        return best, delivery

    def answered(self, line: PathLine, since_s: float, now_s: float) -> None:
        """One of its POSTs, which began at `since_s`, was answered."""
        line.answered_s = line.moved_s = now_s
        self._becomes(line, LineState.SLOW if now_s - since_s > SLOW_S else LineState.QUICK)

    def unanswered(self, line: PathLine, since_s: float) -> bool:
        """One of its POSTs was not. True: nor was any other of its path since it began."""
        is_silent = line.answered_s < since_s
        if is_silent:
            self._becomes(line, LineState.SILENT)
        return is_silent or line is self._shared  # there, the answers may be to other paths

    def ended(self, line: PathLine, delivery: Delivery) -> None:
        """A POST has its outcome."""
        line.ended(delivery)
        if line.under_way == 0:
            del self._busy[line]
        self.under_way -= 1
        self._held[line.state] -= 1
        self._left(line, [delivery])

    def take_waiting(self, line: PathLine, path: str) -> list[Delivery]:
        """Remove and return the messages of a path that are not under way, in order."""
        taken = line.take_waiting(path)
        self._left(line, taken)
        return taken

    def take_all(self) -> list[Delivery]:
        """Remove and return all messages that are not under way, in order for each path."""
        taken = []
        for line in [self._shared, *self._by_path.values()]:
            ours = line.take_waiting(None)
            self._left(line, ours)
            taken += ours
        return taken

    def _left(self, line: PathLine, deliveries: Iterable[Delivery]) -> None:
        """These messages are not in the line any more."""
        if line.ready:
            self._waiting.setdefault(line)
        else:
            self._waiting.pop(line, None)
        for delivery in deliveries:
            path = path_of(delivery)
            if line is not self._shared:
                if line.is_idle:
                    self._idle[path] = None
            elif self._sharing[path] > 1:
                self._sharing[path] -= 1
            else:
                del self._sharing[path]

    def _line(self, path: str) -> PathLine:
        line = self._by_path.get(path)
        if line is not None:
            self._idle.pop(path, None)
        elif path not in self._sharing and self._has_room():
            line = self._by_path[path] = PathLine()
        else:  # it stays there until it has no message: its keys keep their order
            self._sharing[path] += 1
            line = self._shared
        return line

    def _has_room(self) -> bool:
        if len(self._by_path) >= MOST_LINES:
            if not self._idle:
                return False
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._by_path[oldest]
        return True

    def _may_go(self, line: PathLine, late: int, now_s: float) -> bool:
        is_only = len(self._by_path) == 1
        if line.under_way and self.under_way >= self._seven_eighths and not is_only:
            return False
        never_quick = self.under_way - self._held[LineState.QUICK]
        if line.under_way == 0 and line.state is LineState.NEW:
            return never_quick < self._seven_eighths
        doubtful = never_quick + late
        if line.state is LineState.SILENT:
            few = line.under_way == 0 and self._held[LineState.SILENT] < self._quarter
            return few and doubtful < self._seven_eighths
        if line.state is LineState.NEW:
            return doubtful < self._quarter
        if line.under_way >= self._quarter and not self._may_exceed(line, now_s):
            return False
        is_quick = line.state is LineState.QUICK and not line.is_late(now_s)
        return is_quick or is_only or doubtful < self._three_quarters

    def _may_exceed(self, line: PathLine, now_s: float) -> bool:
        """Whether it may have more than a quarter: it answers now, and no other one waits."""
        if now_s - line.answered_s > SLOW_S:
            return False
        return all(other is line or other.state is LineState.SILENT for other in self._waiting)

    def _becomes(self, line: PathLine, state: LineState) -> None:
        self._held[line.state] -= line.under_way
        line.state = state
        self._held[state] += line.under_way


def _split(
    messages: deque[Delivery], which: Callable[[Delivery], bool]
) -> tuple[list[Delivery], deque[Delivery]]:
    """Those that are meant, and the others."""
    return [one for one in messages if which(one)], deque(x for x in messages if not which(x))


def path_of(delivery: Delivery) -> str:
    """The path of its address, without the query: queries are unbounded."""
    return delivery.destination.address.partition("?")[0]

"""The observations of a run of the demo, and the result: is every message accounted for?

No I/O. Redis and the consumer share this machine's clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from delaybridge.message import Answer

POISON = "demo.poison"  # the one message that cannot be delivered
_NAMED = 3  # ids shown per fault


@dataclass(slots=True)
class Scheduled:
    """An accepted message. due_ms: the store's latest answer. cancelled: the answer to a cancel."""

    id: str
    bucket: int
    due_ms: int
    cancelled: Answer | None = None
    rescheduled: bool = False
    has_arrived: bool = False


class Received(NamedTuple):
    """One message as the consumer received it."""

    id: str
    due_ms: int
    attempt: int
    at_us: int


class Takeover(NamedTuple):
    """A worker took a bucket. fired: messages its last owner may have published, unsettled."""

    at_ms: int
    worker: str
    bucket: int
    reclaimed: int
    fired: int


@dataclass(slots=True)
class Story:
    """Everything that was observed in a run.

    defects: log messages of workers that reveal a bug. orphans: the buckets of the killed worker.
    """

    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    deliveries: list[Received] = field(default_factory=list)
    takeovers: list[Takeover] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    killed_ms: float = math.inf
    orphans: frozenset[int] = frozenset()

    def taken(self) -> list[Takeover]:
        """The first takeover of each of the killed worker's buckets, in order of their numbers."""
        first: dict[int, Takeover] = {}
        for takeover in self.takeovers:
            if takeover.bucket in self.orphans and takeover.at_ms >= self.killed_ms:
                first.setdefault(takeover.bucket, takeover)
        return [first[bucket] for bucket in sorted(first)]

    def missing(self) -> list[Scheduled]:
        """The messages that are still to arrive."""
        return [
            message
            for message in self.scheduled.values()
            if not message.has_arrived and message.cancelled is None and message.id not in self.dead
        ]


class RunResult:
    """Every scheduled message compared with every one received.

    The counts and lists of ids for people; steady_ms, takeover_ms: lateness in ms, sorted, of
    messages that did not and that did wait for the next owner of the killed worker's buckets.
    """

    def __init__(self, story: Story) -> None:
        copies: dict[str, list[Received]] = defaultdict(list)
        for delivery in sorted(story.deliveries, key=lambda d: d.at_us):
            copies[delivery.id].append(delivery)
        messages = story.scheduled
        cancelled = {id: p.cancelled for id, p in messages.items() if p.cancelled is not None}
        owed = messages.keys() - cancelled.keys() - {*story.dead}
        self.scheduled, self.cancelled, self.published = len(messages), len(cancelled), len(owed)
        self.rescheduled = sum(p.rescheduled for p in messages.values())
        self.received = len(owed & copies.keys())
        self.dead, self.defects = sorted(story.dead), story.defects
        self.lost = sorted(owed - copies.keys())
        self.after_cancel = [id for id in copies if cancelled.get(id) is Answer.CANCELLED]
        self.duplicates = [copy.id for found in copies.values() for copy in found[1:]]
        self.after_kill, self.unexplained = _repeats(story, copies.values())
        expected = messages.keys() - {POISON}
        self.unexpected = sorted({*self.dead} ^ {POISON} | copies.keys() - expected)
        self._judge_times(story, [copies[id][0] for id in messages if id in copies])

    def _judge_times(self, story: Story, firsts: list[Received]) -> None:
        """firsts: the first copy of each message."""
        self.early: list[str] = []
        self.steady_ms: list[float] = []
        self.takeover_ms: list[float] = []
        for first in firsts:
            message, at_ms = story.scheduled[first.id], first.at_us / 1000
            # Earlier than its header says, or than the answer to the last reschedule.
            if at_ms < max(message.due_ms, first.due_ms):
                self.early.append(first.id)
            of_its_kind = self.takeover_ms if _waited(story, message, first) else self.steady_ms
            of_its_kind.append(at_ms - message.due_ms)
        self.steady_ms.sort()
        self.takeover_ms.sort()

    def faults(self) -> list[str]:
        """Why the run failed; empty for a PASS."""
        kinds = {
            "lost": self.lost,
            "early": self.early,
            "delivered after a cancelled answer": self.after_cancel,
            "delivered twice without a fault to explain it": self.unexplained,
            "dead or delivered that should not be": self.unexpected,
        }
        found = [f"{len(ids)} {what} ({_some(ids)})" for what, ids in kinds.items() if ids]
        return found + list(dict.fromkeys(self.defects))

    def lines(self) -> Iterator[str]:
        """The figures of the run, for people."""
        dead = f"dead {len(self.dead)}" + (f" ({self.dead[0]})" if self.dead else "")
        repeated, after_kill = len(self.duplicates), len(self.after_kill)
        share = "all" if after_kill == repeated else after_kill or "none"
        explained = f" ({share} after the kill)" if repeated else ""
        yield (
            f"scheduled {self.scheduled:,}  cancelled {self.cancelled}  "
            f"rescheduled {self.rescheduled}  published {self.published:,}  {dead}"
        )
        yield (
            f"received {self.received:,} of {self.published:,}  "
            f"duplicates {repeated}{explained}  early {len(self.early)}  lost {len(self.lost)}"
        )
        if self.steady_ms:
            p50, p99, most = percentiles(self.steady_ms)
            worst = [f";  during the takeover max {duration(ms)}" for ms in self.takeover_ms]
            yield f"lateness p50 {p50}  p99 {p99}  max {most}{''.join(worst[-1:])}"


def percentiles(sorted_ms: Sequence[float]) -> list[str]:
    """Median, 99th percentile and maximum: this share of the values does not exceed it."""
    ranks = [math.ceil(len(sorted_ms) * share) - 1 for share in (0.5, 0.99, 1.0)]
    return [duration(sorted_ms[rank]) for rank in ranks]


def duration(ms: float) -> str:
    """A duration in at most three digits."""
    if abs(ms) < 10:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if abs(ms) < 999.5 else f"{ms / 1000:.1f} s"


def _waited(story: Story, message: Scheduled, first: Received) -> bool:
    """Whether it waited for the next owner of its bucket."""
    taken_ms = max((takeover.at_ms for takeover in story.taken()), default=math.inf)
    is_orphan = message.bucket in story.orphans and message.due_ms <= taken_ms
    return is_orphan and first.at_us >= story.killed_ms * 1000


def _repeats(story: Story, copies: Iterable[list[Received]]) -> tuple[list[str], list[str]]:
    """Ids of second copies: those explained by the kill, and those without an explanation.

    A takeover that reclaims `fired` messages explains as many second copies in its bucket, if they
    are received after it and counted as a further attempt.
    """
    explained = Counter[int]()  # second copies by bucket
    since_ms: dict[int, float] = {}
    for takeover in story.takeovers:
        explained[takeover.bucket] += takeover.fired
        if takeover.fired:
            since_ms.setdefault(takeover.bucket, takeover.at_ms)
    after_kill, unexplained = [], []
    for copy in (copy for found in copies for copy in found[1:]):
        bucket = story.scheduled[copy.id].bucket if copy.id in story.scheduled else -1
        from_ms = since_ms.get(bucket, math.inf)
        if not explained[bucket] or copy.attempt == 1 or copy.at_us < from_ms * 1000:
            unexplained.append(copy.id)
            continue
        explained[bucket] -= 1
        if bucket in story.orphans and from_ms >= story.killed_ms:
            after_kill.append(copy.id)
    return after_kill, unexplained


def _some(ids: Iterable[str]) -> str:
    """A few of the ids, for people."""
    listed = list(dict.fromkeys(ids))
    return ", ".join(listed[:_NAMED]) + (", ..." if len(listed) > _NAMED else "")

"""The demo's judge: compares the scheduled messages with those that the consumer received.

No I/O. Redis and the consumer share this machine's clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Received:
    """One message as the consumer received it."""

    id: str
    due_ms: int
    attempt: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Takeover:
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
    killed_ms: int | None = None
    orphans: frozenset[int] = frozenset()

    def taken(self) -> list[Takeover]:
        """The first takeover of each of the killed worker's buckets."""
        if self.killed_ms is None:
            return []
        first: dict[int, Takeover] = {}
        for takeover in self.takeovers:
            if takeover.bucket in self.orphans and takeover.at_ms >= self.killed_ms:
                first.setdefault(takeover.bucket, takeover)
        return list(first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a run. Lists hold ids; lateness is in ms, sorted."""

    scheduled: int
    cancelled: int
    rescheduled: int
    published: int
    received: int
    dead: list[str]
    duplicates: list[str]
    after_kill: list[str]
    unexplained: list[str]
    early: list[str]
    lost: list[str]
    after_cancel: list[str]
    odd: list[str]
    defects: list[str]
    steady_ms: list[float]
    takeover_ms: list[float]

    def faults(self) -> list[str]:
        """Why the run failed; empty for a PASS."""
        kinds = (
            ("lost", self.lost),
            ("early", self.early),
            ("delivered after a cancelled answer", self.after_cancel),
            ("delivered twice without a fault to explain it", self.unexplained),
            ("dead or delivered that should not be", self.odd),
        )
        found = [f"{len(ids)} {what} ({_some(ids)})" for what, ids in kinds if ids]
        return found + list(dict.fromkeys(self.defects))


def judge(story: Story) -> Verdict:
    """Compare every scheduled message with every one received."""
    copies: dict[str, list[Received]] = defaultdict(list)
    for delivery in sorted(story.deliveries, key=lambda d: d.at_us):
        copies[delivery.id].append(delivery)
    scheduled = story.scheduled
    owed = {id for id, p in scheduled.items() if p.cancelled is None} - set(story.dead)
    firsts = {id: copies[id][0] for id in scheduled if id in copies}
    hit = {id for id, first in firsts.items() if _was_taken_over(story, scheduled[id], first)}
    after_kill, unexplained = _repeats(story, copies)
    late_ms = {id: first.at_us / 1000 - scheduled[id].due_ms for id, first in firsts.items()}
    return Verdict(
        scheduled=len(scheduled),
        cancelled=sum(p.cancelled is not None for p in scheduled.values()),
        rescheduled=sum(p.rescheduled for p in scheduled.values()),
        published=len(owed),
        received=len(owed & copies.keys()),
        dead=sorted(story.dead),
        duplicates=[id for id, found in copies.items() for _ in found[1:]],
        after_kill=after_kill,
        unexplained=unexplained,
        early=[id for id, first in firsts.items() if _is_early(scheduled[id], first)],
        lost=sorted(owed - copies.keys()),
        after_cancel=[
            id for id, p in scheduled.items() if p.cancelled is Answer.CANCELLED and id in copies
        ],
        odd=sorted(
            (set(story.dead) ^ {POISON})
            | (copies.keys() - scheduled.keys())
            | (copies.keys() & {POISON})
        ),
        defects=story.defects,
        steady_ms=sorted(ms for id, ms in late_ms.items() if id not in hit),
        takeover_ms=sorted(late_ms[id] for id in hit),
    )


def percentile(sorted_ms: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return sorted_ms[max(0, math.ceil(len(sorted_ms) * share) - 1)]


def _is_early(message: Scheduled, first: Received) -> bool:
    """Earlier than its header says, or than the answer to the last reschedule."""
    return first.at_us < max(message.due_ms, first.due_ms) * 1000


def _was_taken_over(story: Story, message: Scheduled, first: Received) -> bool:
    """Whether it waited for the next owner of its bucket."""
    if story.killed_ms is None or message.bucket not in story.orphans:
        return False
    taken_ms = max((takeover.at_ms for takeover in story.taken()), default=math.inf)
    return message.due_ms <= taken_ms and first.at_us >= story.killed_ms * 1000


def _repeats(story: Story, copies: Mapping[str, Sequence[Received]]) -> tuple[list[str], list[str]]:
    """Ids of second copies: those explained by the kill, and those without an explanation.

    A takeover that reclaims `fired` messages explains as many second copies in its bucket, if they
    are received after it and counted as a further attempt.
    """
    explained = Counter[int]()  # second copies by bucket
    since_ms: dict[int, int] = {}
    for takeover in story.takeovers:
        explained[takeover.bucket] += takeover.fired
        if takeover.fired:
            since_ms.setdefault(takeover.bucket, takeover.at_ms)
    killed_ms = math.inf if story.killed_ms is None else story.killed_ms
    after_kill, unexplained = [], []
    for id, copy in ((id, copy) for id, found in copies.items() for copy in found[1:]):
        bucket = story.scheduled[id].bucket if id in story.scheduled else -1
        from_ms = since_ms.get(bucket, math.inf)
        if not explained[bucket] or copy.attempt == 1 or copy.at_us < from_ms * 1000:
            unexplained.append(id)
            continue
        explained[bucket] -= 1
        if bucket in story.orphans and from_ms >= killed_ms:
            after_kill.append(id)
    return after_kill, unexplained


def _some(ids: Iterable[str]) -> str:
    """A few of the ids, for people."""
    listed = list(dict.fromkeys(ids))
    return ", ".join(listed[:_NAMED]) + (", ..." if len(listed) > _NAMED else "")

"""What was promised against what the plain consumer received: the demo's judge. Pure.

Times are this machine's, which Redis and the consumer share.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from delaybridge.message import Answer

POISON = "demo.poison"  # the one message that nobody can deliver
_NAMED = 3  # ids shown of those at fault


@dataclass(slots=True)
class Promise:
    """An accepted message. due_ms: by the store's latest answer. cancelled: what it answered."""

    id: str
    bucket: int
    due_ms: int
    cancelled: Answer | None = None
    rescheduled: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as the consumer got it."""

    id: str
    due_ms: int
    attempt: int
    at_us: int


@dataclass(frozen=True, slots=True)
class Taking:
    """A bucket's lease was taken. fired: what a dead owner may have published unsettled."""

    at_ms: int
    worker: str
    bucket: int
    reclaimed: int
    fired: int


@dataclass(slots=True)
class Story:
    """What happened, as far as anybody saw it.

    defects: what workers said of themselves that must not be. orphans: the killed one's buckets.
    """

    promises: dict[str, Promise] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    takings: list[Taking] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    killed_ms: int | None = None
    orphans: frozenset[int] = frozenset()

    def taken(self) -> list[Taking]:
        """Who took the dead worker's buckets, each for the first time."""
        if self.killed_ms is None:
            return []
        first: dict[int, Taking] = {}
        for taking in self.takings:
            if taking.bucket in self.orphans and taking.at_ms >= self.killed_ms:
                first.setdefault(taking.bucket, taking)
        return list(first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run came to. Lists hold ids; lateness is in ms, sorted."""

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
        """Why it is no PASS; empty if it is one."""
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
    """Every promise against every delivery."""
    copies: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in sorted(story.deliveries, key=lambda d: d.at_us):
        copies[delivery.id].append(delivery)
    promises = story.promises
    owed = {id for id, p in promises.items() if p.cancelled is None} - set(story.dead)
    firsts = {id: copies[id][0] for id in promises if id in copies}
    hit = {id for id, first in firsts.items() if _was_taken_over(story, promises[id], first)}
    after_kill, unexplained = _repeats(story, copies)
    late_ms = {id: first.at_us / 1000 - promises[id].due_ms for id, first in firsts.items()}
    return Verdict(
        scheduled=len(promises),
        cancelled=sum(p.cancelled is not None for p in promises.values()),
        rescheduled=sum(p.rescheduled for p in promises.values()),
        published=len(owed),
        received=len(owed & copies.keys()),
        dead=sorted(story.dead),
        duplicates=[id for id, found in copies.items() for _ in found[1:]],
        after_kill=after_kill,
        unexplained=unexplained,
        early=[id for id, first in firsts.items() if _is_early(promises[id], first)],
        lost=sorted(owed - copies.keys()),
        after_cancel=[
            id for id, p in promises.items() if p.cancelled is Answer.CANCELLED and id in copies
        ],
        odd=sorted(
            (set(story.dead) ^ {POISON})
            | (copies.keys() - promises.keys())
            | (copies.keys() & {POISON})
        ),
        defects=story.defects,
        steady_ms=sorted(ms for id, ms in late_ms.items() if id not in hit),
        takeover_ms=sorted(late_ms[id] for id in hit),
    )


def percentile(sorted_ms: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted_ms[max(0, math.ceil(len(sorted_ms) * share) - 1)]


def _is_early(promise: Promise, first: Delivery) -> bool:
    """By the header that came with it, and by what was answered to the last reschedule."""
    return first.at_us < max(promise.due_ms, first.due_ms) * 1000


def _was_taken_over(story: Story, promise: Promise, first: Delivery) -> bool:
    """Whether it had to wait for the next owner of its bucket."""
    if story.killed_ms is None or promise.bucket not in story.orphans:
        return False
    taken_ms = max((taking.at_ms for taking in story.taken()), default=math.inf)
    return promise.due_ms <= taken_ms and first.at_us >= story.killed_ms * 1000


def _repeats(story: Story, copies: Mapping[str, Sequence[Delivery]]) -> tuple[list[str], list[str]]:
    """Ids of second copies: those that the kill explains, and those that nothing explains.

    A reclaim of `fired` messages, which their last owner may have published unsettled, explains as
    many second copies in its bucket, received after it and counted as a further attempt.
    """
    room = Counter[int]()
    since_ms: dict[int, int] = {}
    for taking in story.takings:
        room[taking.bucket] += taking.fired
        if taking.fired:
            since_ms.setdefault(taking.bucket, taking.at_ms)
    after_kill, unexplained = [], []
    for id, found in copies.items():
        bucket = story.promises[id].bucket if id in story.promises else -1
        for copy in found[1:]:
            if room[bucket] and copy.attempt > 1 and copy.at_us >= since_ms[bucket] * 1000:
                room[bucket] -= 1
                if bucket in story.orphans and since_ms[bucket] >= (story.killed_ms or math.inf):
                    after_kill.append(id)
            else:
                unexplained.append(id)
    return after_kill, unexplained


def _some(ids: Iterable[str]) -> str:
    """A few of the ids, for people."""
    listed = list(dict.fromkeys(ids))
    return ", ".join(listed[:_NAMED]) + (", ..." if len(listed) > _NAMED else "")

"""Counts of one source, for `stats`, `worker ls` and `doctor`, and the events that go with them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul
from time import time_ns
from typing import cast

from delaybridge.events import ChangeRefused, Emit, IngestStored, Quarantined
from delaybridge.gathering import FIRST_CHAR
from delaybridge.histogram import DELAY_BOUNDS_MS, spread
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.message import Answer

_SMOOTHING = 0.5
_CANCELLED = frozenset((Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED))
_RESCHEDULED = frozenset((Answer.RESCHEDULED, Answer.RESCHEDULED_MAYBE_DELIVERED))
_SHOWN = (
    "source", "target", "state", "total", "quarantined", "near_misses", "refused", "without_id",
    "lag", "faults",
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """One delay exchange or delay topic, as this process sees it.

    total: messages read. quarantined: those that went to the dead set. near_misses: headers named
    almost like an instruction. refused: cancels and reschedules of messages that go where
    the source may not send. without_id: messages that may come twice if RabbitMQ delivers them
    again. lag: messages waiting at the broker, None if unknown. rate: messages per second.
    on_change: called when state or faults have changed, to be announced at once.
    """

    source: str
    target: str
    total: int = 0
    quarantined: int = 0
    near_misses: int = 0
    refused: int = 0
    without_id: int = 0
    lag: int | None = None
    rate: float = 0.0
    on_change: Callable[[], None] = lambda: None
    _seen: tuple[float, int] = (0.0, 0)
    _current: str = "starting"
    _faults: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """`reading`, or the reason why nothing is read."""
        return self._current

    @state.setter
    def state(self, state: str) -> None:
        if state != self._current:
            self._current = state
            self.on_change()

    @property
    def faults(self) -> list[str]:
        """What loses or hastens messages although the source is read, each with its remedy."""
        return [fault for found in self._faults.values() for fault in found]

    def note(self, who: str, faults: Sequence[str]) -> list[str]:
        """Replace what this look found, and return what is new in it."""
        before, self._faults[who] = self._faults.get(who, ()), faults
        if list(before) != list(faults):
            self.on_change()
        return [fault for fault in faults if fault not in before]

    def measure(self, now_s: float) -> None:
        """Update the rate; call it every few seconds."""
        then_s, then = self._seen
        if then_s:
            fresh = max(self.total - then, 0) / max(now_s - then_s, 0.001)
            self.rate = fresh if fresh == 0 else self.rate + (fresh - self.rate) * _SMOOTHING
        self._seen = now_s, self.total

    def scheduled(self, entries: Sequence[Entry], emit: Emit) -> None:
        """All of these messages are pending now: the usual case."""
        self._stored(cast(Sequence[Schedule], entries), 0, 0, emit)

    def _stored(
        self, scheduled: Sequence[Schedule], cancelled: int, rescheduled: int, emit: Emit
    ) -> None:
        delays, delay_sum_ms = delays_of(scheduled)
        emit(
            IngestStored(
                source=self.source,
                destination=self.target,
                messages=len(scheduled),
                cancelled=cancelled,
                rescheduled=rescheduled,
                delays=delays,
                delay_sum_ms=delay_sum_ms,
            )
        )

    def report(self, stored: Iterable[tuple[Entry, Answer | None]], emit: Emit) -> None:
        """Count stored entries, and log the quarantined messages and refused changes among them."""
        reasons: Counter[str] = Counter()
        scheduled: list[Schedule] = []
        refused = cancelled = rescheduled = 0
        for entry, answer in stored:
            if isinstance(entry, Quarantine):
                reasons[entry.reason] += 1
            elif isinstance(entry, Change):
                refused += answer is Answer.FOREIGN
                cancelled += answer in _CANCELLED
                rescheduled += answer in _RESCHEDULED
            else:
                scheduled.append(entry)
        if scheduled or cancelled or rescheduled:
            self._stored(scheduled, cancelled, rescheduled, emit)
        for reason, count in reasons.items():
            self.quarantined += count
            emit(Quarantined(source=self.source, messages=count, reason=reason))
        if refused:
            self.refused += refused
            emit(ChangeRefused(source=self.source, messages=refused))

    def announcement(self) -> dict[str, object]:
        """What the ingest process announces of this source."""
        return {name: getattr(self, name) for name in _SHOWN} | {"rate": round(self.rate, 1)}


def delays_of(scheduled: Sequence[Schedule]) -> tuple[dict[int, int], int]:
    """How long messages are to wait from now, as `spread` counts it, and the sum in ms.

    Cheap if many of a batch have the same delay.
    """
    whens = Counter([entry.accepted.when for entry in scheduled])
    now_ms = time_ns() // 1_000_000
    waits_ms = [_wait_ms(when, now_ms) for when in whens]
    if len(waits_ms) == len(scheduled):
        return (spread(waits_ms, DELAY_BOUNDS_MS) if waits_ms else {}), sum(waits_ms)
    counts: Counter[int] = Counter()
    for wait_ms, messages in zip(waits_ms, whens.values(), strict=True):
        counts[bisect_left(DELAY_BOUNDS_MS, wait_ms)] += messages
    return counts, sum(map(mul, waits_ms, whens.values()))


def _wait_ms(when: str, now_ms: int) -> int:
    """How long after now a message is due; of a gathering its shortest wait, if it is not now."""
    if when >= FIRST_CHAR:
        return int(when[1:].partition(":")[0])
    return int(when) if when[0] == "+" else max(0, int(when) - now_ms)

"""Counts of one source, for `stats`, `worker ls` and `doctor`, and the events that go with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from delaybridge.events import ChangeRefused, Emit, IngestStored, Quarantined
from delaybridge.ingest.entries import Change, Entry, Quarantine
from delaybridge.message import Answer

_SMOOTHING = 0.5
_CANCELLED = frozenset((Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED))
_RESCHEDULED = frozenset((Answer.RESCHEDULED, Answer.RESCHEDULED_MAYBE_DELIVERED))


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """One delay exchange or delay topic, as this process sees it.

    total: messages read. quarantined: those that went to the dead set. near_misses: headers named
    almost like an instruction. refused: cancels and reschedules of messages that go where
    the source may not send. without_id: messages that may come twice if RabbitMQ delivers them
    again. lag: messages waiting at the broker, None if unknown. state: `reading`, or why not.
    rate: messages per second.
    """

    source: str
    target: str
    state: str = "starting"
    total: int = 0
    quarantined: int = 0
    near_misses: int = 0
    refused: int = 0
    without_id: int = 0
    lag: int | None = None
    rate: float = 0.0
    _seen: tuple[float, int] = (0.0, 0)

    def measure(self, now_s: float) -> None:
        """Update the rate; call it every few seconds."""
        then_s, then = self._seen
        if then_s:
            fresh = (self.total - then) / max(now_s - then_s, 0.001)
            self.rate = fresh if fresh == 0 else self.rate + (fresh - self.rate) * _SMOOTHING
        self._seen = now_s, self.total

    def scheduled(self, messages: int, emit: Emit) -> None:
        """All of these messages are pending now: the usual case."""
        emit(IngestStored(source=self.source, destination=self.target, messages=messages))

    def report(self, stored: Iterable[tuple[Entry, Answer | None]], emit: Emit) -> None:
        """Count stored entries, and log the quarantined messages and refused changes among them."""
        reasons: Counter[str] = Counter()
        refused = scheduled = cancelled = rescheduled = 0
        for entry, answer in stored:
            if isinstance(entry, Quarantine):
                reasons[entry.reason] += 1
            elif isinstance(entry, Change):
                refused += answer is Answer.FOREIGN
                cancelled += answer in _CANCELLED
                rescheduled += answer in _RESCHEDULED
            else:
                scheduled += 1
        if scheduled or cancelled or rescheduled:
            emit(
                IngestStored(
                    source=self.source,
                    destination=self.target,
                    messages=scheduled,
                    cancelled=cancelled,
                    rescheduled=rescheduled,
                )
            )
        for reason, count in reasons.items():
            self.quarantined += count
            emit(Quarantined(source=self.source, messages=count, reason=reason))
        if refused:
            self.refused += refused
            emit(ChangeRefused(source=self.source, messages=refused))

    def shown(self) -> dict[str, object]:
        """As the ingest process announces it."""
        counts = asdict(self)
        del counts["_seen"]
        return counts | {"rate": round(self.rate, 1)}

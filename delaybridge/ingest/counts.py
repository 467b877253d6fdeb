"""What one source has brought so far, for `stats`, `worker ls` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.5


@dataclass(slots=True, kw_only=True)
class Counts:
    """One delay exchange or delay topic, as this process sees it.

    total: messages taken. quarantined: those of them in the dead set. refused: cancels and
    reschedules of messages that are bound elsewhere. without_id: messages that come twice if
    RabbitMQ delivers them again. lag: messages waiting at the broker, None if nobody knows. state:
    `reading`, or what is in the way. rate: messages a second.
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
        """Work the rate out anew; to be called every few seconds."""
        then_s, then = self._seen
        if then_s:
            fresh = (self.total - then) / max(now_s - then_s, 0.001)
            self.rate = fresh if fresh == 0 else self.rate + (fresh - self.rate) * _SMOOTHING
        self._seen = now_s, self.total

    def shown(self) -> dict[str, object]:
        """As it is announced."""
        return {
            "source": self.source,
            "target": self.target,
            "state": self.state,
            "total": self.total,
            "quarantined": self.quarantined,
            "near_misses": self.near_misses,
            "refused": self.refused,
            "without_id": self.without_id,
            "lag": self.lag,
            "rate": round(self.rate, 1),
        }

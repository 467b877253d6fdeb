"""The checker: compares the promises with the messages that plain consumers received.

As in Jepsen, a call without an answer is unknown, never a failure: the message may or may not
arrive. Times are this machine's, which Redis and the consumers share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Promise:
    """The store's answers for one id. due_ms: the time in force, by its latest answer."""

    id: str
    destination: str
    due_ms: int
    sha: str


@dataclass(frozen=True)
class Delivery:
    id: str
    due_ms: int
    attempt: int
    at_us: int
    sha: str
    mark: str | None = None  # the header x-mark
    redelivered: bool = False  # by the broker, since an acknowledgement was lost


@dataclass
class Verdict:
    """The result of a run. Every list holds ids."""

    accepted: int
    delivered: int
    lost: list[str]
    early: list[str]
    duplicates: list[str]
    changed: list[str]
    lateness_ms: list[float]  # of first deliveries, sorted

    def late(self, share: float) -> float:
        """A percentile of the lateness in ms."""
        return percentile(self.lateness_ms, share)

    def __str__(self) -> str:
        parts = [f"accepted {self.accepted}", f"delivered {self.delivered}"]
        for name in ("lost", "early", "duplicates", "changed"):
            parts.append(f"{name} {len(getattr(self, name))}")
        if self.lateness_ms:
            parts.append(
                f"lateness p50 {self.late(0.5):.2f} p99 {self.late(0.99):.2f} "
                f"max {self.lateness_ms[-1]:.1f} ms"
            )
        return "  ".join(parts)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the sorted values is; 0 if there are none."""
    return values[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def firsts(deliveries: Iterable[Delivery]) -> dict[str, Delivery]:
    """Id -> its first delivery, in the order of arrival."""
    found: dict[str, Delivery] = {}
    for each in sorted(deliveries, key=lambda delivery: delivery.at_us):
        found.setdefault(each.id, each)
    return found


def late_ms(deliveries: Iterable[Delivery], ids: Container[str]) -> list[float]:
    """How late the first delivery of each of these ids was, sorted."""
    return sorted(
        each.at_us / 1000 - each.due_ms for each in firsts(deliveries).values() if each.id in ids
    )


def read(path: Path) -> list[Delivery]:
    """The deliveries that a consumer wrote; a line cut off by a kill is left out."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(Delivery(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return found


def check(promises: dict[str, Promise], deliveries: list[Delivery], dead: set[str]) -> Verdict:
    """Compare by id. dead: ids in the dead set, which are not lost."""
    counts = Counter(delivery.id for delivery in deliveries)
    return Verdict(
        accepted=len(promises),
        delivered=sum(1 for id in promises if counts[id]),
        lost=[id for id in promises if not counts[id] and id not in dead],
        early=[d.id for d in deliveries if d.at_us < d.due_ms * 1000],
        duplicates=[id for id, n in counts.items() if n > 1],
        changed=[d.id for d in deliveries if d.id in promises and d.sha != promises[d.id].sha],
        lateness_ms=late_ms(deliveries, counts),
    )

"""The checker: folds a cell's history by id, and says of each invariant which ids break it.

As in Jepsen, a call without an answer has an unknown outcome: it may have taken effect or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rigs.history import Delivery, percentile

INVARIANTS = {
    "I1": "every accepted message is delivered, cancelled or in the dead set",
    "I2": "none is delivered before the due time in force",
    "I3": "none is delivered that was answered `cancelled`",
    "I4": "after `rescheduled`, none is delivered before the new time",
    "I5": "body and headers arrive byte for byte",
    "I6": "nothing is delivered that was not scheduled",
    "I7": "no more duplicates than stated, and none without a cause",
    "I8": "the store is consistent: each stored message is in exactly one place",
    "I9": "all is done soon after the end of the fault",
    "I10": "a worker whose lease is over changes nothing",
    "I11": "at-most-once messages are delivered at most once",
    "I12": "late news of an earlier claim change nothing",
    "I13": "no secret is in a log",
    "I14": "processes survive, or end with their documented code; no traceback in a log",
    "I15": "memory of workers is bounded",
    "I16": "other destinations are on time",
    "I17": "nothing goes out that is paused",
    "I18": "messages of a key come in the order of their due times",
    "I19": "what is pending is found: no call answers `unknown`",
}
Found = dict[str, list[str]]  # invariant -> what breaks it, ids or sentences; empty: it holds


@dataclass
class Terms:
    """What a cell allows. Times in epoch ms.

    clock: (epoch us, by how many ms the store's clock was ahead from then on). settle_ms: after
    the last fault, or after its due time, a message may take so long. slack_ms: what this machine
    may add to a time. may_lose_s: what the store
    answered so shortly before a fault, or during it, it may have forgotten. cancels_delivered: it
    may have forgotten deliveries, so that `cancelled` is only true of later ones. others:
    destinations that no fault concerns; late_ms: so much later than without a fault they may be, by
    the 99th percentile.
    """

    duplicates: int = 0
    clock: Sequence[tuple[int, int]] = ()
    settle_ms: int | None = None
    may_lose_s: float = 0.0
    cancels_delivered: bool = False
    others: Sequence[str] = ()
    late_ms: int = 1000
    slack_ms: float = 0.0
    faults: list[tuple[int, int]] = field(default_factory=list)  # from, to

    def is_forgotten(self, answered_us: int) -> bool:
        """Whether the store may have lost what it answered then."""
        return self.may_lose_s > 0 and any(
            begin - self.may_lose_s * 1000 <= answered_us / 1000 <= end
            for begin, end in self.faults
        )

    def is_calm(self, due_ms: int) -> bool:
        """Whether no fault had an effect then."""
        return not any(begin <= due_ms <= end for begin, end in self.faults)

    def latest_ms(self, at_us: int) -> float:
        """The latest time that the store's clock showed in the second before."""
        ahead = 0
        for since_us, ahead_ms in self.clock:
            if since_us <= at_us - 1_000_000:
                ahead = ahead_ms
            elif since_us <= at_us:
                ahead = max(ahead, ahead_ms)
        return at_us / 1000 + ahead


@dataclass
class Fate:
    """Everything that is known of one id."""

    id: str
    to: str = ""
    sha: str = ""
    mark: str | None = ""
    once: bool = False
    accepted_us: int = 0
    dues: list[int] = field(default_factory=list)  # the earliest that each call asked for
    key: str | None = None
    missed: list[str] = field(default_factory=list)  # calls that did not find it before it was due
    cancelled: str = ""  # the answer; "?": unknown
    cancelled_us: int = 0
    moved: list[tuple[int, int]] = field(default_factory=list)  # answered at us, new due ms
    deliveries: list[Delivery] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        return self.accepted_us > 0

    @property
    def is_owed(self) -> bool:
        """Whether it was promised to come."""
        return self.accepted and not self.cancelled and not self.once

    @property
    def again(self) -> list[Delivery]:
        """Deliveries after the first one, without those that the broker repeated."""
        seen: set[int] = set()
        distinct = [
            d for d in self.deliveries
            if not (d.redelivered and d.attempt in seen) and not seen.add(d.attempt)  # type: ignore[func-returns-value]
            or not d.redelivered
        ]  # fmt: skip
        return distinct[1:]


def fold(history: Iterable[str], deliveries: Iterable[Delivery]) -> dict[str, Fate]:
    """Id -> its fate."""
    fates: dict[str, Fate] = {}
    for line in history:
        event = json.loads(line)
        fate = fates.setdefault(event["id"], Fate(event["id"]))
        fate.lines.append(line)
        _apply(fate, event)
    for delivery in sorted(deliveries, key=lambda d: d.at_us):
        fates.setdefault(delivery.id, Fate(delivery.id)).deliveries.append(delivery)
    return fates


def _apply(fate: Fate, event: dict[str, Any]) -> None:
    match event["f"], event["phase"]:
        case "schedule", "invoke":
            fate.to, fate.sha = event["to"], event["sha"]
            fate.mark, fate.once, fate.key = event["mark"], event["once"], event.get("key")
            fate.dues.append(event["least"])
        case "schedule", "ok":
            fate.accepted_us = event["at_us"]
        case "cancel", "ok" if event["say"].startswith("cancelled"):
            fate.cancelled, fate.cancelled_us = event["say"], event["at_us"]
        case "cancel", "info":
            fate.cancelled = "?"
        case "reschedule", "ok" if event["say"].startswith("rescheduled"):
            fate.dues.append(event["due"])
            if event["say"] == "rescheduled":  # else an earlier copy may have been delivered
                fate.moved.append((event["at_us"], event["due"]))
        case "reschedule", "info":
            fate.dues.append(event["due"])
        case ("cancel" | "reschedule" | "get") as call, "ok" if event["say"] == "unknown":
            if fate.accepted and not fate.cancelled and event["at_us"] < min(fate.dues) * 1000:
                fate.missed.append(call)


def check(fates: dict[str, Fate], dead: set[str], terms: Terms) -> Found:
    """What breaks I1 to I7, I9, I11, I16, I18 and I19."""
    known = [fate for fate in fates.values() if fate.to]
    forgotten = terms.is_forgotten
    sure = [f for f in known if f.accepted and not forgotten(f.accepted_us)]
    owed = [f for f in sure if f.is_owed]
    gone = [f for f in sure if f.cancelled == "cancelled" and not forgotten(f.cancelled_us)]
    found: Found = {
        "I1": [f.id for f in owed if not f.deliveries and f.id not in dead],
        "I2": [f.id for f in known if _is_early(f, terms)],
        "I3": [f.id for f in gone if _came_although_cancelled(f, terms)],
        "I4": [f.id for f in known if _came_before_its_new_time(f, terms)],
        "I5": [
            f.id for f in known if any((d.sha, d.mark) != (f.sha, f.mark) for d in f.deliveries)
        ],
        "I6": [f.id for f in fates.values() if not f.to],
        "I7": _duplicates(known, terms),
        "I11": [f.id for f in known if f.once and f.again and not terms.may_lose_s],
        "I18": _out_of_order(known),
        "I19": [f.id for f in sure if f.missed and not _came_before_due(f)],
    }
    if terms.settle_ms is not None:
        found["I9"] = [
            f.id for f in owed if _waited_ms(f, terms) > terms.settle_ms + terms.slack_ms
        ]
    if terms.others:
        found["I16"] = _late_others([f for f in known if f.to in terms.others], terms)
    return found


def _came_before_due(fate: Fate) -> bool:
    """Whether it was gone before it was due here: I2 knows the server's clock and judges that."""
    return any(delivery.at_us < min(fate.dues) * 1000 for delivery in fate.deliveries)


def p99_ms(fates: Iterable[Fate]) -> float:
    """The 99th percentile of the lateness of first deliveries; 0 if there are none."""
    first = (fate.deliveries[0] for fate in fates if fate.deliveries)
    return percentile(sorted(d.at_us / 1000 - d.due_ms for d in first), 0.99)


def _late_others(others: Sequence[Fate], terms: Terms) -> list[str]:
    """What was due while no fault had an effect is the control."""
    calm = [f for f in others if f.deliveries and terms.is_calm(f.deliveries[0].due_ms)]
    late_ms, calm_ms = p99_ms(others), p99_ms(calm)
    if late_ms <= calm_ms + terms.late_ms + terms.slack_ms:
        return []
    return [f"p99 of the others is {late_ms:.0f} ms late, without a fault {calm_ms:.0f} ms"]


def _is_early(fate: Fate, terms: Terms) -> bool:
    """Before the due time that its header says, or with one that was never in force."""
    for d in fate.deliveries:
        if terms.latest_ms(d.at_us) < d.due_ms:
            return True
        if not terms.clock and d.due_ms < min(fate.dues):
            return True
    return False


def _came_although_cancelled(fate: Fate, terms: Terms) -> bool:
    since_us = fate.cancelled_us if terms.cancels_delivered else 0
    return any(d.at_us > since_us for d in fate.deliveries)


def _came_before_its_new_time(fate: Fate, terms: Terms) -> bool:
    return any(
        answered_us < d.at_us and terms.latest_ms(d.at_us) < due_ms
        for answered_us, due_ms in fate.moved
        if not terms.is_forgotten(answered_us)
        for d in fate.deliveries
    )


def _out_of_order(fates: Sequence[Fate]) -> list[str]:
    """Those that came first after a later one of their key."""
    last_ms: dict[str, int] = {}
    found = []
    came = [fate for fate in fates if fate.key is not None and fate.deliveries]
    for fate in sorted(came, key=lambda each: each.deliveries[0].at_us):
        due_ms = fate.deliveries[0].due_ms
        if due_ms < last_ms.get(fate.key or "", 0):
            found.append(fate.id)
        last_ms[fate.key or ""] = max(due_ms, last_ms.get(fate.key or "", 0))
    return found


def _duplicates(fates: Sequence[Fate], terms: Terms) -> list[str]:
    twice = [fate for fate in fates if fate.again]
    count = sum(len(fate.again) for fate in twice)
    if count > terms.duplicates:
        return [f"{count} duplicates, at most {terms.duplicates}", *(f.id for f in twice)]
    return [fate.id for fate in twice if not _is_explained(fate, terms)]


def _is_explained(fate: Fate, terms: Terms) -> bool:
    """Whether each further delivery counted an attempt, or a fault was under way."""
    first_ms = fate.deliveries[0].at_us // 1000
    return all(
        d.attempt > 1
        or any(
            begin - 1000 <= d.at_us // 1000 and first_ms <= end + terms.slack_ms
            for begin, end in terms.faults
        )
        for d in fate.again
    )


def _waited_ms(fate: Fate, terms: Terms) -> float:
    """How long after its due time and the end of the last fault it came; 0 if never."""
    if not fate.deliveries:
        return 0
    first = fate.deliveries[0]
    healed_ms = max((to for _, to in terms.faults), default=0)
    return first.at_us / 1000 - max(first.due_ms, healed_ms)


def timeline(fate: Fate) -> str:
    """All that happened to one id, in order."""
    came = [f"  delivered at {d.at_us} due {d.due_ms} attempt {d.attempt}" for d in fate.deliveries]
    return "\n".join([fate.id, *(f"  {line.strip()}" for line in fate.lines), *came])


def read_history(path: Path) -> list[str]:
    """Whole lines; the last may have been cut off by a kill."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

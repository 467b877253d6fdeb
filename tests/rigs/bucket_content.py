"""The content of a bucket in the model, on plain dicts, and the changes common to verbs."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from delaybridge.message import Answer
from delaybridge.store.protocol.record import Tried

KEEP_CALLS_MS = 600_000
NUMBERS = {
    Answer.CREATED: 1,
    Answer.REPLACED: 4,
    Answer.CANCELLED: 6,
    Answer.CANCELLED_MAYBE_DELIVERED: 7,
    Answer.RESCHEDULED: 8,
    Answer.RESCHEDULED_MAYBE_DELIVERED: 9,
    Answer.KICKED: 11,
    Answer.DISCARDED: 12,
}


@dataclass
class ModelRecord:
    """A stored record. stamp: of the call that made it. accepted_ms: set if it was overdue then."""

    score: float
    stamp: bytes
    payload: bytes
    accepted_ms: int | None = None

    @property
    def encoded(self) -> bytes:
        record = struct.pack(">d", self.score) + self.stamp + self.payload
        if self.accepted_ms is None:
            return b"\1" + record
        return b"\2" + record + struct.pack(">d", self.accepted_ms)


class Call(NamedTuple):
    """A call that took effect: its time and answer."""

    at_ms: int
    answer: Answer


@dataclass
class Marks:
    """The bucket's marks; None for one that was not written yet."""

    turn: int | None = None
    claimed: int = -1  # written before anything reads it
    fired_score: float | None = None
    fired_claim: int | None = None
    look: float | None = None
    ttl: int | None = None
    birth: str | None = None
    dropped: int | None = None
    scheduled: int | None = None
    cancelled: int | None = None
    rescheduled: int | None = None
    kicked: int | None = None
    dedup_ms: int | None = None

    @property
    def content(self) -> dict[bytes, float | bytes]:
        found: dict[bytes, float | bytes] = {
            name.encode(): float(value)
            for name, value in vars(self).items()
            if value is not None and value != -1 and name != "birth"
        }
        return found if self.birth is None else found | {b"birth": self.birth.encode()}


@dataclass
class Content:
    """One bucket.

    fired: unknown to every script: the claims whose owner was really allowed to publish them.
    """

    birth: str
    messages: dict[str, ModelRecord] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    mirror: dict[str, int] = field(default_factory=dict)
    parked: dict[str, float] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    attempts: dict[str, Tried] = field(default_factory=dict)
    failing: dict[str, tuple[int, str]] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    calls: dict[bytes, Call] = field(default_factory=dict)
    delivered: dict[str, int] = field(default_factory=dict)
    lease: str | None = None
    marks: Marks = field(default_factory=Marks)
    fired: set[tuple[str, int]] = field(default_factory=set)

    def is_fired(self, id: str) -> bool:
        """Whether the store counts a message as handed to the broker."""
        claim, marks = self.mirror.get(id), self.marks
        if claim is None or marks.fired_claim is None or marks.fired_score is None:
            return False
        return claim <= marks.fired_claim and self.messages[id].score <= marks.fired_score

    def _ends(self, id: str, claim: int) -> bool:
        """Take this claim out of the mirror; False if the mirror does not hold it."""
        if self.mirror.get(id) != claim:
            return False
        del self.mirror[id]
        return True

    def _take_out(self, id: str) -> None:
        """Take a message out of the set that it is in; a copy on a wheel is revoked."""
        if self.mirror.pop(id, None) is not None:
            self.revoked[id] = self._next_turn()
        for place in (self.due, self.parked, self.dead):
            place.pop(id, None)

    def _put(self, id: str, due_ms: int) -> None:
        """Put a message into `due`, with another due time and the same priority."""
        stored = self.messages[id]
        stored.score = due_ms + stored.score % 1
        self.due[id] = stored.score

    def _forget_attempts(self, id: str) -> None:
        self.attempts.pop(id, None)
        self.failing.pop(id, None)

    def _tried(self, id: str) -> Tried:
        return self.attempts.get(id, Tried())

    def _next_turn(self) -> int:
        self.marks.turn = (self.marks.turn or 0) + 1
        return self.marks.turn

    def _remember(self, stamp: bytes, id: str, answer: Answer, now_ms: int) -> Answer:
        self.calls[stamp + id.encode()] = Call(now_ms, answer)
        return answer

    def _forget_calls(self, now_ms: int) -> None:
        """Forget old calls. The scripts forget a hundred at a time, and no story here has more."""
        last = now_ms - KEEP_CALLS_MS
        kept = {k: c for k, c in self.calls.items() if c.at_ms + NUMBERS[c.answer] / 256 > last}
        assert len(self.calls) - len(kept) <= 100
        self.calls = kept

    def _note_delivered(self, id: str, now_ms: int) -> None:
        if self.marks.dedup_ms is not None:
            self._forget_delivered(now_ms)
            until_ms = now_ms + self.marks.dedup_ms
            self.delivered[id] = max(until_ms, self.delivered.get(id, 0))

    def _was_delivered(self, id: str, now_ms: int) -> bool:
        return self.marks.dedup_ms is not None and self.delivered.get(id, 0) > now_ms

    def _forget_delivered(self, now_ms: int) -> None:
        self.delivered = {id: until for id, until in self.delivered.items() if until > now_ms}

    def state(self) -> dict[str, Any]:
        """The bucket as `World.state` reads it, its marks as numbers."""
        found = {
            "due": raw(self.due),
            "messages": {id.encode(): stored.encoded for id, stored in self.messages.items()},
            "mirror": raw(self.mirror),
            "attempts": {
                **{id.encode(): encoded(tried) for id, tried in self.attempts.items()},
                **{f"{id}\0".encode(): f"{s}\n{e}".encode() for id, (s, e) in self.failing.items()},
            },
            "parked": raw(self.parked),
            "dead": raw({id: at_ms for id, (at_ms, _) in self.dead.items()}),
            "dead_reason": {id.encode(): why.encode() for id, (_, why) in self.dead.items()},
            "lease": None if self.lease is None else self.lease.encode(),
            "marks": self.marks.content,
            "revoked": raw(self.revoked),
            "delivered": raw(self.delivered),
            "calls": {k: c.at_ms + NUMBERS[c.answer] / 256 for k, c in self.calls.items()},
        }
        return {name: content for name, content in found.items() if content}

    def check(self) -> None:
        """Every message is in one set, and every claim that counts as fired was really fired."""
        places = [*self.due, *self.mirror, *self.parked, *self.dead]
        assert sorted(places) == sorted(self.messages)
        counted = {(id, claim) for id, claim in self.mirror.items() if self.is_fired(id)}
        assert counted == self.fired & set(self.mirror.items())


def encoded(tried: Tried | None) -> bytes:
    """An entry of the hash `attempts`."""
    if tried is None:
        return b""
    due_ms = "" if tried.due_ms is None else tried.due_ms
    return f"{tried.failures}:{int(tried.maybe_delivered)}:{due_ms}".encode()


def raw(members: dict[str, Any]) -> dict[bytes, float]:
    return {id.encode(): float(score) for id, score in members.items()}

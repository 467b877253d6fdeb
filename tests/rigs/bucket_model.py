"""What the scripts in lua/ do to one bucket, on plain dicts: slow, obvious, and not from them.

Each method is one verb, atomic, with the arguments of `commands.Bucket` and its answer. Beside the
bucket's content it keeps what no script can know (`fired`): which claims an owner was really
allowed to publish. `check` compares the two views, and holds every message to one place.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from delaybridge.errors import DecodeError
from delaybridge.message import WAIT, Answer, ConflictPolicy, OnConflict, State, decode_record
from delaybridge.store.record import Failing, Tried
from delaybridge.store.replies import Acquired, Claim, Fired, Reclaimed, Renewed, Row, Trimmed
from delaybridge.store.verbs import Item

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
class Stored:
    """A record: its score, the stamp of the call that made it, and what it holds."""

    score: float
    stamp: bytes
    payload: bytes
    accepted_ms: int | None = None  # where it was overdue then

    @property
    def encoded(self) -> bytes:
        record = struct.pack(">d", self.score) + self.stamp + self.payload
        if self.accepted_ms is None:
            return b"\1" + record
        return b"\2" + record + struct.pack(">d", self.accepted_ms)


class Call(NamedTuple):
    """A call that took effect: when, and what it was answered."""

    at_ms: int
    answer: Answer


@dataclass
class Marks:
    """None: not written yet."""

    turn: int | None = None
    claimed: int = -1  # written before anything reads it
    fired_score: float | None = None
    fired_claim: int | None = None
    look: float | None = None
    ttl: int | None = None
    birth: str | None = None
    dropped: int | None = None

    @property
    def content(self) -> dict[bytes, float | bytes]:
        found: dict[bytes, float | bytes] = {
            name.encode(): float(value)
            for name, value in vars(self).items()
            if value is not None and value != -1 and name != "birth"
        }
        return found if self.birth is None else found | {b"birth": self.birth.encode()}


@dataclass
class Model:
    """One bucket."""

    birth: str
    messages: dict[str, Stored] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    mirror: dict[str, int] = field(default_factory=dict)
    parked: dict[str, float] = field(default_factory=dict)
    dead: dict[str, tuple[int, str]] = field(default_factory=dict)
    attempts: dict[str, Tried] = field(default_factory=dict)
    failing: dict[str, tuple[int, str]] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    calls: dict[bytes, Call] = field(default_factory=dict)
    lease: str | None = None
    marks: Marks = field(default_factory=Marks)
    fired: set[tuple[str, int]] = field(default_factory=set)

    # clients

    def schedule(
        self,
        messages: Sequence[tuple[bytes, Any]],
        policy: ConflictPolicy,
        *,
        reach: str = "",
        maybe: bool = False,
        now_ms: int,
    ) -> list[tuple[Answer, int]]:
        self.marks.birth = self.birth
        answers = []
        for stamp, message in messages:
            score = int(message.when) + message.rank / 256
            accepted_ms = now_ms if score < now_ms - 1 else None
            stored = Stored(score, stamp, message.payload, accepted_ms)
            answer, pending = self._schedule(message.id, stored, policy, reach, now_ms)
            answers.append((answer, int(score if pending is None else pending)))
            is_pending = (
                answer in (Answer.CREATED, Answer.DUPLICATE) and message.id in self.messages
            )
            if policy is WAIT and maybe and is_pending:
                tried = self._tried(message.id)
                self.attempts[message.id] = tried._replace(maybe_delivered=True)
        self._forget_calls(now_ms)
        return answers

    def _schedule(
        self, id: str, new: Stored, policy: ConflictPolicy, reach: str, now_ms: int
    ) -> tuple[Answer, float | None]:
        old = self.messages.get(id)
        mine = old is not None and old.stamp == new.stamp
        if past := self.calls.get(new.stamp + id.encode()):
            return past.answer, old.score if old is not None and mine else None
        if old is None:
            self.messages[id], self.due[id] = new, new.score
            return Answer.CREATED, None
        if mine:
            return Answer.CREATED, old.score
        if policy in (WAIT, OnConflict.REPLACE) and self.is_fired(id):
            return Answer.IN_FLIGHT, old.score
        if is_foreign(old, reach):
            return Answer.FOREIGN, old.score
        if policy is OnConflict.REPLACE:
            return self._replace(id, old, new, now_ms)
        same = policy is OnConflict.KEEP or old.payload == new.payload
        return Answer.DUPLICATE if same else Answer.CONFLICT, old.score

    def _replace(
        self, id: str, old: Stored, new: Stored, now_ms: int
    ) -> tuple[Answer, float | None]:
        maybe = self._tried(id).maybe_delivered
        self._take_out(id)
        self.messages[id], self.due[id] = new, new.score
        self._forget_attempts(id)
        if maybe:
            self.attempts[id] = Tried(0, True)
        self._remember(old.stamp, id, Answer.CANCELLED, now_ms)
        return self._remember(new.stamp, id, Answer.REPLACED, now_ms), None

    def cancel(self, stamp: bytes, id: str, *, reach: str = "", now_ms: int) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            return past.answer
        if id not in self.messages:
            return Answer.UNKNOWN
        if is_foreign(self.messages[id], reach):
            return Answer.FOREIGN
        if self.is_fired(id):
            return Answer.IN_FLIGHT
        maybe = self._tried(id).maybe_delivered
        self._take_out(id)
        self._forget_attempts(id)
        old = self.messages.pop(id)
        self._forget_calls(now_ms)
        self._remember(old.stamp, id, Answer.CANCELLED, now_ms)
        answer = Answer.CANCELLED_MAYBE_DELIVERED if maybe else Answer.CANCELLED
        return self._remember(stamp, id, answer, now_ms)

    def reschedule(
        self, stamp: bytes, id: str, when: str, *, reach: str = "", now_ms: int
    ) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            return past.answer
        if id not in self.messages:
            return Answer.UNKNOWN
        if is_foreign(self.messages[id], reach):
            return Answer.FOREIGN
        if self.is_fired(id):
            return Answer.IN_FLIGHT
        if id in self.dead:
            return Answer.DEAD
        self._take_out(id)
        self._put(id, int(when))
        if self.messages[id].score < now_ms - 1:
            self.messages[id].accepted_ms = now_ms
        if tried := self.attempts.get(id):
            self.attempts[id] = tried._replace(due_ms=None)
        self.failing.pop(id, None)
        maybe = self._tried(id).maybe_delivered
        self._forget_calls(now_ms)
        answer = Answer.RESCHEDULED_MAYBE_DELIVERED if maybe else Answer.RESCHEDULED
        return self._remember(stamp, id, answer, now_ms)

    def kick(self, stamp: bytes, id: str, *, now_ms: int) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            return past.answer
        if id not in self.dead:
            return Answer.UNKNOWN
        del self.dead[id]
        self._put(id, now_ms)
        maybe = self._tried(id).maybe_delivered
        self.attempts.pop(id, None)
        if maybe:
            self.attempts[id] = Tried(0, True)
        self._forget_calls(now_ms)
        return self._remember(stamp, id, Answer.KICKED, now_ms)

    def discard(self, stamp: bytes, id: str, *, now_ms: int) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            return past.answer
        if id not in self.dead:
            return Answer.UNKNOWN
        del self.dead[id]
        self._forget_attempts(id)
        old = self.messages.pop(id)
        self._forget_calls(now_ms)
        self._remember(old.stamp, id, Answer.CANCELLED, now_ms)
        return self._remember(stamp, id, Answer.DISCARDED, now_ms)

    def get(self, id: str) -> Row | None:
        stored = self.messages.get(id)
        if stored is None:
            return None
        state, score, reason = State.DELAYED, stored.score, ""
        if id in self.dead:
            state, (score, reason) = State.DEAD, self.dead[id]
        elif id in self.parked:
            state = State.PARKED
        elif id in self.mirror:
            state = State.IN_FLIGHT
        failing = None
        if state is not State.DEAD and id in self.failing:
            since_ms, said = self.failing[id]
            failing = Failing(since_ms, *said.split("\n", 1))
            reason = failing.error
        tried = self._tried(id)
        return Row(id, state, score, stored.encoded, tried, reason, self.is_fired(id), failing)

    # the lease

    def acquire(self, owner: str, ttl_ms: int) -> Acquired:
        if self.lease is not None:
            name, _, turn = self.lease.rpartition(":")
            if name == owner:
                return Acquired(self.lease, int(turn), fresh=turn == "1")
            return Acquired(None, left_ms=ttl_ms, holder=self.lease)
        turn = self._next_turn()
        self.revoked.clear()
        self.marks.claimed, self.marks.birth, self.marks.ttl = turn, self.birth, ttl_ms
        self.lease = f"{owner}:{turn}"
        return Acquired(self.lease, turn, fresh=turn == 1)

    def renew(self, token: str, ttl_ms: int) -> Renewed:
        if self.lease != token:
            return Renewed(held=False)
        return Renewed(held=True, next_score=min(self.due.values(), default=None))

    def release(self, token: str) -> bool:
        if self.lease == token:
            self.lease = None
        return True

    # the owner

    def claim(
        self,
        token: str,
        ttl_ms: int,
        have: int,
        *,
        ahead_ms: int,
        limit: int,
        max_bytes: int,
        pace_ms: int,
        margin_ms: int,
        now_ms: int,
    ) -> Claim | None:
        marks = self.marks
        if self.lease != token or have > marks.claimed:
            return None
        self._forget_calls(now_ms)
        if have < marks.claimed:
            again = [(claim, id) for id, claim in self.mirror.items() if claim > have]
            ids = [id for _, id in sorted(again)]
        else:
            ids = self._claim(now_ms + ahead_ms, limit, max_bytes)
        next_score = min(self.due.values(), default=None)
        more = next_score is not None and next_score < now_ms + ahead_ms + 1
        look = math.inf if next_score is None else next_score - ahead_ms
        look = now_ms if more else max(look, now_ms + pace_ms)
        marks.look = float(f"{min(look + margin_ms, 9e15):.0f}")
        records = [self.messages[id].encoded for id in ids]
        tried = [encoded(self.attempts.get(id)) for id in ids] if self.attempts else []
        raw = [id.encode() for id in ids]
        return Claim(marks.claimed, raw, records, tried, next_score, more, now_ms * 1000)

    def _claim(self, until_ms: int, limit: int, max_bytes: int) -> list[str]:
        ripe = sorted((score, id) for id, score in self.due.items() if score < until_ms + 1)
        ids: list[str] = []
        size = 0
        for _, id in ripe[:limit]:
            if size < max_bytes:
                ids.append(id)
                size += len(self.messages[id].encoded)
        if ids:
            self.marks.claimed = self._next_turn()
            for id in ids:
                del self.due[id]
                self.mirror[id] = self.marks.claimed
        return ids

    def fire(
        self, token: str, ttl_ms: int, watermark: float, have: int, seen: int, *, now_ms: int
    ) -> Fired | None:
        marks = self.marks
        if self.lease != token or have > marks.claimed:
            return None
        if marks.fired_claim is not None and marks.fired_claim >= turn_of(token):
            watermark = max(watermark, marks.fired_score or 0.0)
            have = max(have, marks.fired_claim)
        marks.fired_score, marks.fired_claim = watermark, have
        self.revoked = {id: turn for id, turn in self.revoked.items() if turn > seen}
        revoked = {id.encode(): turn for id, turn in self.revoked.items()}
        return Fired(marks.claimed, revoked, now_ms * 1000)

    def settle(
        self, token: str, ttl_ms: int, groups: Sequence[tuple[int, Sequence[str]]]
    ) -> bool | None:
        if self.lease != token:
            return None
        for claim, ids in groups:
            for id in ids:
                if self._ends(id, claim):
                    del self.messages[id]
                    self._forget_attempts(id)
        return True

    def settle_once(
        self,
        token: str,
        ttl_ms: int,
        groups: Sequence[tuple[int, Sequence[str]]],
        *,
        now_ms: int,
    ) -> set[str] | None:
        if self.lease != token:
            return None
        allowed = set()
        for claim, ids in groups:
            for id in ids:
                note = f"{claim}:{id}\0".encode()
                if self._ends(id, claim):
                    stamp = self.messages.pop(id).stamp
                    self._forget_attempts(id)
                    self._forget_calls(now_ms)
                    self._remember(stamp, id, Answer.CREATED, now_ms)
                    self.calls[note] = Call(now_ms, Answer.CREATED)
                if note in self.calls:
                    allowed.add(id)
        return allowed

    def retry(
        self,
        token: str,
        ttl_ms: int,
        items: Sequence[tuple[Item, int | None, bool, str]],
        *,
        now_ms: int,
    ) -> bool | None:
        if self.lease != token:
            return None
        for item, delay_ms, maybe, error in items:
            if not self._ends(item.id, item.claim):
                continue
            if delay_ms is None:
                self.due[item.id] = item.score
                continue
            tried = self._tried(item.id)
            due_ms = int(item.score) if tried.due_ms is None else tried.due_ms
            maybe = maybe or tried.maybe_delivered
            self.attempts[item.id] = Tried(tried.failures + 1, maybe, due_ms)
            since_ms, _ = self.failing.get(item.id, (now_ms, ""))
            self.failing[item.id] = since_ms, error
            self._put(item.id, now_ms + delay_ms)
        return True

    def bury(
        self,
        token: str,
        ttl_ms: int,
        items: Sequence[tuple[Item, bool, bool, str]],
        *,
        now_ms: int,
    ) -> bool | None:
        if self.lease != token:
            return None
        for item, counted, maybe, reason in items:
            if not self._ends(item.id, item.claim):
                continue
            self.dead[item.id] = now_ms, reason
            self.failing.pop(item.id, None)
            if counted:
                tried = self._tried(item.id)
                maybe = maybe or tried.maybe_delivered
                self.attempts[item.id] = Tried(tried.failures + 1, maybe, tried.due_ms)
        return True

    def park(self, token: str, ttl_ms: int, items: Sequence[Item]) -> bool | None:
        if self.lease != token:
            return None
        for item in items:
            if self._ends(item.id, item.claim):
                self.parked[item.id] = item.score
        return True

    def unpark(
        self, token: str, ttl_ms: int, *, limit: int = 1000, ids: Sequence[str] = ()
    ) -> int | None:
        if self.lease != token:
            return None
        earliest = sorted((score, id) for id, score in self.parked.items())[:limit]
        for id in ids or [id for _, id in earliest]:
            if id in self.parked:
                self.due[id] = self.parked.pop(id)
        return len(self.parked)

    def trim(
        self,
        token: str,
        ttl_ms: int,
        *,
        keep: int | None,
        age_ms: int | None,
        limit: int = 100,
        now_ms: int,
    ) -> Trimmed | None:
        if self.lease != token:
            return None
        oldest = sorted((at_ms, id) for id, (at_ms, _) in self.dead.items())
        kept = len(oldest) if keep is None else keep
        past = [id for at_ms, id in oldest if age_ms is not None and at_ms < now_ms - age_ms]
        dropped = [id for _, id in oldest][: max(len(oldest) - kept, len(past), 0)][:limit]
        if dropped:
            self._forget_calls(now_ms)
            self.marks.dropped = (self.marks.dropped or 0) + len(dropped)
        for id in dropped:
            del self.dead[id]
            self._forget_attempts(id)
            self._remember(self.messages.pop(id).stamp, id, Answer.CANCELLED, now_ms)
        return Trimmed(len(dropped))

    def reclaim(self, token: str, ttl_ms: int, limit: int, *, now_ms: int) -> Reclaimed | None:
        if self.lease != token:
            return None
        old = sorted((k, id) for id, k in self.mirror.items() if k < turn_of(token))
        count = 0
        for claim, id in old[:limit]:
            if self.is_fired(id):
                tried = self._tried(id)
                self.attempts[id] = Tried(tried.failures + 1, True, tried.due_ms)
                count += 1
            self._ends(id, claim)
            self.due[id] = self.messages[id].score
        moved = min(limit, len(old))
        return Reclaimed(len(old) - moved, moved, count)

    # what several verbs do

    def is_fired(self, id: str) -> bool:
        """Whether the store counts a message as handed to the broker."""
        claim, marks = self.mirror.get(id), self.marks
        if claim is None or marks.fired_claim is None or marks.fired_score is None:
            return False
        return claim <= marks.fired_claim and self.messages[id].score <= marks.fired_score

    def _ends(self, id: str, claim: int) -> bool:
        """Take that very claim out of the mirror; False if it is not there."""
        if self.mirror.get(id) != claim:
            return False
        del self.mirror[id]
        return True

    def _take_out(self, id: str) -> None:
        """Out of the place it lies in; a copy on a wheel is revoked."""
        if self.mirror.pop(id, None) is not None:
            self.revoked[id] = self._next_turn()
        for place in (self.due, self.parked, self.dead):
            place.pop(id, None)

    def _put(self, id: str, due_ms: int) -> None:
        """To `due`, at another time and the same priority."""
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
        """A hundred at a time, or more: a test that has so many checks it by itself."""
        last = now_ms - KEEP_CALLS_MS
        kept = {k: c for k, c in self.calls.items() if c.at_ms + NUMBERS[c.answer] / 256 > last}
        assert len(self.calls) - len(kept) <= 100
        self.calls = kept

    # what it all comes to

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
            "calls": {k: c.at_ms + NUMBERS[c.answer] / 256 for k, c in self.calls.items()},
        }
        return {name: content for name, content in found.items() if content}

    def check(self) -> None:
        """Every message lies in one place, and what counts as fired was really fired."""
        places = [*self.due, *self.mirror, *self.parked, *self.dead]
        assert sorted(places) == sorted(self.messages)
        counted = {(id, claim) for id, claim in self.mirror.items() if self.is_fired(id)}
        assert counted == self.fired & set(self.mirror.items())


def is_foreign(old: Stored, reach: str) -> bool:
    """Whether a caller with this reach may not touch a message; patterns here are plain ones."""
    if not reach:
        return False
    try:
        destination = decode_record(old.payload).destination
    except DecodeError:
        return True
    return not any(re.search(pattern, destination) for pattern in json.loads(reach))


def turn_of(token: str) -> int:
    return int(token.rpartition(":")[2])


def encoded(tried: Tried | None) -> bytes:
    """As the hash `attempts` has it."""
    if tried is None:
        return b""
    due_ms = "" if tried.due_ms is None else tried.due_ms
    return f"{tried.failures}:{int(tried.maybe_delivered)}:{due_ms}".encode()


def raw(members: dict[str, Any]) -> dict[bytes, float]:
    return {id.encode(): float(score) for id, score in members.items()}

"""The clients' verbs in the model of a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from delaybridge.errors import DecodeError
from delaybridge.message import KNOWN, Answer, ConflictPolicy, OnConflict, State, decode_record
from delaybridge.store.protocol.record import Failing, Tried
from delaybridge.store.protocol.replies import Row
from tests.rigs.bucket_content import Content, ModelRecord


class ClientVerbs(Content):
    """The effects and answers of the clients' scripts.

    acted: what the last call acted on, as the scripts name it for a ledger: the stamp of the call
    that scheduled it, and when it is due now if it was moved.
    """

    acted: list[tuple[int | None, int | None]]

    def _names(self, stamp: bytes | None, due_ms: int | None = None) -> None:
        self.acted.append((None if stamp is None else int.from_bytes(stamp), due_ms))

    def _names_moved(self, id: str) -> None:
        if id in self.messages and id not in self.dead:
            self._names(self.messages[id].stamp, int(self.messages[id].score))

    def schedule(
        self,
        messages: Sequence[tuple[bytes, Any]],
        policy: ConflictPolicy,
        *,
        reach: str | bytes = "",
        maybe: bool = False,
        now_ms: int,
    ) -> list[tuple[Answer, int]]:
        self.marks.birth = self.birth
        answers = []
        for stamp, message in messages:
            score = int(message.when) + message.rank / 256
            accepted_ms = now_ms if score < now_ms - 1 else None
            stored = ModelRecord(score, stamp, message.payload, accepted_ms)
            answer, pending = self._schedule(message.id, stored, policy, reach, now_ms)
            answers.append((answer, int(score if pending is None else pending)))
            is_pending = (
                answer in (Answer.CREATED, Answer.DUPLICATE) and message.id in self.messages
            )
            if policy is OnConflict.FAIL and maybe and is_pending:
                tried = self._tried(message.id)
                self.attempts[message.id] = tried._replace(maybe_delivered=True)
        self._forget_calls(now_ms)
        return answers

    def _schedule(
        self, id: str, new: ModelRecord, policy: ConflictPolicy, reach: str | bytes, now_ms: int
    ) -> tuple[Answer, float | None]:
        old = self.messages.get(id)
        mine = old is not None and old.stamp == new.stamp
        if past := self.calls.get(new.stamp + id.encode()):
            if past.answer is Answer.REPLACED and policy is OnConflict.REPLACE:
                self._names(None)
            return past.answer, old.score if old is not None and mine else None
        if old is None and policy is not OnConflict.REPLACE and self._was_delivered(id, now_ms):
            return Answer.DUPLICATE, None
        only = reach[1:] if isinstance(reach, bytes) else None
        if old is None and only is not None:
            return Answer.FOREIGN, None
        if old is None:
            self.messages[id], self.due[id] = new, new.score
            self.marks.scheduled = (self.marks.scheduled or 0) + 1
            return Answer.CREATED, None
        if mine:
            return Answer.CREATED, old.score
        if policy is not KNOWN and self.is_fired(id):
            return Answer.IN_FLIGHT, old.score
        if only is not None and (old.stamp != only or old.score != new.score or id in self.dead):
            return Answer.FOREIGN, old.score
        if isinstance(reach, str) and is_foreign(old, reach):
            return Answer.FOREIGN, old.score
        if policy is OnConflict.REPLACE:
            return self._replace(id, old, new, now_ms)
        same = policy is OnConflict.KEEP or old.payload == new.payload
        return Answer.DUPLICATE if same else Answer.CONFLICT, old.score

    def _replace(
        self, id: str, old: ModelRecord, new: ModelRecord, now_ms: int
    ) -> tuple[Answer, float | None]:
        maybe = self._tried(id).maybe_delivered
        self._take_out(id)
        self.messages[id], self.due[id] = new, new.score
        self.marks.scheduled = (self.marks.scheduled or 0) + 1
        self._forget_attempts(id)
        if maybe:
            self.attempts[id] = Tried(0, True)
        self._remember(old.stamp, id, Answer.CANCELLED, now_ms)
        self._names(old.stamp)
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
        self.marks.cancelled = (self.marks.cancelled or 0) + 1
        self._forget_calls(now_ms)
        self._remember(old.stamp, id, Answer.CANCELLED, now_ms)
        self._names(old.stamp)
        answer = Answer.CANCELLED_MAYBE_DELIVERED if maybe else Answer.CANCELLED
        return self._remember(stamp, id, answer, now_ms)

    def reschedule(
        self, stamp: bytes, id: str, when: str, *, reach: str = "", now_ms: int
    ) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            self._names_moved(id)
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
        self.marks.rescheduled = (self.marks.rescheduled or 0) + 1
        if self.messages[id].score < now_ms - 1:
            self.messages[id].accepted_ms = now_ms
        if tried := self.attempts.get(id):
            self.attempts[id] = tried._replace(due_ms=None)
        self.failing.pop(id, None)
        maybe = self._tried(id).maybe_delivered
        self._forget_calls(now_ms)
        self._names_moved(id)
        answer = Answer.RESCHEDULED_MAYBE_DELIVERED if maybe else Answer.RESCHEDULED
        return self._remember(stamp, id, answer, now_ms)

    def kick(self, stamp: bytes, id: str, *, now_ms: int) -> Answer:
        if past := self.calls.get(stamp + id.encode()):
            self._names_moved(id)
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
        self.marks.kicked = (self.marks.kicked or 0) + 1
        self._names_moved(id)
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
        self._names(old.stamp)
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
            since_ms, text = self.failing[id]
            failing = Failing(since_ms, *text.split("\n", 1))
            reason = failing.error
        tried = self._tried(id)
        return Row(id, state, score, stored.encoded, tried, reason, self.is_fired(id), failing)


def is_foreign(old: ModelRecord, reach: str) -> bool:
    """Whether a message is outside this reach. The parts here are valid in Lua and in Python."""
    if not reach:
        return False
    try:
        destination = decode_record(old.payload).destination
    except DecodeError:
        return True
    return not any(_begins_with(destination, parts) for parts in json.loads(reach))


def _begins_with(text: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        if (found := re.compile(part.removeprefix("^")).match(text, at)) is None:
            return False
        at = found.end()
    return True

"""Replacing messages by themselves with another content: touch and redirect.

A message is read, and replaced if it is still the one that was read, due when it was due then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.errors import DecodeError, MessageError
from delaybridge.message import Answer, OnConflict, Record, State, destination_text
from delaybridge.store.messages.changes import ANSWER_PRECEDENCE, Changes, Named
from delaybridge.store.messages.redirect_to import Redirection
from delaybridge.store.messages.selection import Selected
from delaybridge.store.namespace.rules import covers, place_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import (
    HEAD_SIZE,
    STAMP,
    ForDeadSet,
    parse_tried,
    split_record,
)
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain

_TTL = Record.__struct_fields__.index("ttl_ms")
_TRIES = 5  # of a touch, while others change the message
_DONE = (Answer.REPLACED, Answer.CREATED)  # the second: the call was sent again
_GOOD = (Answer.REDIRECTED, Answer.REDIRECTED_MAYBE_DELIVERED)
# Makes the new payload of a message, and notes of what is left out; None: it is not one of those
# that are meant. DecodeError, MessageError.
_Remake = Callable[[str, bytes], tuple[bytes, Sequence[str]] | None]


class RedirectAnswer(str):
    """The answer to a redirect: a `str`, the text of an `Answer`.

    notes: what of the message is left out; of one that is refused, why.
    """

    __slots__ = ("notes", "value")
    notes: Sequence[str]
    value: str

    def __new__(cls, answer: Answer, notes: Sequence[str] = ()) -> RedirectAnswer:
        made = str.__new__(cls, answer)
        made.value, made.notes = answer.value, notes
        return made


class _Read(NamedTuple):
    """A message that was read. place: in the call. payload: the new one; empty: it stays.

    answer: why it stays; None: it has already what it is to have.
    """

    place: int
    bucket: Bucket
    row: Row
    payload: bytes = b""
    notes: Sequence[str] = ()
    answer: Answer | None = None

    def replace(self, stamp: bytes) -> RedisCommand[Answer]:
        """Replace the one that was read; of a dead one place, reason and attempts stay."""
        row, bucket = self.row, self.bucket
        score, _ = split_record(row.record)
        asked: Any
        if row.state is State.DEAD:
            head = row.record[1:HEAD_SIZE]
            dead = ForDeadSet(stamp, row.id, self.payload, row.reason, score, head=head)
            asked = bucket.quarantine([dead])
        else:
            new = Accepted(row.id, b"", str(int(score)), round(score % 1 * 256), self.payload)
            reach = b"=" + row.record[STAMP]
            asked = bucket.schedule([(stamp, new)], OnConflict.REPLACE, reach=reach)

        def parse(reply: Any) -> Answer:
            answers = asked.parse(reply)
            if not answers:
                return Answer.UNKNOWN  # the namespace was wiped
            answer: Any = answers[0] if row.state is State.DEAD else answers[0][0]
            if answer is Answer.FOREIGN:
                return Answer.IN_FLIGHT if row.is_given else Answer.CHANGED
            return Answer.REPLACED if answer in _DONE else Answer(answer)

        return RedisCommand(asked.name, asked.keys, asked.args, parse)

    def tried(self) -> RedisCommand[bool]:
        """Whether an earlier publish may have been delivered; the note outlives a replace."""
        parse = lambda reply: parse_tried(reply or b"").maybe_delivered  # noqa: E731
        return plain("HGET", self.bucket.key("attempts"), self.row.id, parse=parse)


class Rewriting(Changes):
    """Calls that replace messages by themselves."""

    def touch(self, id: str, key: bytes | None, ttl_ms: int | None) -> Steps[Answer]:
        """As `cancel`, with another ttl."""
        (answer,) = yield from self.touch_many([id], ttl_ms, key)
        return answer

    def touch_many(
        self, messages: Sequence[Named], ttl_ms: int | None, key: bytes | None, *, dry: bool = False
    ) -> Steps[list[Answer]]:
        """Replace each by itself with another ttl, if it is still the message that was read.

        Whatever changes in between is read again; in the end it counts as in flight.
        """
        remake = partial(_with_ttl, ttl_ms)
        answers: list[str] = [Answer.CHANGED] * len(messages)
        for _ in range(_TRIES):
            if left := [i for i, answer in enumerate(answers) if answer == Answer.CHANGED]:
                some = [messages[i] for i in left]
                found = yield from self._rewrite(some, key, remake, False, dry)
                for i, answer in zip(left, found, strict=True):
                    answers[i] = answer
        words = {**dict.fromkeys(_GOOD, Answer.REPLACED), Answer.CHANGED: Answer.IN_FLIGHT}
        return [words.get(Answer(one)) or Answer(one) for one in answers]

    def redirect_many(
        self,
        messages: Sequence[Named],
        to: str,
        key: bytes | None,
        *,
        bound_for: str | None = None,
        is_dead: bool = False,
        kick: bool = False,
        dry: bool = False,
    ) -> Steps[list[RedirectAnswer]]:
        """Give each another destination, if it is still the message that was read.

        bound_for: only those that go to this place now. kick: the dead ones come back then; in
        between they are dead, and not lost. MessageError: a destination cannot exist.
        """
        redirection = Redirection(to, self.kinds, self.limits)
        redirection.check()
        place = None if bound_for is None else place_of(bound_for, self.kinds)

        def remake(id: str, payload: bytes) -> tuple[bytes, Sequence[str]] | None:
            if place is None or covers(place, destination_text(payload), self.kinds):
                return redirection.payload(id, payload)
            return None

        answers = yield from self._rewrite(messages, key, remake, is_dead, dry)
        if kick and not dry:
            some = [i for i, one in enumerate(answers) if one.value in _GOOD]
            kicked = yield from self.kick_many([messages[i] for i in some], [0] * len(some), key)
            failed = zip(some, kicked, strict=True)
            for i, answer in (each for each in failed if each[1] is not Answer.KICKED):
                answers[i] = RedirectAnswer(answer)
        return answers

    def _rewrite(
        self,
        messages: Sequence[Named],
        key: bytes | None,
        remake: _Remake,
        is_dead: bool,
        dry: bool,
    ) -> Steps[list[RedirectAnswer]]:
        """One try; changed: it was changed after it was read."""
        read: list[_Read] = []
        look = self._each_or_quarantined if is_dead else self._each
        reading = partial(_reading, read, remake, is_dead)
        answers: list[Answer] = yield from look(messages, key, reading)
        failed = {} if dry else (yield from self._replace(read))
        maybe = (yield [each.tried() for each in read]) if read else []
        given: dict[int, list[RedirectAnswer]] = {}
        for n, (each, is_maybe) in enumerate(zip(read, maybe, strict=True)):
            good = Answer.REDIRECTED_MAYBE_DELIVERED if is_maybe else Answer.REDIRECTED
            one = failed.get(n, good) if each.answer is None else each.answer
            given.setdefault(each.place, []).append(RedirectAnswer(one, each.notes))
        found = {i: min(some, key=_precedence) for i, some in given.items()}
        return [found.get(i) or RedirectAnswer(answer) for i, answer in enumerate(answers)]

    def _replace(self, read: Sequence[_Read]) -> Steps[dict[int, Answer]]:
        """Replace those that have something new; why some were not, by their places."""
        new = [n for n, each in enumerate(read) if each.payload]
        named = [Selected(r.row.id, r.bucket.number, r.row.state) for r in (read[n] for n in new)]
        done = yield from self._each(named, None, lambda _b, s, _id, i: read[new[i]].replace(s))
        return {n: one for n, one in zip(new, done, strict=True) if one is not Answer.REPLACED}


def _precedence(answer: RedirectAnswer) -> tuple[bool, int]:
    """What was changed meanwhile is told first, if messages under several keys have the id."""
    return answer.value != Answer.CHANGED, ANSWER_PRECEDENCE.index(Answer(answer))


def _reading(
    read: list[_Read], remake: _Remake, is_dead: bool, bucket: Bucket, _: bytes, id: str, place: int
) -> RedisCommand[Answer | None]:
    """Read a message into `read`; else why it cannot be changed."""
    asked: Any = bucket.get(id)

    def parse(reply: Any) -> Answer | None:
        row = asked.parse(reply)
        if row is None or (row.state is not State.DEAD if is_dead else not row.record):
            return None  # a dead message may have no record
        if not is_dead and (row.state is State.DEAD or row.fired):
            return Answer.DEAD if row.state is State.DEAD else Answer.IN_FLIGHT
        try:
            read.append(_Read(place, bucket, row, *_made(remake, row)))
        except DecodeError:
            return Answer.UNREADABLE
        return Answer.REPLACED

    return RedisCommand(asked.name, asked.keys, asked.args, parse)


def _made(remake: _Remake, row: Row) -> tuple[bytes, Sequence[str], Answer | None]:
    """The further fields of `_Read`. DecodeError."""
    _, payload = split_record(row.record)
    try:
        made = remake(row.id, payload)
    except MessageError as exc:
        return b"", (str(exc),), Answer.REFUSED
    if made is None:
        return b"", (), Answer.CHANGED
    new, notes = made
    return b"" if new is payload else new, notes, None


def _with_ttl(ttl_ms: int | None, _: str, payload: bytes) -> tuple[bytes, Sequence[str]]:
    try:
        items = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        items[_TTL] = msgspec.Raw(msgspec.msgpack.encode(ttl_ms))
    except (msgspec.MsgspecError, IndexError) as exc:
        raise DecodeError("undecodable", "record", str(exc)) from None
    return msgspec.msgpack.encode(items), ()

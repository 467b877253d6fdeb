"""Replacing messages by themselves with another content: touch and redirect.

A message is read, and replaced if it is still the one that was read, due when it was due then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from delaybridge.accept.accept import Accepted
from delaybridge.errors import DecodeError, MessageError
from delaybridge.message import Answer, OnConflict, State, destination_text
from delaybridge.store.messages.changes import Changes, Named, furthest
from delaybridge.store.messages.redirect_to import new_destination, redirected, with_fields
from delaybridge.store.messages.selection import Selected
from delaybridge.store.namespace.rules import covers, place_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import HEAD_SIZE, STAMP, ForDeadSet, split_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.verbs import RedisCommand, Steps

_TRIES = 5  # of a touch, while others change the message
_DONE = (Answer.REPLACED, Answer.CREATED)  # the second: the call was sent again
_GOOD = (Answer.REDIRECTED, Answer.REDIRECTED_MAYBE_DELIVERED)
# Makes the new payload of a message, and notes of what is left out; None: it is not one of those
# that are meant. DecodeError, MessageError.
_Remake = Callable[[bytes], tuple[bytes, Sequence[str]] | None]


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
    """A message that was read. place: in the call. payload: what it is to become."""

    place: int
    bucket: Bucket
    row: Row
    payload: bytes

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
            (answer,) = asked.parse(reply) or [Answer.UNKNOWN]  # the namespace was wiped
            answer = answer[0] if isinstance(answer, tuple) else answer
            if answer is Answer.FOREIGN:
                return Answer.IN_FLIGHT if row.is_given else Answer.CHANGED
            return Answer.REDIRECTED if answer in _DONE else Answer(answer)

        return replace(asked, parse=parse)

    def is_maybe(self) -> RedisCommand[bool]:
        """Whether an earlier publish may have been delivered; the note outlives a replace."""
        asked: Any = self.bucket.get(self.row.id)

        def parse(reply: Any) -> bool:
            found = asked.parse(reply) or self.row
            return bool(self.row.tried.maybe_delivered or found.tried.maybe_delivered)

        return replace(asked, args=(self.row.id, HEAD_SIZE), parse=parse)


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
        remake: _Remake = lambda payload: (with_fields(payload, ttl_ms=ttl_ms), ())  # noqa: E731
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
        self, messages: Sequence[Named], to: str, key: bytes | None, *,
        bound_for: str | None = None, is_dead: bool = False, dry: bool = False,
    ) -> Steps[list[RedirectAnswer]]:  # fmt: skip
        """Give each another destination, if it is still the message that was read.

        bound_for: only those that go to this place now. MessageError: a destination cannot exist.
        """
        destination = new_destination(to, self.kinds)
        place = None if bound_for is None else place_of(bound_for, self.kinds)

        def remake(payload: bytes) -> tuple[bytes, Sequence[str]] | None:
            if place is None or covers(place, destination_text(payload), self.kinds):
                return redirected(payload, destination, self.kinds, self.limits)
            return None

        return (yield from self._rewrite(messages, key, remake, is_dead, dry))

    def _rewrite(
        self, messages: Sequence[Named], key: bytes | None, remake: _Remake, is_dead: bool,
        dry: bool,
    ) -> Steps[list[RedirectAnswer]]:  # fmt: skip
        """One try; changed: it was changed after it was read."""
        read, notes = list[_Read](), dict[int, Sequence[str]]()
        reading = partial(_reading, read, notes, remake, is_dead)
        look = self._each_or_quarantined if is_dead else self._each
        answers = yield from look(messages, key, reading)
        if read and not dry:
            named = [Selected(r.row.id, r.bucket.number, r.row.state) for r in read]
            done = yield from self._each(named, None, lambda _b, s, _id, i: read[i].replace(s))
            maybe = yield [each.is_maybe() for each in read]
            found: dict[int, list[Answer]] = {}
            for each, answer, is_maybe in zip(read, done, maybe, strict=True):
                is_good = answer is Answer.REDIRECTED
                found.setdefault(each.place, []).append(_GOOD[is_maybe] if is_good else answer)
            for i, some in found.items():
                answers[i] = furthest(some)
        return [RedirectAnswer(answer, notes.get(i, ())) for i, answer in enumerate(answers)]


def _reading(
    read: list[_Read], notes: dict[int, Sequence[str]], remake: _Remake, is_dead: bool,
    bucket: Bucket, _: bytes, id: str, place: int,
) -> RedisCommand[Answer | None]:  # fmt: skip
    """Read a message into `read`, if it is to become another; what the answer is until then."""
    asked: Any = bucket.get(id)

    def parse(reply: Any) -> Answer | None:
        row = asked.parse(reply)
        answer = None if row is None else _standing(row, is_dead)
        if row is None or answer is not Answer.REDIRECTED:
            return answer
        try:
            _, payload = split_record(row.record)
            made = remake(payload)
        except DecodeError:
            return Answer.UNREADABLE
        except MessageError as exc:
            notes[place] = (str(exc),)
            return Answer.REFUSED
        if made is None:
            return Answer.CHANGED
        new, notes[place] = made
        if new is not payload:
            read.append(_Read(place, bucket, row, new))
        return _GOOD[row.tried.maybe_delivered]

    return replace(asked, parse=parse)


def _standing(row: Row, is_dead: bool) -> Answer | None:
    """`redirected` if it can be changed. is_dead: dead ones are meant, which may have no record."""
    if row.state is not State.DEAD if is_dead else not row.record:
        return None
    if row.state is State.DEAD:
        return Answer.REDIRECTED if is_dead else Answer.DEAD
    return Answer.IN_FLIGHT if row.fired else Answer.REDIRECTED

"""A command that is sent once more, to other buckets: its message is not in the first any more.

Replies are as Redis gives them: lua/ says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any

from msgspec import json
from msgspec.structs import replace

from delaybridge.gathering import spanned
from delaybridge.store.protocol.moves import STRANGER, shard_key, target_of
from delaybridge.store.protocol.record import ForDeadSet
from delaybridge.store.protocol.verbs import GATHERED, Arg, RedisCommand

ELSEWHERE, _UNKNOWN = 30, 0
_FIRST_ID, _OFFSET_BYTES, _STAMP_BYTES = 10, 8, 4  # of the arguments of `schedule`
_FIRST_DEAD, _WORDS = 3, len(ForDeadSet._fields)  # of those of `quarantine`
_CARRIED, _KNOWN_SOURCE, _REPLACE_NAMED, _REPLACED = 6, 4, 5, 4


def is_absent(command: RedisCommand[Any], reply: Any) -> bool:
    """Whether a bucket lacks a message that it is asked for, or leaves one to other buckets."""
    if command.name == "schedule":
        is_of_known_source = int(command.args[1]) == _KNOWN_SOURCE
        return ELSEWHERE in _triples(reply)[::3] or (reply == [] and is_of_known_source)
    if command.name == "get":
        return reply is None
    if command.name == "fence":
        return not all(reply)
    if command.name == "quarantine":
        return ELSEWHERE in reply
    if not (isinstance(reply, list) and reply):
        return bool(reply == _UNKNOWN)
    has_left = command.name == "cancel" and bool(reply[1])  # the ledger's row says which
    return bool(reply[0] == _UNKNOWN) and not has_left


class Resent:
    """The command for the buckets that have its messages by now, and what they answer together."""

    def __init__(self, command: RedisCommand[Any], reply: Any, targets: Sequence[int]) -> None:
        """reply: of the first bucket; None if there is none any more."""
        self._command, self._targets = command, targets
        self._is_schedule = command.name == "schedule"
        self._is_split = self._is_schedule or command.name == "quarantine"
        self._first: list[list[Any]] = []  # answer, due and old stamp of each message
        self._sent: list[list[int]] = []  # to each target: places of messages
        if self._is_split:
            self._read(reply)

    def _read(self, reply: Any) -> None:
        messages = self._messages()
        self._first = self._each(reply) if reply else [[ELSEWHERE, 0, b""] for _ in messages]
        self._sent = [[] for _ in self._targets]
        for place, answer in enumerate(self._first):
            if answer[0] == ELSEWHERE:
                number = target_of(shard_key(*messages[place]), self._targets)
                self._sent[self._targets.index(number)].append(place)

    def _messages(self) -> list[tuple[bytes, bytes]]:
        """Id and payload of each."""
        args: Any = self._command.args
        ids, payloads = args[_FIRST_DEAD + 1 :: _WORDS], args[_FIRST_DEAD + 2 :: _WORDS]
        if self._is_schedule:
            end = _FIRST_ID + int(args[9])
            ids, entries = args[_FIRST_ID:end], args[end : end + int(args[9])]
            payloads = [entry[_STAMP_BYTES:] for entry in entries]
        some = zip(ids, payloads, strict=True)
        return [(id if isinstance(id, bytes) else str(id).encode(), each) for id, each in some]

    def _each(self, reply: Any) -> list[list[Any]]:
        """Answer, due and old stamp of each message in a reply."""
        return _each(reply) if self._is_schedule else [[answer, 0, b""] for answer in reply]

    def commands(self) -> Iterator[tuple[int, RedisCommand[Any]]]:
        """The commands, each with the number of its bucket."""
        for n, number in enumerate(self._targets):
            if not self._is_split:
                yield number, self._command
            elif self._sent[n]:
                yield number, self._part(self._sent[n])

    def _part(self, places: Sequence[int]) -> RedisCommand[Any]:
        """The command for some of the messages."""
        args = self._command.args
        if not self._is_schedule:
            at = [_FIRST_DEAD + _WORDS * place for place in places]
            some = [word for n in at for word in args[n : n + _WORDS]]
            return replace(self._command, args=[*args[:2], 1, *some])
        count, offsets = int(args[9]), args[7]
        if isinstance(offsets, bytes) and len(offsets) == count * _OFFSET_BYTES and args[6]:
            own = (offsets[_OFFSET_BYTES * p : _OFFSET_BYTES * (p + 1)] for p in places)
            offsets = b"".join(own)
        ids = [args[_FIRST_ID + place] for place in places]
        entries = [args[_FIRST_ID + count + place] for place in places]
        head = [*args[:3], 1, *args[4:7], offsets, _reach(args, places), len(places)]
        return replace(self._command, args=[*head, *ids, *entries, *self._runs(places)])

    def _runs(self, places: Sequence[int]) -> Iterator[Arg]:
        """When some of the messages are due."""
        each = self._command.args[_FIRST_ID + 2 * int(self._command.args[9]) :]
        due = [score for n in range(0, len(each), 2) for score in [each[n]] * int(each[n + 1])]
        for score, run in groupby(spanned(due[p], self._first[p][1]) for p in places):
            yield from (score, len([*run]))

    def result(self, replies: Sequence[Any]) -> Any:
        """What all answer together; raises an error of one of them."""
        if (error := next((e for e in replies if isinstance(e, Exception)), None)) is not None:
            raise error
        if self._command.name == "fence":
            return [next(filter(None, each), b"") for each in zip(*replies, strict=True)]
        if not self._is_split:
            return next((r for r in replies if not is_absent(self._command, r)), replies[0])
        if STRANGER in replies:
            return STRANGER
        answers: list[list[Any]] = [*self._first]
        for places, reply in zip(filter(None, self._sent), replies, strict=True):
            found = self._each(reply)
            for place, one in zip(places, found, strict=False):
                answers[place] = one
            for place in places[len(found) :]:  # it ended with one that the caller must act on
                answers[place] = [ELSEWHERE, 0, b""]
        return self._as_reply([*takewhile(lambda one: one[0] != ELSEWHERE, answers)])

    def _as_reply(self, answers: Sequence[Sequence[Any]]) -> list[Any]:
        if not self._is_schedule:
            return [answer for answer, _, _ in answers]
        reply: list[Any] = [word for answer, due, _ in answers for word in (answer, due, 1)]
        policy = int(self._command.args[1])
        if policy == _REPLACE_NAMED or policy >= 2 * GATHERED:  # what is replaced is named
            reply.append([stamp for answer, _, stamp in answers if answer == _REPLACED])
        return reply


def _reach(args: Sequence[Any], places: Sequence[int]) -> Arg:
    """The reach of these messages; of those that were tried elsewhere it has their attempts."""
    reach: Arg = args[8]
    if int(args[1]) != _CARRIED or not reach:
        return reach
    tried = json.decode(args[8])
    return json.encode([tried[place] for place in places])


def _triples(reply: Any) -> list[Any]:
    """The runs of a reply to `schedule`, without the list that may follow."""
    return reply[:-1] if reply and isinstance(reply[-1], list) else reply or []


def _each(reply: Any) -> list[list[Any]]:
    """Answer, due and old stamp of each message in a reply to `schedule`."""
    runs = _triples(reply)
    stamps = iter(reply[-1] if reply and isinstance(reply[-1], list) else ())
    answers = [
        [answer, due, b""]
        for answer, due, many in zip(runs[::3], runs[1::3], runs[2::3], strict=True)
        for _ in range(many)
    ]
    for one in answers:
        if one[0] == _REPLACED:
            one[2] = next(stamps, b"")
    return answers

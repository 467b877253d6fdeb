"""Commands for buckets that give their messages to others: what is not there any more is followed.

A resize changes the layout of a namespace under calls that know an older one. The bucket that they
ask is of the epoch `Layout.here`. It may have other keys by now, or none; what is left under its
old ones is of a wrong type. Then the record is read again, and the command goes where the message
is: it stays at the bucket if that has the message, else it goes on to the next epoch. A page that
is on its way lands before: so no message is missed, whatever moves meanwhile.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from delaybridge.errors import StoreError, StoreWiped
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.layout import Layout
from delaybridge.store.protocol.resent import Resent, is_absent
from delaybridge.store.protocol.together import together
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, as_received
from delaybridge.store.redis.errors import WrongType

_WHOLE, _MOVING, _RETIRED = range(3)
_LOOK_S = 1.0  # while a resize is under way, the record is read as often
_FOLLOWED = {"schedule", "cancel", "reschedule", "kick", "discard", "get", "quarantine", "fence"}
_READS = {*"GET HGET HGETALL HLEN HMGET HSCAN page sample tally".split()}
_READS |= {*"ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE ZSCORE".split()}
_SOURCES = {"schedule": 6, "reschedule": 6, "cancel": 3}  # where a source is among the arguments
_TRIES = 5


class BucketsFollowed:
    """Where the buckets of a namespace are, as this process knows it."""

    def __init__(self, namespace: str) -> None:
        self._namespace, self.birth = namespace, ""
        self.layout: Layout | None = None
        self.is_resizing = False  # messages move to other buckets
        self._states: dict[int, int] = {}
        self._made: dict[int, Bucket] = {}  # each is dear
        self._number = re.compile(
            rf"\{{{re.escape(namespace)}:([0-9]+)(?:\.[0-9]+)?\}}:(?!moving:)"
        )
        self._looked_s = 0.0
        self.moved_s = -math.inf  # when other buckets were found to have all messages
        self.resting: set[int] = set()  # that this process is not to hold now
        self.here: list[Bucket] = []  # of `Layout.here`, under their old keys
        self.learnt: tuple[Layout, str] | None = None  # the record that was taken last

    def learn(self, layout: Layout, birth: str) -> bool:
        """Take a record that was read; whether it says something new."""
        if (layout, birth) == self.learnt:
            return False
        if birth != self.birth:
            self._states, self._made = {}, {}
        elif self.layout is not None and self.layout.here != layout.here:
            self.moved_s = time.monotonic()
            if layout.here.first < self.layout.here.first:  # Redis has an older past
                self._states = {}
        self.birth, self.is_resizing = birth, layout.next is not None
        # Also in a Redis that was wiped, and has no trace of them.
        before = (n for each in layout.epochs[: layout.at] for n in each.numbers)
        self._states |= dict.fromkeys(before, _RETIRED)
        self.here = [self.bucket(number) for number in layout.here.numbers]
        self.layout = layout
        self.learnt = layout, birth  # last: another thread that finds it goes on with `here`
        return True

    def bucket(self, number: int) -> Bucket:
        """A bucket by its number."""
        found = self._made.get(number)
        if found is None or found.birth != self.birth:  # made by a thread, meanwhile
            found = self._made[number] = Bucket(self._namespace, number, self.birth)
        return found

    def heirs(self, number: int) -> list[int]:
        """A bucket, and all that may have what it had."""
        found = [number]
        for each in found:
            found += self._known.targets(each)
        return found

    def knows(self, number: int) -> bool:
        """Whether there is, or was, a bucket of this number."""
        return any(number in each for each in self._known.epochs)

    def numbers(self) -> list[int]:
        """All buckets that there are, or were when messages began to move: the same everywhere."""
        return [*self._known.numbers]

    def held(self) -> list[Bucket]:
        """The buckets that workers are to hold, as far as is known."""
        layout = self._known
        if layout.next is None:
            return self.here
        held = (n for n in layout.numbers if n not in self.resting and not self.is_retired(n))
        return [self.bucket(n) for n in held]

    def every_bucket(self) -> Steps[list[Bucket]]:
        """All buckets that may have messages."""
        yield from self._read()
        layout = self._known
        if layout.next is None:
            return self.here
        yield from self.look_again()
        return [self.bucket(n) for n in layout.numbers if not self.is_retired(n)]

    def look_again(self) -> Steps[None]:
        """Learn which keys the buckets have that are not known to have ended."""
        yield from self.look_at([n for n in self._known.here.numbers if not self.is_retired(n)])

    def look_at(self, numbers: Sequence[int]) -> Steps[None]:
        """Learn which keys these buckets have."""
        old = [self.bucket(n).key("messages") for n in numbers]
        found = yield Each(moves.is_moved(k) for name in old for k in (name, keys.moving(name)))
        for n, begun, ended in zip(numbers, found[::2], found[1::2], strict=True):
            if ended is True or n < self._known.here.first:
                self._states[n] = _RETIRED
            elif begun is True:
                self._states[n] = _MOVING
            elif begun is False or isinstance(begun, WrongType):  # Redis may have an older past
                self._states[n] = _WHOLE

    def has_begun(self, number: int) -> bool:
        """Whether a bucket gives its messages away, or has given them, as far as is known."""
        return self._states.get(number, _WHOLE) != _WHOLE

    def is_retired(self, number: int) -> bool:
        """Whether a bucket has no keys any more, as far as is known."""
        return self._states.get(number) == _RETIRED

    @property
    def _known(self) -> Layout:
        if self.layout is None:
            raise StoreError("the namespace was not opened")
        return self.layout

    # commands

    def is_outdated(self, answers: Sequence[Any]) -> bool:
        """Whether these answers may be those of buckets that have other keys by now."""
        return self.layout is not None and any(isinstance(each, WrongType) for each in answers)

    def run(self, commands: Sequence[RedisCommand[Any]]) -> Steps[list[Any]]:
        """The answers to commands, each where its messages are; errors among them."""
        if not self.is_resizing or time.monotonic() > self._looked_s + _LOOK_S:
            yield from self._read()
        return (yield from together([self._one(command) for command in commands]))

    def _read(self) -> Steps[None]:
        (record,) = yield Each([registry.read_layout(self._namespace)])
        if record is not None and not isinstance(record, StoreError):
            self.learn(*record)
            self._looked_s = time.monotonic()

    def _one(self, command: RedisCommand[Any]) -> Steps[Any]:
        number = self._number_of(command)
        if number is None or not self._known.targets(number):
            (answer,) = yield [command]
            return answer
        if command.name == "schedule_one":
            return 0  # `schedule` is asked, which goes on to where the message is to be
        asked = replace(command, parse=as_received)
        steps = self._followed if command.name in _FOLLOWED else self._at
        return command.parse((yield from steps(asked, number)))

    def _number_of(self, command: RedisCommand[Any]) -> int | None:
        """The bucket that a command is for, by its old keys."""
        if command.near:
            return None
        key = command.keys[0] if command.keys else next(iter(command.args), "")
        found = self._number.match(key) if isinstance(key, str) else None
        return int(found[1]) if found else None

    def _at(self, command: RedisCommand[Any], number: int) -> Steps[Any]:
        """The reply at the bucket itself, under the keys that it has; raises its error."""
        for _ in range(_TRIES):
            state = self._states.get(number, _WHOLE)
            asked = renamed(command) if state != _WHOLE else command
            if state == _RETIRED and command.name in _READS:
                asked = renamed(asked)  # keys that are never there: it has nothing
            (reply,) = yield Each([asked])
            if isinstance(reply, WrongType):
                yield from self.look_at([number])
                if self._states.get(number, _WHOLE) != state:
                    continue
            return _answer(reply)
        raise StoreError(f"redis: bucket {number} is on its way to other buckets: call again")

    def _followed(self, command: RedisCommand[Any], number: int) -> Steps[Any]:
        """The reply of the bucket, or of those that have its messages by now."""
        reply: Any = None
        if not self.is_retired(number):
            try:
                reply = yield from self._at(command, number)
            except WrongType:
                if not self.is_retired(number):
                    raise
        if not (self.is_retired(number) or (self.has_begun(number) and is_absent(command, reply))):
            return reply
        if not self.is_retired(number):
            yield from self.land_page(self.bucket(number))
        targets = self._known.targets(number)
        if command.shard_key is not None:
            targets = [moves.target_of(command.shard_key, targets)]
        resent = Resent(command, reply, targets)
        sent = [(self._for(one, number, n), n) for n, one in resent.commands()]
        return resent.result((yield from together([self._next(one, n) for one, n in sent])))

    def _next(self, command: RedisCommand[Any], number: int) -> Steps[Any]:
        if not self._known.targets(number):
            (reply,) = yield Each([command])
            if isinstance(reply, WrongType):
                yield from self._read()
            if not (isinstance(reply, WrongType) and self._known.targets(number)):
                return _answer(reply)
        return (yield from self._followed(command, number))  # its epoch gives messages away, too

    def _for(self, command: RedisCommand[Any], first: int, number: int) -> RedisCommand[Any]:
        """The command to a first bucket for another one, which has its messages by now."""
        bucket = self.bucket(number)
        names = tuple(bucket.key(name.rpartition(":")[2]) for name in command.keys)
        args = list(command.args)
        if command.name in ("schedule", "reschedule", "kick"):
            args[4:6] = bucket.wake, number
        at = _SOURCES.get(command.name)
        if at is not None and self._meet(first):
            args[at] = moves.source_at(str(args[at]), first)
        return replace(command, keys=names, args=args)

    def _meet(self, number: int) -> bool:
        """Whether messages of several buckets go where those of this one go."""
        return len(self._known.sources(self._known.targets(number)[0])) > 1

    def land_page(self, bucket: Bucket) -> Steps[dict[int, list[bytes]]]:
        """Land the page that a bucket has lifted; the ids that were refused, by target."""
        (page,) = yield [renamed(moves.leaving(bucket))]
        return (yield from self.land(bucket, page)) if page is not None else {}

    def land(self, bucket: Bucket, page: moves.MovedPage) -> Steps[dict[int, list[bytes]]]:
        """Land this page of a bucket; the ids that were refused, by target."""
        layout = self._known
        entries = page.entries
        if self._meet(bucket.number):
            entries = [moves.known_at(each, bucket.number) for each in entries]
        some = moves.by_target(entries, layout.targets(bucket.number))
        to = [(Bucket(self._namespace, number, self.birth), entries) for number, entries in some]
        refused = yield [
            moves.land(one, page, bucket.number, entries, layout.sources(one.number))
            for one, entries in to
        ]
        if moves.STRANGER in refused:
            raise StoreWiped()
        return {one.number: ids for (one, _), ids in zip(to, refused, strict=True)}


def _answer(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def renamed(command: RedisCommand[Any]) -> RedisCommand[Any]:
    """The command for the same bucket once it gives its messages to others."""
    if command.keys:
        return replace(command, keys=tuple(map(keys.moving, command.keys)))
    key, *args = command.args
    return replace(command, args=(keys.moving(str(key)), *args))

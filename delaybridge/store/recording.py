"""Recording: what a store does with commands that change messages, where there is a ledger.

A row is committed before Redis is told of its message, and what Redis answered is committed before
the caller has the answer. So whatever was answered is in the ledger. Between the two a process may
die: then the row says less than Redis does, and workers mend it (docs/ledger.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from delaybridge import failpoints
from delaybridge.errors import (
    ConfigError,
    LedgerUnavailable,
    StoreDenied,
    StoreError,
    StoreFull,
)
from delaybridge.ledger import open_ledger
from delaybridge.ledger.rows import LedgerRow
from delaybridge.ledger.work import Ledger, Work
from delaybridge.message import Answer
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.settings.urls import check_ledger_url
from delaybridge.store import keys, registry, replies
from delaybridge.store.command import RedisCommand
from delaybridge.store.effects import Effects
from delaybridge.store.healing import Standing, standing_at
from delaybridge.store.told import STAMP_BYTES, bucket_in, marks_of, rows_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.records import Records

T = TypeVar("T")
Asked = Work[Any] | Sequence[RedisCommand[Any]]
LedgerSteps = Generator[Asked, Any, T]
"""A call that also asks the ledger: `Steps` that yields `Work`, and is sent its result."""
Steps = LedgerSteps[None]
"""Yields work for the ledger, whose error is thrown into it, and commands for Redis; is sent the
result, or the answers, errors among them."""

_STORING = frozenset(("schedule", "quarantine"))
_CHANGING = frozenset(("cancel", "reschedule", "kick", "discard"))
_WENT_BACK = "ledger: Redis went back, or was wiped, meanwhile; the outcome is unknown: call again"
_TRIES = 3  # of a call during which workers begin to compare its bucket
# Places of arguments.
_NOW, _ID, _SOURCE, _RECEIPT, _ROW = 0, 2, 3, 7, 8


class Recorder:
    """Records the commands of one namespace."""

    def __init__(self, ledger: Ledger, namespace: str) -> None:
        from delaybridge.ledger.records import Records  # imports SQLAlchemy

        self.ledger, self.records = ledger, Records(namespace)
        self._birth = keys.birth(namespace)

    def concerns(self, commands: Sequence[RedisCommand[Any]]) -> bool:
        """Whether the ledger is to know of any of these commands."""
        return any(map(self._is_recorded, commands))

    def _is_recorded(self, command: RedisCommand[Any]) -> bool:
        if command.is_plain:
            return self._creates(command)
        return command.name in _STORING or command.name in _CHANGING

    def _creates(self, command: RedisCommand[Any]) -> bool:
        """Whether it makes the namespace, unless there is one."""
        args = command.args
        return command.name == "SET" and args[0] == self._birth and args[-1] == "NX"

    def record(
        self, commands: Sequence[RedisCommand[Any]], node_of: Callable[[str], str]
    ) -> Recorded:
        """Run these commands, and have the ledger know of them.

        node_of: the server of a key, as a store says it.
        """
        recording = _Recording(self.records, commands)
        return Recorded(recording.answers, self._record(recording, commands, node_of))

    def _record(
        self,
        recording: _Recording,
        commands: Sequence[RedisCommand[Any]],
        node_of: Callable[[str], str],
    ) -> Steps:
        asked = [*commands]
        places = [i for i, command in enumerate(asked) if self._is_recorded(command)]
        yield from recording.read_clocks([i for i in places if not asked[i].is_plain], node_of)
        yield from recording.settle_namespaces([i for i in places if asked[i].is_plain])
        yield from recording.add_rows([i for i in places if asked[i].name in _STORING])
        yield from recording.run(range(len(asked)))
        yield from recording.take_answers(places)
        yield from recording.withdraw_absent([i for i in places if asked[i].name == "cancel"])


def recorder_of(
    durability: Durability, url: str | None, namespace: str, timeout_s: float
) -> Recorder | None:
    """The recorder of a store; None: there is no ledger. ConfigError: it has no URL, or no driver.

    url: of the database, as in the settings.
    """
    if durability.mode is not Keeping.LEDGER:
        return None
    try:
        checked = check_ledger_url(str.__str__(url or ""))
    except ValueError as exc:
        raise ConfigError(f"ledger: {exc}") from None
    if not checked:
        raise ConfigError("durability: ledger needs the URL of a database: ledger.url")
    return Recorder(open_ledger(checked, timeout_s=timeout_s), namespace)


def ledger_of(recorder: Recorder | None) -> Ledger:
    """The ledger of a store; ConfigError if it has none."""
    if recorder is None:
        raise ConfigError("ledger: not configured; set durability to ledger, and ledger.url")
    return recorder.ledger


class Recorded:
    """Commands that are being recorded, step by step.

    asked: what is to be done next; None: it is done. answers: of each command, errors among them.
    """

    def __init__(self, answers: list[Any], steps: Steps) -> None:
        self.answers, self._steps = answers, steps
        self.asked: Asked | None = next(steps, None)

    def take(self, result: Any) -> None:
        """The result of what was asked."""
        self.asked = None
        with suppress(StopIteration):
            self.asked = self._steps.send(result)

    def fail(self, error: Exception) -> None:
        """The ledger could not do what was asked."""
        self.asked = None
        with suppress(StopIteration):
            self.asked = self._steps.throw(error)

    def result(self) -> list[Any]:
        """The answers; raises the first error."""
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return self.answers


class _Recording:
    """The commands of one pipeline, and what is known of each."""

    def __init__(self, records: Records, asked: Sequence[RedisCommand[Any]]) -> None:
        self.answers: list[Any] = [None] * len(asked)
        self._records, self._asked = records, [*asked]
        self._rows: dict[int, list[LedgerRow]] = {}
        self._added: set[Any] = set()
        self._words: dict[int, list[Answer]] = {}  # what Redis said of each message
        self._standing: dict[str, Standing] = {}  # of buckets, by the key `marks`
        self._now_ms = 0

    def read_clocks(self, places: Sequence[int], node_of: Callable[[str], str]) -> Steps:
        """Fix the time of each command: rows are written by it before Redis sees the command."""
        nodes = {i: node_of(self._asked[i].keys[0]) for i in places}
        first = {node: i for i, node in reversed(nodes.items())}
        if not first:
            return
        clocks = yield [registry.store_time(self._asked[i].keys[0]) for i in first.values()]
        times = dict(zip(first, clocks, strict=True))
        for i, node in nodes.items():
            if isinstance(times[node], Exception):
                self.answers[i] = times[node]
                continue
            self._now_ms = math.ceil(times[node] / 1000)
            args = [*self._asked[i].args]
            args[_NOW] = args[_NOW] or self._now_ms
            self._asked[i] = msgspec.structs.replace(self._asked[i], args=args)

    def settle_namespaces(self, places: Sequence[int]) -> Steps:
        """A namespace that is made again has the buckets and the birth id that it had.

        Whoever was restoring messages when Redis was wiped goes on: his are those of the new one.
        """
        for i in places:
            name, text, *rest = self._asked[i].args
            count, _, birth = str(text).partition(":")
            try:
                known = yield Work(partial(_settled, self._records, int(count), birth))
            except LedgerUnavailable as exc:
                self.answers[i] = exc
                continue
            args = (name, "{}:{}".format(*known), *rest)
            self._asked[i] = msgspec.structs.replace(self._asked[i], args=args)

    def add_rows(self, places: Sequence[int]) -> Steps:
        """Commit the rows of all messages that are to be stored."""
        for i in places:
            if self.answers[i] is None:
                self._rows[i] = [*rows_of(self._asked[i], self._records.namespace)]
        rows = [row for own in self._rows.values() for row in own]
        if not rows:
            return
        try:
            self._added = yield Work(lambda on: self._records.add(on, rows))
        except StoreError as exc:  # nothing is stored without its row
            for i in self._rows:
                self.answers[i] = exc
            self._rows = {}
        if failpoints.ARE_SET:
            failpoints.reach("ledger.added")

    def _heard(self, i: int) -> RedisCommand[Any]:
        """The command; its reply is also read for the rows of the messages that it stores."""
        command = self._asked[i]

        def parse(reply: Any) -> Any:
            if command.name == "schedule":
                self._words[i] = [word for word, _ in replies.read_scheduled(reply) or ()]
            else:
                self._words[i] = replies.read_answers(reply) or []
            return command.parse(reply)

        return msgspec.structs.replace(command, parse=parse) if i in self._rows else command

    def run(self, places: Sequence[int]) -> Steps:
        """Run the commands that have no answer yet; first look how their buckets stand."""
        left = [i for i in places if self.answers[i] is None]
        marks = dict.fromkeys(filter(None, (marks_of(self._asked[i]) for i in left)))
        looks = [standing_at(name) for name in marks if name not in self._standing]
        if left:
            answers = yield [*looks, *(self._heard(i) for i in left)]
            for look, answer in zip(looks, answers, strict=False):
                known = Standing() if isinstance(answer, Exception) else answer
                self._standing[str(look.args[0])] = known
            for i, answer in zip(left, answers[len(looks) :], strict=True):
                self.answers[i] = answer
        if failpoints.ARE_SET:
            failpoints.reach("ledger.answered")

    def take_answers(self, places: Sequence[int], tries: int = _TRIES) -> Steps:
        """Commit what Redis has answered; whose answer cannot be committed gets the error."""
        effects = Effects(self._records, self._now_ms)
        for i in places:
            answer = self.answers[i]
            if self._asked[i].name not in _STORING:
                effects.take(i, self._asked[i], answer)
            elif not isinstance(answer, Exception) or isinstance(answer, StoreFull | StoreDenied):
                # After another error they may have been stored: so they are to be delivered.
                rows, words = self._rows.get(i, ()), self._words.get(i, ())
                effects.take_stored(i, rows, words, self._added)
        if effects.places:
            yield from self._commit(effects, tries)

    def _commit(self, effects: Effects, tries: int) -> Steps:
        try:
            yield Work(effects.run)
        except StoreError as exc:
            for i in effects.places:
                if not isinstance(self.answers[i], Exception):
                    self.answers[i] = exc
            return
        if again := (yield from self._in_doubt(sorted(effects.undoable))):
            yield from self._once_more(again, tries - 1)

    def _in_doubt(self, places: Sequence[int]) -> Generator[Asked, Any, list[int]]:
        """Those whose bucket somebody began to compare before the commit.

        He may have read the ledger before it, too, and undo what was done if Redis forgot it.
        """
        marks = {i: marks_of(self._asked[i]) for i in places}
        names = [*dict.fromkeys(marks.values())]
        if not names:
            return []
        found = yield [standing_at(name) for name in names]
        now = dict(zip(names, found, strict=True))
        stand = {name: self._stands(name, now[name]) for name in names}
        return [i for i in places if not stand[marks[i]]]

    def _stands(self, marks: str, now: Any) -> bool:
        before = self._standing[marks]
        self._standing[marks] = now if isinstance(now, Standing) else Standing()
        return isinstance(now, Standing) and now.healed == before.healed

    def _once_more(self, places: Sequence[int], tries: int) -> Steps:
        """The same calls again: Redis knows them by their stamps, unless it has forgotten them."""
        if tries:
            before = {i: self.answers[i] for i in places}
            for i in places:
                self.answers[i] = None
            yield from self.run(places)
            same = [i for i in places if self.answers[i] == before[i]]
            yield from self.take_answers(same, tries)
            places = [i for i in places if i not in same]
        for i in places:
            if not isinstance(self.answers[i], Exception):
                self.answers[i] = LedgerUnavailable(_WENT_BACK)

    def _unknown(self, places: Sequence[int]) -> dict[tuple[Any, Any], list[int]]:
        """Cancels that no bucket knew a message for: stamp and id -> their places."""
        named: dict[tuple[Any, Any], list[int]] = defaultdict(list)
        for i in places:
            args = self._asked[i].args
            if not (args[_SOURCE] or args[_RECEIPT]):
                named[args[1], args[_ID]].append(i)
        return {
            name: own
            for name, own in named.items()
            if all(self.answers[i] is Answer.UNKNOWN for i in own)
        }

    def withdraw_absent(self, places: Sequence[int]) -> Steps:
        """Cancel messages that the ledger has and Redis lacks: it was wiped, or never had them."""
        named = self._unknown(places)
        if not named:
            return
        ids = [str(id) for _, id in named]
        try:
            rows = yield Work(lambda on: self._records.live(on, ids))
        except StoreError as exc:
            for i in (i for own in named.values() for i in own):
                self.answers[i] = exc
            return
        yield from self._withdraw(named, rows)

    def _withdraw(
        self, named: dict[tuple[Any, Any], list[int]], rows: Sequence[LedgerRow]
    ) -> Steps:
        places = {
            (bucket_in(self._asked[i], self._records.namespace), str(id)): i
            for (_, id), own in named.items()
            for i in own
        }
        for row in rows:
            i = places.get(row.name[:2])
            if i is None:
                continue
            args = [*self._asked[i].args]
            args[_ROW] = row.stamp.to_bytes(STAMP_BYTES, "big")
            self._asked[i] = msgspec.structs.replace(self._asked[i], args=args)
            self.answers[i] = None
            yield from self.run([i])
            effects = Effects(self._records, self._now_ms)
            effects.take(i, self._asked[i], self.answers[i])
            if effects.places:
                yield from self._commit(effects, _TRIES)


def _settled(records: Records, buckets: int, birth: str, on: Connection) -> tuple[int, str]:
    return records.settle(on, buckets, birth)

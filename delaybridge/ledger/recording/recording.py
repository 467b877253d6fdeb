"""Recording: commands that change messages, step by step, and the ledger beside them.

A row is committed before Redis is told of its message, and what Redis answered is committed before
the caller has the answer. So whatever was answered is in the ledger. Between the two a process may
die: then the row says less than Redis does, and workers mend it (docs/ledger.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from delaybridge import failpoints
from delaybridge.errors import LedgerRefused, LedgerUnavailable, StoreDenied, StoreError, StoreFull
from delaybridge.ledger.comparing.along import is_same_layout
from delaybridge.ledger.comparing.healing import Standing, standing_at
from delaybridge.ledger.recording import tiers
from delaybridge.ledger.recording.acted import (
    ActedOn,
    due_now,
    dues_in,
    naming,
    read_acted,
    read_replaced,
)
from delaybridge.ledger.recording.ledger_answers import UNDOING, Effects, LiveRows
from delaybridge.ledger.recording.ledger_rows import gathered_rows, is_of_source, marks_of, rows_of
from delaybridge.ledger.recording.noting import plans_in
from delaybridge.ledger.recording.tiering import bring_lost, for_redis, separate
from delaybridge.ledger.sql.rows import COLD, HOT, LedgerRow, RowName
from delaybridge.message import Answer
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import replies
from delaybridge.store.protocol.layout import Layout, parse_record, record_text
from delaybridge.store.protocol.recorder import WENT_BACK, in_doubt, of_ledger
from delaybridge.store.protocol.verbs import LedgerSteps, RedisCommand, Work, new_stamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.cold import ColdRecords
    from delaybridge.ledger.sql.controls import ControlRecords

Steps = LedgerSteps[None]
_Call = tuple[RedisCommand[Any], list[LedgerRow]]
_TRIES = 3  # of a call during which workers begin to compare its bucket, or Redis is wiped
# Places of arguments.
_NOW, _STAMP = 0, 1
_HAS_ROWS = 7  # or the offsets in a source
_STORING = frozenset(("schedule", "quarantine"))
_CHANGING = frozenset(("cancel", "reschedule", "kick", "discard"))
_NEVER_MS = 2**53
_UNDER_WAY = "?"  # begins the name of a comparison that has not ended


def stores(command: RedisCommand[Any]) -> bool:
    """Whether a command stores messages."""
    return command.name in _STORING


def is_recorded(command: RedisCommand[Any]) -> bool:
    """Whether the ledger is to know of a script call."""
    return command.name in _STORING or command.name in _CHANGING


class Recording:
    """The commands of one pipeline, and what is known of each.

    asked: as they are sent. answers: of each, None before it has one. cold, records: of the ledger.
    """

    def __init__(
        self,
        cold: ColdRecords,
        controls: ControlRecords,
        hot_window_ms: int,
        asked: list[RedisCommand[Any]],
    ) -> None:
        """asked: is changed. hot_window_ms: messages due later stay in the ledger; 0: none do."""
        self.answers: list[Any] = [None] * len(asked)
        self.cold, self.records, self.asked = cold, cold.records, asked
        self._controls = controls
        self._hot_window_ms = hot_window_ms or _NEVER_MS
        self._rows: dict[int, list[LedgerRow]] = {}
        self._added: set[Any] = set()
        self._acted = ActedOn(cold)
        self._words: dict[int, list[Answer]] = {}  # what Redis said of each message
        self._gathered: dict[int, list[LedgerRow]] = {}  # rows that it has changed
        self._standing: dict[str, Standing] = {}  # of buckets, by the key `marks`
        self._runs: dict[str, Any] = {}  # of the server of each, what it says of itself
        self._now_ms = 0
        self._layout: Layout | None = None  # as it was known when Redis was asked

    def read_clocks(self, places: Sequence[int], node_of: Callable[[str], str]) -> Steps:
        """Fix the time of each command: rows are written by it before Redis sees the command."""
        nodes = {i: node_of(self.asked[i].keys[0]) for i in places}
        first = {node: i for i, node in reversed(nodes.items())}
        if not first:
            return
        looks = self._looks(places)
        heads = [self.asked[i].keys[0] for i in first.values()]
        clocks = [registry.store_time(head) for head in heads]
        abouts = [
            registry.info("server", head)
            for head in heads
            if _needs_run(self.asked[i] for i in places)
        ]
        answers = yield [*clocks, *looks, *abouts]
        times = dict(zip(first, answers, strict=False))
        self._take_standing(looks, answers[len(clocks) :])
        runs = dict(zip(first, answers[len(clocks) + len(looks) :], strict=False))
        self._runs = {marks_of(self.asked[i]): runs.get(node) for i, node in nodes.items()}
        for i, node in nodes.items():
            if isinstance(times[node], Exception):
                self.answers[i] = times[node]
            else:
                self._set_clock(i, math.ceil(times[node] / 1000))

    def _set_clock(self, i: int, now_ms: int) -> None:
        self._now_ms = now_ms
        args = [*self.asked[i].args]
        args[_NOW] = args[_NOW] or now_ms
        if self.asked[i].name == "schedule":
            args[_HAS_ROWS] = args[_HAS_ROWS] or 1
        self.asked[i] = msgspec.structs.replace(self.asked[i], args=args)

    def settle_namespaces(self, places: Sequence[int]) -> Steps:
        """A namespace that is made again has the buckets and the birth id that it had.

        Whoever was restoring messages when Redis was wiped goes on: his are those of the new one.
        """
        for i in places:
            name, text, *rest = self.asked[i].args
            layout, birth = parse_record(str(text)) or (None, "")
            assert layout is not None, "`registry` has made it"
            is_new = self.asked[i].is_plain  # else messages begin to move, or have moved
            settle = self.records.settle if is_new else self.records.grow
            try:
                known = yield Work(partial(settle, layout=layout, birth=birth))
            except LedgerUnavailable as exc:
                self.answers[i] = exc
                continue
            if is_new:
                args = (name, record_text(known[0].collapsed(), known[1]), *rest)
                self.asked[i] = msgspec.structs.replace(self.asked[i], args=args)

    def add_rows(self, places: Sequence[int]) -> Steps:
        """Commit the rows of all messages that are to be stored."""
        for i in places:
            if self.answers[i] is None:
                command = self.asked[i]
                hot_until_ms = int(command.args[_NOW]) + self._hot_window_ms
                if (
                    self.records.numbers.is_resizing
                ):  # Redis alone knows what was delivered, and refused, where
                    hot_until_ms = _NEVER_MS
                self._rows[i] = rows_of(command, self.records.namespace, hot_until_ms)
        self._heat((yield from for_redis(self._calls())))
        if any(self._rows.values()):
            yield from self._commit_rows()
        rows = [row for own in self._rows.values() for row in own]
        if not rows:
            return
        failpoints.reach("ledger.added")
        try:
            self._heat((yield from separate(self.cold, rows)))
            yield from bring_lost(self.cold, self._calls(are_compared=False))
        except StoreError as exc:  # the rows are there: they are to be delivered
            self._refuse(in_doubt(exc))

    def _commit_rows(self) -> Steps:
        """Nothing is stored without its row. One that the database refuses stops no other call."""
        places = [*self._rows]
        try:
            self._added = yield Work(partial(self._add, places))
        except LedgerRefused as exc:
            if len(places) == 1:
                self._refuse(exc)
                return
            for i in places:
                yield from self._commit_row(i)
        except StoreError as exc:
            self._refuse(exc)

    def _commit_row(self, i: int) -> Steps:
        try:
            self._added |= yield Work(partial(self._add, [i]))
        except StoreError as exc:
            self.answers[i] = exc
            del self._rows[i]

    def _calls(self, *, are_compared: bool = True) -> list[_Call]:
        """Those that store, and their rows; or only of buckets that were never compared."""
        places = [i for i in self._rows if are_compared or not self.is_compared(i)]
        return [(self.asked[i], self._rows[i]) for i in places]

    def is_compared(self, i: int) -> bool:
        """Whether the bucket of a command was compared as a whole, and not in an older past.

        Only of one that replaces, or for which only Redis can decide.
        """
        marks = marks_of(self.asked[i])
        about = self._runs.get(marks)
        run = about.get("run_id", "") if isinstance(about, dict) else ""
        return self._standing[marks].is_healed_under(run) and not self.records.numbers.is_resizing

    def _add(self, places: Sequence[int], on: Connection) -> set[RowName]:
        """Rows of commands, and how far the plans are that made them."""
        for name, birth, made_ms in plans_in(self.asked[i] for i in places):
            self._controls.made(on, name.encode(), birth, made_ms)
        return self.records.add(on, [row for i in places for row in self._rows[i]])

    def _heat(self, names: Set[RowName]) -> None:
        """These are to be in Redis after all."""
        for i, rows in self._rows.items() if names else ():
            self._rows[i] = [row._replace(tier=HOT) if row.name in names else row for row in rows]

    def _refuse(self, error: StoreError) -> None:
        for i in self._rows:
            self.answers[i] = error
        self._rows = {}

    def _heard(self, i: int) -> RedisCommand[Any]:
        """The command, without cold messages; its reply is also read for the rows of the others."""
        command, rows = self.asked[i], self._rows.get(i)
        if command.name in _CHANGING:
            parse = partial(self._take_acted, i, command.parse)
            return msgspec.structs.replace(naming(command), parse=parse)
        if rows is None:
            return command
        hot = [place for place, row in enumerate(rows) if row.tier != COLD]
        parse = partial(self._take_words, i, hot, command.parse)
        if not hot and rows:
            self.answers[i] = parse([])
        sent = tiers.only(command, hot) if len(hot) < len(rows) else command
        return msgspec.structs.replace(naming(sent), parse=parse)

    def _take_words(
        self, i: int, hot: Sequence[int], parse: Callable[[Any], Any], reply: Any
    ) -> Any:
        rows = self._rows[i]
        if self.asked[i].name == "schedule":
            reply, replaced = read_replaced(reply)
            reply = tiers.whole_reply(rows, hot, reply) if len(hot) < len(rows) else reply
            answers = replies.read_scheduled(reply) or ()
            self._words[i] = [word for word, _ in answers]
            replacing = zip(rows, self._words[i], strict=False) if replaced else ()
            names = [row.name for row, word in replacing if word is Answer.REPLACED]
            self._acted.take_replaced(i, names, [stamp for stamp, _ in replaced])
            self._gathered[i] = [*gathered_rows(rows, answers, [end for _, end in replaced])]
        else:
            self._words[i] = replies.read_answers(reply) or []
            self._acted.take_buried(i, self.asked[i], rows, self._words[i])
        return parse(reply)

    def _take_acted(self, i: int, parse: Callable[[Any], Any], reply: Any) -> Any:
        answer, acted = read_acted(reply)
        self._acted.take_named(i, acted)
        return parse(answer)

    def run(self, places: Sequence[int]) -> Steps:
        """Run the commands that have no answer yet; first look how their buckets stand."""
        heard = {i: self._heard(i) for i in places if self.answers[i] is None}
        left = [i for i in heard if self.answers[i] is None]  # not if all its messages are cold
        self._layout = self.records.numbers.layout
        if left:
            looks = self._looks(left)
            answers = yield [*looks, *(heard[i] for i in left)]
            self._take_standing(looks, answers)
            for i, answer in zip(left, answers[len(looks) :], strict=True):
                self.answers[i] = answer
        failpoints.reach("ledger.answered")

    def _looks(self, places: Sequence[int]) -> list[RedisCommand[Standing]]:
        recorded = [self.asked[i] for i in places if is_recorded(self.asked[i])]
        marks = dict.fromkeys(filter(None, map(marks_of, recorded)))
        return [standing_at(name) for name in marks if name not in self._standing]

    def _take_standing(self, looks: Sequence[RedisCommand[Any]], answers: Sequence[Any]) -> None:
        for look, answer in zip(looks, answers, strict=False):
            known = Standing() if isinstance(answer, Exception) else answer
            self._standing[str(look.args[0])] = known

    def take_answers(
        self, places: Sequence[int], tries: int = _TRIES, look: LiveRows | None = None
    ) -> Steps:
        """Commit what Redis has answered; whose answer cannot be committed gets the error.

        look: what is read with it.
        """
        yield from self._find_undone(places)
        effects = Effects(self.records, self._now_ms)
        for i in places:
            answer = self.answers[i]
            if self.asked[i].name not in _STORING:
                effects.take_answer(
                    i, self.asked[i], answer, self._acted.of_command(i, self.asked[i])
                )
            elif not isinstance(answer, Exception) or isinstance(answer, StoreFull | StoreDenied):
                rows, words = self._rows.get(i, ()), self._words.get(i, ())
                effects.take_stored(i, rows, words, self._added)
                effects.take_replaced(self._acted.replaced(i))
                effects.take_gathered(i, self._gathered.get(i, ()))
            elif isinstance(answer, StoreError) and self._rows.get(i):
                self.answers[i] = in_doubt(answer)  # perhaps stored: so it is to be delivered
        is_looked = look is not None and bool(look.places)
        if effects.places or is_looked:
            yield from self._commit(effects, tries, look if is_looked else None)

    def _find_undone(self, places: Sequence[int]) -> Steps:
        """Find what calls undid that were not told of it."""
        undid = (i for i in places if stores(self.asked[i]) or self.answers[i] in UNDOING)
        lost = [i for i in undid if self._acted.lacks(i)]
        if not lost:
            return
        try:
            yield from self._acted.find_undone({i: self.asked[i] for i in lost})
        except StoreError as exc:
            for i in lost:
                self.answers[i] = in_doubt(exc)

    def _commit(self, effects: Effects, tries: int, look: LiveRows | None = None) -> Steps:
        try:
            yield Work(partial(look.run, effects) if look else effects.run)
        except StoreError as exc:
            for i in look.places if look else ():
                self.answers[i] = of_ledger(exc)
            for i in effects.places:  # Redis has done it, or has stored less than the ledger
                self.answers[i] = in_doubt(exc)
            return
        for i in effects.late:  # Redis lacked it, since it has left, or was never accepted
            self.answers[i] = Answer.UNKNOWN
        again, moved = yield from self._look_again(effects)
        if again:
            yield from self._once_more(again, tries - 1)
        if moved.places:
            yield from self._commit(moved, tries)

    def _look_again(self, effects: Effects) -> LedgerSteps[tuple[list[int], Effects]]:
        """Those whose bucket a worker began to compare before the commit; and what it was late for.

        It may have read the ledger before it, too, and undo what was done if Redis forgot it. And
        of two that move a message the last one in Redis may be the first one here: each looks when
        its message is due now. Under a comparison it may be due at its old time again: by the row.
        """
        marks = {i: marks_of(self.asked[i]) for i in sorted(effects.undoable - effects.late)}
        names = [*dict.fromkeys(marks.values())]
        later = Effects(self.records, self._now_ms)
        if not names:
            return [], later
        dues = [due_now(self.asked[i], self.records) for i in effects.moved]
        same = yield from is_same_layout(self.records, self._layout)
        found = yield [*map(standing_at, names), *(look for looks in dues for look in looks)]
        stand = {n: self._stands(n, now) and same for n, now in zip(names, found, strict=False)}
        seen = dues_in(dues, found[len(names) :])
        for (i, (row, due_ms)), due in zip(effects.moved.items(), seen, strict=True):
            if due == due_ms or isinstance(due, Exception) or not stand[marks[i]]:
                continue
            if self._standing[marks[i]].healed.startswith(_UNDER_WAY):
                stand[marks[i]] = False
            elif due is not None:
                later.move(i, row, due)
        return [i for i in marks if not stand[marks[i]]], later

    def _stands(self, marks: str, now: Any) -> bool:
        before, is_lost = self._standing[marks], isinstance(now, Exception)
        self._standing[marks] = Standing() if is_lost else now
        may_have_ended = self.records.numbers.of_resized is not None
        return (may_have_ended or not is_lost) and self._standing[marks][1:] == before[1:]

    def _once_more(self, places: Sequence[int], tries: int) -> Steps:
        """The same calls again: Redis knows them by their stamps, unless it has forgotten them."""
        if tries:
            before = {i: self.answers[i] for i in places}
            for i in places:
                self._ask_again(i)
            yield from self.run(places)
            same = [i for i in places if self.answers[i] == before[i]]
            yield from self.take_answers(same, tries)
            places = [i for i in places if i not in same]
        for i in places:
            if not isinstance(self.answers[i], Exception):
                self.answers[i] = LedgerUnavailable(WENT_BACK)

    def _ask_again(self, i: int) -> None:
        command, self.answers[i] = self.asked[i], None
        if command.name == "reschedule":  # the comparison may have given it its old time again
            args = [*command.args]
            args[_STAMP] = new_stamp()
            self.asked[i] = msgspec.structs.replace(command, args=args)


def _needs_run(asked: Iterable[RedisCommand[Any]]) -> bool:
    return any(is_of_source(each) or tiers.replaces(each) for each in asked)

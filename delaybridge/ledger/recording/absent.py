"""Calls about messages that Redis does not have, and the ledger does: cold ones, and lost ones.

Each bucket that does not know a message is looked up by itself, in the transaction in which the
answers are committed: an id may be in several buckets, and a plain hit costs no further one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from delaybridge.errors import LedgerUnavailable, StoreError
from delaybridge.ledger.recording.ledger_answers import CANCELLED_NOW, LiveRows
from delaybridge.ledger.recording.ledger_rows import STAMP_BYTES, is_of_redis, is_of_source, named
from delaybridge.ledger.recording.recording import Recording
from delaybridge.ledger.recording.tiering import promote_named
from delaybridge.ledger.sql.rows import COLD, DEAD, EXPIRED, HOT, LedgerRow, Name
from delaybridge.message import Answer
from delaybridge.store.protocol.moves import shard_key
from delaybridge.store.protocol.recorder import WENT_BACK, of_ledger
from delaybridge.store.protocol.verbs import LedgerSteps, Work, new_stamp

Steps = LedgerSteps[None]
_TRIES = 3  # of a call whose message goes back to the ledger meanwhile
_MOVED = ("reschedule", "kick", "discard")  # what Redis lacks is brought, and asked again
_STAMP, _ID, _ROW = 1, 2, 8  # places of arguments


class Absent:
    """Those of the calls of one recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._cold, self._records = recording, recording.cold, recording.records
        self._asked, self._answers = recording.asked, recording.answers

    def _name(self, i: int) -> Name:
        return named(self._asked[i], self._records.namespace)

    def promote_first(self, places: Sequence[int]) -> Steps:
        """Bring messages into Redis that some calls name: only it can decide.

        A call that is read from a source is made once; one with a reach depends on the destination.
        What is cold is brought, and what Redis may have lost.
        """
        asked = [i for i in places if is_of_source(self._asked[i])]
        if not asked:
            return
        any_tier = [self._name(i) for i in asked if not self._recording.is_compared(i)]
        names = [self._name(i) for i in asked]
        try:
            found = yield Work(partial(self._calls, names, any_tier))
            yield from promote_named(self._cold, found, tier=HOT)
        except StoreError as exc:
            for i in asked:
                self._answers[i] = of_ledger(exc)

    def _calls(self, names: Sequence[Name], any_tier: Sequence[Name], on: Any) -> Iterable[Name]:
        """Those that are cold; of some those that are live at all."""
        return {**self._cold.calls(on, names), **self._cold.calls(on, any_tier, tier=HOT)}

    def take_answers(self, places: Sequence[int]) -> Steps:
        """Commit what Redis has answered; and act on messages that the ledger has and it lacks."""
        unknown = [i for i in places if self._is_unknown(i)]
        ids = {str(self._asked[i].args[_ID]) for i in unknown}
        look = LiveRows(self._records, sorted(ids), unknown)
        yield from self._recording.take_answers(places, look=look)
        if look.rows:
            left = [i for i in unknown if self._answers[i] is Answer.UNKNOWN]
            yield from self._withdraw(left, look.rows)
            yield from self._move(left, look.rows)

    def _is_unknown(self, i: int) -> bool:
        command = self._asked[i]
        return self._answers[i] is Answer.UNKNOWN and (
            command.name in ("cancel", *_MOVED) and not is_of_redis(command)
        )

    def _withdraw(self, places: Sequence[int], rows: Sequence[LedgerRow]) -> Steps:
        """Cancel messages that the ledger has and Redis lacks: it was wiped, or never had them."""
        same: dict[Any, list[int]] = defaultdict(list)  # of one call
        for i in places:
            if self._asked[i].name == "cancel":
                same[self._name(i), self._asked[i].args[_STAMP]].append(i)
        yield from self._cancel({own[0]: name for (name, _), own in same.items()}, rows)
        for first, *others in same.values():
            for i in others:
                self._answers[i] = self._answers[first]

    def _cancel(self, names: Mapping[int, Name], rows: Sequence[LedgerRow]) -> Steps:
        left = self._by_place(names, rows)
        while left:
            before = {i: self._answers[i] for i in left}
            tried = {i: own.pop() for i, own in left.items()}
            for i, row in tried.items():
                self._cancel_row(i, row)
            yield from self._recording.run([*left])
            yield from self._recording.take_answers([*left])
            for i, row in tried.items():
                is_done = row.tier == COLD and self._answers[i] in CANCELLED_NOW
                if not left[i] or is_done or isinstance(self._answers[i], Exception):
                    del left[i]
            self._keep_known(before)

    def _by_place(
        self, names: Mapping[int, Name], rows: Sequence[LedgerRow]
    ) -> dict[int, list[LedgerRow]]:
        """The rows that each command is about.

        Of several one was accepted: the first cold one, the last here, if there is one. The others
        are under way, or had no answer.
        """
        of_name = defaultdict[Name, list[LedgerRow]](list)
        asked_as = self._records.numbers.asked_as([*names.values()])
        for row in sorted(rows, key=lambda row: (row.tier, -row.number)):
            for name in asked_as(row):
                of_name[name].append(row)
        return {i: [*of_name[name]] for i, name in names.items() if name in of_name}

    def _keep_known(self, before: Mapping[int, Any]) -> None:
        for i, answer in before.items():
            if self._answers[i] is Answer.UNKNOWN:
                self._answers[i] = answer

    def _cancel_row(self, i: int, row: LedgerRow) -> None:
        """Make it a call of its own for this row."""
        args = [*self._asked[i].args]
        args[_STAMP], args[_ROW] = new_stamp(), row.stamp.to_bytes(STAMP_BYTES, "big")
        own = shard_key(row.id.encode(), row.payload)  # elsewhere it would be noted in vain
        self._asked[i] = msgspec.structs.replace(self._asked[i], args=args, shard_key=own)
        self._answers[i] = None

    def _move(self, places: Sequence[int], rows: Sequence[LedgerRow]) -> Steps:
        """Calls about messages that are cold, or that Redis lacks: they go into it first.

        Only a dead one can be kicked or discarded.
        """
        first: dict[Name, LedgerRow] = {}
        asked_as = self._records.numbers.asked_as([self._name(i) for i in places])
        for row in sorted(rows, key=lambda row: -row.tier):
            for name in asked_as(row):
                first.setdefault(name, row)
        left = [i for i in places if self._may_move(i, first.get(self._name(i)))]
        for _ in range(_TRIES):
            if left:
                left = yield from self._move_once(left)
        for i in left:
            self._answers[i] = LedgerUnavailable(WENT_BACK)

    def _may_move(self, i: int, row: LedgerRow | None) -> bool:
        name = self._asked[i].name
        is_fit = row is not None and (name == "reschedule" or row.state in (DEAD, EXPIRED))
        return name in _MOVED and is_fit

    def _move_once(self, places: Sequence[int]) -> LedgerSteps[list[int]]:
        """Those whose message was brought, and went back before Redis was asked."""
        there = yield from self._bring(places)
        asked = [i for i in places if self._answers[i] is Answer.UNKNOWN]
        for i in asked:
            self._answers[i] = None
        yield from self._recording.run(asked)
        yield from self._recording.take_answers(asked)
        return [i for i in asked if i in there and self._answers[i] is Answer.UNKNOWN]

    def _bring(self, places: Sequence[int]) -> LedgerSteps[set[int]]:
        """Those whose messages are in Redis now. A bucket that refuses concerns its own alone."""
        by_bucket: dict[int, dict[int, Name]] = defaultdict(dict)
        for i in places:
            name = self._name(i)
            by_bucket[name[0]][i] = name
        found = set[int]()
        for own in by_bucket.values():
            try:
                there = yield from promote_named(self._cold, {*own.values()}, tier=HOT)
            except StoreError as exc:
                for i in own:
                    self._answers[i] = of_ledger(exc)
            else:
                found |= {i for i, name in own.items() if name in there}
        return found

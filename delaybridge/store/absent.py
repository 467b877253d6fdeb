"""Calls about messages that Redis does not have, and the ledger does: cold ones, and lost ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from delaybridge.errors import LedgerUnavailable, StoreError
from delaybridge.ledger.rows import COLD, DEAD, EXPIRED, HOT, LedgerRow, Name
from delaybridge.ledger.work import Work
from delaybridge.message import Answer
from delaybridge.store.command import LedgerSteps
from delaybridge.store.doubts import WENT_BACK, of_ledger
from delaybridge.store.effects import CANCELLED_NOW
from delaybridge.store.recording import Recording
from delaybridge.store.tiering import promote_named
from delaybridge.store.told import STAMP_BYTES, named
from delaybridge.store.verbs import new_stamp

Steps = LedgerSteps[None]
_TRIES = 3  # of a call whose message goes back to the ledger meanwhile
# Places of arguments.
_STAMP, _ID, _ROW = 1, 2, 8
_SOURCE_AND_REACH = {"cancel": (3, 6), "reschedule": (6, 8)}
_RECEIPT_OF = {"cancel": (7,), "reschedule": (9,)}


class Absent:
    """Those of the calls of one recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._cold, self._records = recording, recording.cold, recording.records
        self._asked, self._answers = recording.asked, recording.answers

    def _has(self, i: int, places: Mapping[str, Sequence[int]]) -> bool:
        """Whether a command has any of these arguments."""
        command = self._asked[i]
        return any(command.args[place] for place in places.get(command.name, ()))

    def _unknown(self, places: Sequence[int]) -> dict[tuple[Any, Any], list[int]]:
        """Calls that no bucket knew a message for: stamp and id -> their places."""
        asked: dict[tuple[Any, Any], list[int]] = defaultdict(list)
        for i in places:
            args = self._asked[i].args
            if not (self._has(i, _SOURCE_AND_REACH) or self._has(i, _RECEIPT_OF)):
                asked[args[_STAMP], args[_ID]].append(i)
        return {
            name: own
            for name, own in asked.items()
            if all(self._answers[i] is Answer.UNKNOWN for i in own)
        }

    def withdraw(self, places: Sequence[int]) -> Steps:
        """Cancel messages that the ledger has and Redis lacks: it was wiped, or never had them."""
        named = self._unknown(places)
        if not named:
            return
        ids = [str(id) for _, id in named]
        try:
            rows = yield Work(lambda on: self._records.live(on, ids))
        except StoreError as exc:
            for i in (i for own in named.values() for i in own):
                self._answers[i] = exc
            return
        yield from self._withdraw(named, rows)

    def _withdraw(
        self, unknown: dict[tuple[Any, Any], list[int]], rows: Sequence[LedgerRow]
    ) -> Steps:
        left = self._by_place(unknown, rows)
        while left:
            before = {i: self._answers[i] for i in left}
            tried = {i: own.pop() for i, own in left.items()}
            for i, row in tried.items():
                self._cancel_row(i, row)
            yield from self._recording.run([*left])
            yield from self._recording.take_answers([*left])
            for i, row in tried.items():
                if not left[i] or (row.tier == COLD and self._answers[i] in CANCELLED_NOW):
                    del left[i]
            self._keep_known(before)

    def _by_place(
        self, unknown: dict[tuple[Any, Any], list[int]], rows: Sequence[LedgerRow]
    ) -> dict[int, list[LedgerRow]]:
        """The rows that each command is about.

        Of several one was accepted: the first cold one, the last here, if there is one. The others
        are under way, or had no answer.
        """
        namespace, found = (
            self._records.namespace,
            defaultdict[int, list[LedgerRow]](list),
        )
        places = {named(self._asked[i], namespace): i for own in unknown.values() for i in own}
        for row in sorted(rows, key=lambda row: (row.tier, -row.number)):
            if row.name[:2] in places:
                found[places[row.name[:2]]].append(row)
        return found

    def _keep_known(self, before: Mapping[int, Any]) -> None:
        for i, answer in before.items():
            if self._answers[i] is Answer.UNKNOWN:
                self._answers[i] = answer

    def _cancel_row(self, i: int, row: LedgerRow) -> None:
        """Make it a call of its own for this row."""
        args = [*self._asked[i].args]
        args[_STAMP], args[_ROW] = new_stamp(), row.stamp.to_bytes(STAMP_BYTES, "big")
        self._asked[i] = msgspec.structs.replace(self._asked[i], args=args)
        self._answers[i] = None

    def promote_first(self, places: Sequence[int]) -> Steps:
        """Bring cold messages into Redis that some calls name: only it can decide.

        A call that is read from a source is made once; one with a reach depends on the destination.
        """
        asked = [i for i in places if self._has(i, _SOURCE_AND_REACH)]
        names = {i: named(self._asked[i], self._records.namespace) for i in asked}
        if not names:
            return
        try:
            found = yield Work(lambda on: self._cold.calls(on, [*names.values()]))
            yield from promote_named(self._cold, found)
        except StoreError as exc:
            for i in asked:
                self._answers[i] = of_ledger(exc)

    def move(self, places: Sequence[int]) -> Steps:
        """Calls about messages that are cold, or that Redis lacks: they go into it first.

        Only a dead one can be kicked or discarded.
        """
        unknown = self._unknown(places)
        for own in unknown.values():
            names = {named(self._asked[i], self._records.namespace): i for i in own}
            may_wait = self._asked[own[0]].name == "reschedule"
            try:
                found = yield Work(partial(self._cold.first, names=[*names]))
                for row in found:
                    if may_wait or row.state in (DEAD, EXPIRED):
                        yield from self._bring(names[row.name[:2]], row.name[:2])
            except StoreError as exc:
                for i in own:
                    self._answers[i] = of_ledger(exc)

    def _bring(self, i: int, name: Name) -> Steps:
        for _ in range(_TRIES):
            is_there = yield from promote_named(self._cold, [name], tier=HOT)
            self._answers[i] = None
            yield from self._recording.run([i])
            yield from self._recording.take_answers([i])
            if not is_there or self._answers[i] is not Answer.UNKNOWN:
                return
        self._answers[i] = LedgerUnavailable(WENT_BACK)

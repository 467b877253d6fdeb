"""What Redis answered, as it is to be written into the ledger: all of a pipeline at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from delaybridge.ledger.recording.acted import Acted
from delaybridge.ledger.recording.ledger_rows import STAMP_BYTES, named
from delaybridge.ledger.sql.rows import CANCELLED, DELAYED, PUBLISHED, LedgerRow, RowName
from delaybridge.message import Answer
from delaybridge.store.protocol.verbs import RedisCommand

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.records import Records

CANCELLED_NOW = (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED)
UNDOING = (*CANCELLED_NOW, Answer.DISCARDED)
_RESCHEDULED = (Answer.RESCHEDULED, Answer.RESCHEDULED_MAYBE_DELIVERED)
_STORED = (Answer.CREATED, Answer.REPLACED, Answer.KEPT)
_RECEIPT_OF = {"cancel": 7, "reschedule": 9}  # places of arguments
_ROW = 8
_Kind = tuple[str, str]  # state, error


class Effects:
    """Gathers what answers mean for rows: of those of the calls that Redis names, and no other.

    places: of the commands whose answers are to be written. undoable: of those that a Redis with an
    older past would undo: their callers are told only if it has none. late: of those that cancelled
    a row which Redis lacked, and which had ended otherwise when this was written. moved: of those
    that gave a message another due time: its row, and that time.
    """

    def __init__(self, records: Records, now_ms: int) -> None:
        self._records, self._now_ms = records, now_ms
        self._changes: dict[tuple[_Kind, int | None], list[RowName]] = defaultdict(list)
        self._withdrawn: list[RowName] = []
        self.places: set[int] = set()
        self.undoable: set[int] = set()
        self.late: set[int] = set()
        self.moved: dict[int, tuple[RowName, int]] = {}
        self._of_rows: dict[RowName, int] = {}
        self._gathered: list[LedgerRow] = []

    def take_answer(
        self, place: int, command: RedisCommand[Any], answer: Any, acted: Iterable[Acted]
    ) -> None:
        """The answer of a command that changes messages, and which it changed."""
        kind = _kind(command, answer)
        if kind is None:
            return
        self.places.add(place)
        self.undoable.add(place)
        name = named(command, self._records.namespace)
        for stamp, due_ms in acted:
            if stamp is None:
                continue
            row = (*name, stamp)
            if due_ms is not None:
                self.move(place, row, due_ms)
                continue
            self._changes[kind, None].append(row)
            if command.name == "cancel" and command.args[_ROW] == _bytes(stamp):
                self._of_rows[row] = place

    def move(self, place: int, row: RowName, due_ms: int) -> None:
        """A message has another due time now."""
        self._changes[(DELAYED, ""), due_ms].append(row)
        self.places.add(place)
        self.undoable.add(place)
        self.moved[place] = row, due_ms

    def take_stored(
        self, place: int, rows: Sequence[LedgerRow], words: Sequence[Answer], added: set[RowName]
    ) -> None:
        """The answers of a command that stores messages; those without one were not looked at.

        added: rows that were not there before.
        """
        every = [*words, *[Answer.UNKNOWN] * (len(rows) - len(words))]
        for row, word in zip(rows, every, strict=True):
            if word not in _STORED and row.name in added:
                self._withdrawn.append(row.name)
                self.places.add(place)
            elif word is Answer.REPLACED:
                self.places.add(place)
                self.undoable.add(place)

    def take_replaced(self, old: Sequence[RowName]) -> None:
        """Rows of messages that were replaced."""
        if old:
            self._changes[(CANCELLED, "replaced"), None] += old

    def take_gathered(self, place: int, rows: Sequence[LedgerRow]) -> None:
        """Rows of gathered messages, whose due time and payload Redis has decided."""
        self._gathered += rows
        if rows:
            self.places.add(place)

    def run(self, on: Connection) -> None:
        """Write what all commands have changed."""
        records, now_ms = self._records, self._now_ms
        self.late.clear()
        if self._withdrawn:
            records.withdraw(on, self._withdrawn)
        for row in self._gathered:
            due_ms, payload = row.due_ms, row.payload
            records.change(on, [row.name], DELAYED, now_ms, due_ms=due_ms, payload=payload)
        for ((state, error), due), calls in self._changes.items():
            count = records.change(on, calls, state, now_ms, error=error, due_ms=due)
            if count < len(calls):
                self._find_late(on, calls)

    def _find_late(self, on: Connection, calls: Sequence[RowName]) -> None:
        own = [call for call in calls if call in self._of_rows]
        states = self._records.states(on, own)
        ended = {call for call in own if states.get(call, ("", 0))[0] != CANCELLED}
        self.late |= {self._of_rows[call] for call in ended}


class LiveRows:
    """Live rows of ids in any bucket, read with the commit of answers. places: of the commands."""

    def __init__(self, records: Records, ids: Sequence[str], places: Sequence[int]) -> None:
        self.places, self.rows = places, list[LedgerRow]()
        self._records, self._ids = records, ids

    def run(self, effects: Effects, on: Connection) -> None:
        """Write the effects of the answers; then read."""
        effects.run(on)
        self.rows = self._records.live(on, self._ids)


def _kind(command: RedisCommand[Any], answer: Any) -> _Kind | None:
    """What becomes of the row; None: nothing."""
    receipt = command.args[_RECEIPT_OF.get(command.name, 0)]
    if command.name == "cancel" and answer in CANCELLED_NOW:
        return (PUBLISHED if receipt else CANCELLED), ""
    if command.name == "reschedule" and answer in _RESCHEDULED and not receipt:
        return DELAYED, ""
    if command.name == "kick" and answer is Answer.KICKED:
        return DELAYED, ""
    if command.name == "discard" and answer is Answer.DISCARDED:
        return CANCELLED, "discarded"
    return None


def _bytes(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES, "big")

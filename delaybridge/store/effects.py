"""What Redis answered, as it is to be written into the ledger: all of a pipeline at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from delaybridge.ledger.rows import CANCELLED, DELAYED, PUBLISHED, LedgerRow, Name, RowName
from delaybridge.message import Answer
from delaybridge.store.command import RedisCommand
from delaybridge.store.told import STAMP_BYTES, due_ms, kick_due_ms, named

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.records import Records

CANCELLED_NOW = (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED)
_RESCHEDULED = (Answer.RESCHEDULED, Answer.RESCHEDULED_MAYBE_DELIVERED)
_STORED = (Answer.CREATED, Answer.REPLACED)
_RECEIPT_OF = {"cancel": 7, "reschedule": 9}  # places of arguments
_ROW = 8
_REPLACED = "replaced"
_Kind = tuple[str, str, int | None]  # state, error, due time


class Effects:
    """Gathers what answers mean for rows.

    places: of the commands whose answers are to be written. undoable: of those that a Redis with an
    older past would undo: their callers are told only if it has none. late: of those that cancelled
    a row which Redis lacked, and which had ended otherwise when this was written.
    """

    def __init__(self, records: Records, now_ms: int) -> None:
        self._records, self._now_ms = records, now_ms
        self._changes: dict[_Kind, list[Name]] = defaultdict(list)
        self._ended: dict[_Kind, list[RowName]] = defaultdict(list)
        self._withdrawn: list[RowName] = []
        self._replaced: list[LedgerRow] = []
        self.places: set[int] = set()
        self.undoable: set[int] = set()
        self.late: set[int] = set()
        self._of_rows: dict[RowName, int] = {}

    def take(self, place: int, command: RedisCommand[Any], answer: Any, stamp: int | None) -> None:
        """The answer of a command that changes messages.

        stamp: of the call that scheduled the message, if it is known: another one for its id may be
        under way, whose row is there already.
        """
        kind = self._kind(command, answer)
        if kind is not None:
            name = named(command, self._records.namespace)
            if stamp is None:
                self._changes[kind].append(name)
            else:
                self._ended[kind].append((*name, stamp))
                if command.name == "cancel" and command.args[_ROW] == _bytes(stamp):
                    self._of_rows[*name, stamp] = place
            self.places.add(place)
            self.undoable.add(place)

    def _kind(self, command: RedisCommand[Any], answer: Any) -> _Kind | None:
        receipt = command.args[_RECEIPT_OF.get(command.name, 0)]
        if command.name == "cancel" and answer in CANCELLED_NOW:
            return (PUBLISHED if receipt else CANCELLED), "", None
        if command.name == "reschedule" and answer in _RESCHEDULED and not receipt:
            return DELAYED, "", due_ms(command)
        if command.name == "kick" and answer is Answer.KICKED:
            return DELAYED, "", kick_due_ms(command)
        if command.name == "discard" and answer is Answer.DISCARDED:
            return CANCELLED, "discarded", None
        return None

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
                self._replaced.append(row)
                self.places.add(place)
                self.undoable.add(place)

    def run(self, on: Connection) -> None:
        """Write all of it."""
        records, now_ms = self._records, self._now_ms
        self.late.clear()
        if self._withdrawn:
            records.withdraw(on, self._withdrawn)
        for (state, error, due), names in self._changes.items():
            records.change(on, names, state, now_ms, error=error, due_ms=due)
        for (state, error, _), calls in self._ended.items():
            if records.change(on, calls, state, now_ms, error=error) < len(calls):
                self._find_late(on, calls)
        for row in self._replaced:
            name = [row.name[:2]]
            records.change(on, name, CANCELLED, now_ms, error=_REPLACED, replaced_by=row.stamp)
            records.revive(on, row.name, error=_REPLACED)

    def _find_late(self, on: Connection, calls: Sequence[RowName]) -> None:
        own = [call for call in calls if call in self._of_rows]
        states = self._records.states(on, own)
        ended = {call for call in own if states.get(call, ("", 0))[0] != CANCELLED}
        self.late |= {self._of_rows[call] for call in ended}


def _bytes(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES, "big")

"""An import: lines become messages, in batches, however many there are.

A line that is no message is told and left out. Imported again, a line is a duplicate while its
message is pending or dead. Nothing here does I/O: the caller runs each batch with his client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from delaybridge.carry.accepting import Accepting, Ready
from delaybridge.carry.line import BadLine, Line
from delaybridge.carry.storing import foresee, store
from delaybridge.errors import MessageError, StoreError
from delaybridge.message import Answer, Limits, State
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Steps

BATCH_MESSAGES = 100  # of one pipeline: so few that what is doubled after a crash is little
_BATCH_BYTES = 4 * 2**20
_MOST_DESTINATIONS = 200
_STORED = (Answer.CREATED, Answer.DUPLICATE)
_WHY = {
    Answer.CONFLICT: "another message with this id is pending or dead here; it stays",
    Answer.IN_FLIGHT: "a message with this id is being delivered here; import it again later",
}


class ImportedLine(NamedTuple):
    """A line that is stored now. answer: `created` or `duplicate`."""

    number: int
    line: Line
    answer: str


class BoundFor(NamedTuple):
    """The messages of one destination: how many, and when the first and the last is due."""

    messages: int
    first_ms: int
    last_ms: int


class Import:
    """One import into one namespace.

    counts: lines by what became of them: `created`, `duplicate`, `conflict`, `in_flight` (left
    out), `bad`. bound: by destination, those that are stored now; of very many destinations all
    others as one. dry: nothing is stored.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        limits: Limits,
        *,
        tell: Callable[[BadLine], None],
        takes_in_flight: bool = False,
        is_strict: bool = False,
        dry: bool = False,
    ) -> None:
        """tell: gets each line that is left out. is_strict: none is read after the first of them.

        takes_in_flight: also what was in flight when it was exported, and may have been delivered.
        """
        self._accepting = Accepting(kinds, limits)
        self._tell, self._takes_in_flight = tell, takes_in_flight
        self._is_strict, self.dry = is_strict, dry
        self.counts = Counter[str]()
        self.bound: dict[str, BoundFor] = {}
        self.number = 0  # of the last line that was read

    @property
    def left_out(self) -> int:
        """How many lines are not stored, and should be."""
        return self.counts["bad"] + self.counts["conflict"]

    def batches(self, lines: Iterable[tuple[int, Line | BadLine]]) -> Iterator[list[Ready]]:
        """The lines that are messages, in batches. lines: with their numbers."""
        batch: list[Ready] = []
        size = 0
        for self.number, line in lines:
            if (ready := self._ready(line)) is not None:
                batch.append(ready)
                size += len(ready.message.payload)
            if len(batch) >= BATCH_MESSAGES or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
            if self._is_strict and self.left_out:
                break
        if batch:
            yield batch

    def _ready(self, line: Line | BadLine) -> Ready | None:
        if isinstance(line, BadLine):
            self._leave_out("bad", line)
        elif line.state is State.IN_FLIGHT and not self._takes_in_flight:
            self.counts["in_flight"] += 1
        else:
            try:
                return self._accepting.ready(self.number, line)
            except MessageError as exc:
                what = f"{exc.code}: {exc.detail}"
                self._leave_out("bad", BadLine(line.place(self.number), exc.field, what))
        return None

    def _leave_out(self, word: str, bad: BadLine) -> None:
        self.counts[word] += 1
        self._tell(bad)

    def store(self, calls: Calls, batch: Sequence[Ready]) -> Steps[list[ImportedLine]]:
        """Store a batch, or look what would become of it; the lines that are stored now.

        StoreError: some may be stored; the same batch again stores the others.
        """
        outcomes = yield from (foresee if self.dry else store)(calls, batch)
        found: list[ImportedLine] = []
        error: StoreError | None = None
        for ready, outcome in ((batch[i], outcomes[i]) for i in range(len(batch))):
            if isinstance(outcome, StoreError):
                error = error or outcome
            elif outcome in _STORED:
                self.counts[outcome.value] += 1
                self._bind(ready)
                found.append(ImportedLine(ready.number, ready.line, outcome.value))
            else:
                why = _WHY[outcome]
                self._leave_out("conflict", BadLine(ready.line.place(ready.number), "id", why))
        if error is not None:
            raise error
        return found

    def _bind(self, ready: Ready) -> None:
        to, due_ms = ready.line.destination, ready.due_ms
        if to not in self.bound and len(self.bound) >= _MOST_DESTINATIONS:
            to = "others"
        count, first_ms, last_ms = self.bound.get(to, (0, due_ms, due_ms))
        self.bound[to] = BoundFor(count + 1, min(first_ms, due_ms), max(last_ms, due_ms))

"""Lines of a source stored as messages, page by page, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from delaybridge.carry.line import BadLine, Line
from delaybridge.client import Client
from delaybridge.errors import MessageError
from delaybridge.foreign.source import PAGE, Source
from delaybridge.message import Message

_STAYS = {
    "conflict": "is pending here with other content; cancel it, or leave this one there",
    "in_flight": "is being delivered; import again when that ended",
}
_MOST_GROUPS = 1000
_OTHERS = "(others)"


class DestinationCount(NamedTuple):
    """The messages to one destination."""

    destination: str
    messages: int
    first_ms: int
    last_ms: int


@dataclass
class Carrying:
    """One import. answers: how many entries ended in which way; groups: by destination.

    dry: nothing is stored. removes: what is stored is then removed at the source.
    """

    client: Client
    source: Source
    dry: bool
    removes: bool
    answers: Counter[str] = field(default_factory=Counter)
    groups: dict[str, DestinationCount] = field(default_factory=dict)

    def run(self) -> Iterator[list[BadLine]]:
        """Carry one page after the other; of each, what stays where it is.

        A second run stores only what the first did not: a message has the id that its source
        gives it. After a StoreError or SourceError, what was stored stays so.
        """
        lines = self.source.lines()
        while page := list(islice(lines, PAGE)):
            checked = [self._checked(line) for line in page]
            bad = [each for each in checked if isinstance(each, BadLine)]
            done, stays = self._stored([each for each in checked if not isinstance(each, BadLine)])
            for line in done:
                self._count(line)
            if self.removes and not self.dry:
                self.source.remove(done)
                self.answers["removed"] += len(done)
            self.answers["left"] += len(bad + stays)
            yield bad + stays

    def _stored(self, good: list[tuple[Line, Message]]) -> tuple[list[Line], list[BadLine]]:
        """Store messages; the lines that are stored now, and those that are not."""
        if self.dry:
            answers = ["to_import"] * len(good)
        else:
            receipts = self.client.schedule_many(message for _, message in good)
            answers = [each.answer.value for each in receipts]
        pairs = [(line, answer) for (line, _), answer in zip(good, answers, strict=True)]
        stays = [BadLine(line.id, "id", _STAYS[a]) for line, a in pairs if a in _STAYS]
        self.answers.update(answer for answer in answers if answer not in _STAYS)
        return [line for line, answer in pairs if answer not in _STAYS], stays

    def _checked(self, line: Line | BadLine) -> tuple[Line, Message] | BadLine:
        if isinstance(line, BadLine):
            return line
        try:
            message = line.message()
            self.client.accept(message)
        except MessageError as exc:
            return BadLine(line.id, exc.field, exc.detail)
        return line, message

    def _count(self, line: Line) -> None:
        due_ms, name = line.due_ms or 0, line.destination
        if name not in self.groups and len(self.groups) >= _MOST_GROUPS:
            name = _OTHERS
        _, count, first, last = self.groups.get(name, ("", 0, due_ms, due_ms))
        self.groups[name] = DestinationCount(name, count + 1, min(first, due_ms), max(last, due_ms))

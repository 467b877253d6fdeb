"""Notes on many messages: each once, with how many it is about, and the first of them."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 50  # different ones
_OTHERS = "other notes"


class Notes:
    """Gathers notes. Of very many different ones the first are kept, the others counted."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, str]] = {}

    def add(self, what: str, example: str, count: int = 1) -> None:
        """It is about this message; or about this many, of which it is one."""
        if what not in self._told and len(self._told) >= _MOST:
            what = _OTHERS
        before, first = self._told.get(what, (0, example))
        self._told[what] = before + count, first

    def add_answers(self, ids: Iterable[str], answers: Iterable[object]) -> None:
        """The notes of answers that have any."""
        for id, answer in zip(ids, answers, strict=False):
            for what in getattr(answer, "notes", ()):
                self.add(what, id)

    def lines(self) -> list[str]:
        """`header x is left out: 12 messages, such as order-17`, in the order of their coming."""
        return [
            f"{what}: {count:,} message{'s' * (count > 1)}, such as {first}"
            for what, (count, first) in self._told.items()
        ]

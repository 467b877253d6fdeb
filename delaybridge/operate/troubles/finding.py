"""The finding of a check: its level, its subject, the fault and the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from delaybridge.store.namespace.translatable import Sentence

if TYPE_CHECKING:
    from delaybridge.operate.troubles.listed import ListedTrouble

OK, WARN, FAIL = "ok", "WARN", "FAIL"
SEVERE, ERROR, WARNING = "severe", "error", "warning"  # the worst first
SEVERITIES = (SEVERE, ERROR, WARNING)


class Finding(NamedTuple):
    """The result of one check. about: `redis`, `clock`, `broker NAME`, ...

    said: the fault or fact, as a sentence if a page translates it. trouble: which of those that
    are listed it is; None: all is well. is_red: whether `health` fails.
    """

    level: str
    about: str
    said: str | Sentence
    remedy: str = ""
    trouble: ListedTrouble | None = None
    is_red: bool = False

    @property
    def what(self) -> str:
        """The fault or fact in English."""
        return str(self.said)

    @property
    def text(self) -> str:
        """The fault or fact that was found, and the remedy."""
        return f"{self.what}. {self.remedy}" if self.remedy else self.what

    @property
    def commands(self) -> list[str]:
        """The commands of the remedy, as they are pasted."""
        parts = re.split(r"\. (?=[A-Z])", self.remedy)
        return [part.rpartition(": ")[2] for part in parts if ": " in part]

    @property
    def code(self) -> str:
        """The code of the trouble; empty: all is well."""
        return self.trouble.code if self.trouble else ""

    @property
    def values(self) -> Mapping[str, object]:
        """What the sentence is about: destination, worker, ..."""
        return self.said.values if isinstance(self.said, Sentence) else {}

    @property
    def data(self) -> dict[str, str]:
        """The finding as programs read it."""
        return {
            "level": self.level.lower(), "about": self.about, "code": self.code, "text": self.text,
            "remedy": self.remedy, "see": self.trouble.link if self.trouble else "",
        }  # fmt: skip


def ok(about: str, fact: str) -> Finding:
    """All is well: only the fact."""
    return Finding(OK, about, fact)

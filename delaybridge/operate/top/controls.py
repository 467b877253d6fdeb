"""The keys of `delaybridge top`, and their effects. Lower case looks; upper case changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TABS = ("overview", "destinations", "workers", "buckets")
DESTINATIONS = 1
HELP = (
    ("1 2 3 4  tab", "the views"),
    ("j k  up down", "select a line"),
    ("g G", "the first, the last line"),
    ("r", "look again now"),
    ("P", "pause or resume the selected destination, for all workers"),
    ("?", "this page"),
    ("q  Ctrl-C", "end"),
)
_ESCAPES = {"[A": "k", "[B": "j", "OA": "k", "OB": "j", "[H": "g", "[F": "G", "[Z": "backtab"}
_KEY = re.compile(r"\x1b(\[[0-9;]*[A-Za-z~]|O[A-Z])|([\s\S])")
_WORDS = {"\t": "tab", "\x03": "q", "\x04": "q", "\x1b": "escape"}


def keys_of(typed: bytes) -> Iterator[str]:
    """The keys in what a terminal sent, arrows as `j` and `k`; unknown sequences are dropped."""
    for found in _KEY.finditer(typed.decode(errors="replace")):
        sequence, letter = found.groups()
        key = _ESCAPES.get(sequence, "") if sequence else _WORDS.get(letter, letter)
        if key:
            yield key


@dataclass
class View:
    """What the user looks at, and asked for.

    selected: a destination, worker or bucket, by its name in `names`: when the order changes, the
    same one stays selected. names: those of the lines of the present tab, as they are shown. note:
    the last line's text. toggles: the destination that is to be paused or resumed.
    """

    tab: int = 0
    selected: str = ""
    helps: bool = False
    note: str = ""
    names: Sequence[str] = ()
    is_over: bool = False
    looks_again: bool = False
    toggles: str = ""

    def press(self, key: str) -> None:
        """Do what the key stands for."""
        self.note = ""
        if self.helps and key in ("q", "?", "escape"):
            self.helps = False
        elif key == "q":
            self.is_over = True
        elif key == "?":
            self.helps = True
        elif key == "r":
            self.looks_again = True
        elif key == "P":
            self._toggle()
        elif key in ("j", "k", "g", "G"):
            self._move(key)
        else:
            self._turn(key)

    def _turn(self, key: str) -> None:
        step = {"tab": 1, "backtab": -1}.get(key)
        if step is not None:
            self._show((self.tab + step) % len(TABS))
        elif key.isdigit() and 0 < int(key) <= len(TABS):
            self._show(int(key) - 1)

    def _show(self, tab: int) -> None:
        self.tab, self.selected, self.names, self.helps = tab, "", (), False

    def _move(self, key: str) -> None:
        names = list(self.names)
        if not names:
            return
        last = len(names) - 1
        at = names.index(self.selected) if self.selected in names else -1
        places = {"j": min(at + 1, last), "k": max(at - 1, 0), "g": 0, "G": last}
        self.selected = names[places[key]]

    def _toggle(self) -> None:
        """Only a line that is selected and shown: no one pauses a destination unseen."""
        if self.tab != DESTINATIONS:
            self.note = "P pauses a destination: 2 shows them, j and k select one"
        elif self.selected not in self.names:
            self.note = "select a destination first: j, k"
        else:
            self.toggles = self.selected

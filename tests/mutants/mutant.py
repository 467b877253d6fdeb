"""One mistake in the product, and the tests that are to notice it first."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """file: under ROOT; `old` is in it exactly once, and becomes `new`. breaks: what is wrong then.

    tests: arguments of pytest; the cheapest tests of the room.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: str

    def mutated(self, root: Path = ROOT) -> str:
        """The text of the file with the mistake."""
        text = (root / self.file).read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.file} has it {text.count(self.old)}x"
        return text.replace(self.old, self.new)

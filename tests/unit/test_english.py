"""Plain English: docstrings say something, functions have names, no riddle words anywhere.

A room that has more to mend stands in a list with its number; the lists only get shorter.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "delaybridge"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "lua").glob("*.lua")])
FEWEST_WORDS = 5
NO_NAMES = {"of", "look", "take", "told", "shown", "about", "own"}  # each lacks its noun
RIDDLES = re.compile(
    r"\b(anew|[Nn]obody|[Ss]omebody|of ours|(?<!there )(?:is|are) none|so many(?! \w+ that))\b"
)
# What is still to be mended, by room. A room that is done leaves the list.
SHORT_DOCSTRINGS: dict[str, int] = {
    "client": 1,
    "dedup": 5,
    "ingest": 7,
    "intercept": 4,
    "ledger": 16,
    "operate": 28,
    "outbox": 5,
    "publish": 11,
    "recurring": 2,
    "scan": 11,
    "serve": 25,
    "settings": 3,
    "store": 30,
    "worker": 8,
}
POOR_NAMES: dict[str, int] = {
    "errors.py": 1,
    "ingest": 14,
    "intercept": 1,
    "ledger": 14,
    "operate": 11,
    "outbox": 1,
    "publish": 6,
    "publishers": 3,
    "recurring": 3,
    "scan": 9,
    "serve": 8,
    "settings": 3,
    "store": 17,
    "worker": 5,
}
RIDDLE_WORDS: dict[str, int] = {
    "accept": 2,
    "amqp": 1,
    "client": 5,
    "dedup": 2,
    "ledger": 15,
    "operate": 13,
    "outbox": 4,
    "publish": 1,
    "recurring": 5,
    "scan": 1,
    "serve": 37,
    "settings": 1,
    "store": 15,
    "tracing.py": 1,
    "worker": 8,
}
RIDDLE_WORDS_OF_PAGES: dict[str, int] = {
    "cancel.lua": 2,
    "cli.md": 2,
    "delivery.md": 3,
    "deploy.md": 1,
    "destinations.md": 1,
    "effectively-once.md": 1,
    "faults.md": 9,
    "features.md": 1,
    "flow.md": 1,
    "http.md": 2,
    "ingest.md": 1,
    "internals.md": 8,
    "keys.md": 3,
    "kick.lua": 1,
    "ledger.md": 7,
    "mend.lua": 1,
    "metrics.md": 5,
    "receive.lua": 1,
    "record.lua": 2,
    "renew.lua": 1,
    "reschedule.lua": 1,
    "schedule.lua": 2,
    "security.md": 5,
    "settings.md": 1,
    "tenants.md": 2,
    "top.md": 3,
    "trim.lua": 1,
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a file with their lines; also those of constants."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def too_many(found: list[tuple[str, str]], known: dict[str, int]) -> list[str]:
    """What was found in rooms that have more of it than is known: (room, where)."""
    counts = Counter(room for room, _ in found)
    over = {room for room, count in counts.items() if count > known.get(room, 0)}
    return [where for room, where in found if room in over]


def test_a_docstring_says_something() -> None:
    found = [
        (room_of(path), f"{path.relative_to(ROOT)}:{each.lineno} {each.name}: {text}")
        for path in FILES
        for each in functions(path)
        if not each.name.startswith("_")
        and (text := ast.get_docstring(each))
        and len(text.split()) < FEWEST_WORDS
    ]
    assert too_many(found, SHORT_DOCSTRINGS) == []


def test_a_function_has_a_noun_in_its_name() -> None:
    found = [
        (room_of(path), f"{path.relative_to(ROOT)}:{each.lineno} {each.name}")
        for path in FILES
        for each in functions(path)
        if each.name in NO_NAMES
    ]
    assert too_many(found, POOR_NAMES) == []


def test_no_docstring_and_no_comment_has_a_riddle_word() -> None:
    found = [
        (room_of(path), f"{path.relative_to(ROOT)}:{line} {match}")
        for path in FILES
        for line, text in (*docstrings(path), *comments(path))
        for match in RIDDLES.findall(text)
    ]
    assert too_many(found, RIDDLE_WORDS) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_riddle_word(page: Path) -> None:
    found = RIDDLES.findall(page.read_text())
    assert len(found) <= RIDDLE_WORDS_OF_PAGES.get(page.name, 0), found

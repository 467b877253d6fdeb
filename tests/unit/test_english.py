"""Plain English: docstrings say something, functions have names, no riddle words anywhere."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "delaybridge"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "lua").glob("*.lua")])
FEWEST_WORDS = 5
NO_NAMES = {"of", "look", "take", "told", "shown", "about", "own"}  # each lacks its noun
RIDDLES = re.compile(
    r"\b(anew|[Nn]obody|[Ss]omebody|of ours|(?<!there )(?:is|are) none|so many(?! \w+ that))\b"
)


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


def test_a_docstring_says_something() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno} {each.name}: {text}"
        for path in FILES
        for each in functions(path)
        if not each.name.startswith("_")
        and (text := ast.get_docstring(each))
        and len(text.split()) < FEWEST_WORDS
    ]
    assert found == []


def test_a_docstring_does_not_begin_in_the_middle_of_a_sentence() -> None:
    """`Of all filters.` has no subject and no verb."""
    assert [
        f"{path.relative_to(ROOT)}:{line} {text.strip()[:60]}"
        for path in FILES
        for line, text in docstrings(path)
        if text.startswith("Of ")
    ] == []


def test_a_function_has_a_noun_in_its_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno} {each.name}"
        for path in FILES
        for each in functions(path)
        if each.name in NO_NAMES
    ]
    assert found == []


def test_no_docstring_and_no_comment_has_a_riddle_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {match}"
        for path in FILES
        for line, text in (*docstrings(path), *comments(path))
        for match in RIDDLES.findall(text)
    ]
    assert found == []


def test_no_page_and_no_script_has_a_riddle_word() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {match}"
        for page in PAGES
        for match in RIDDLES.findall(page.read_text())
    ]
    assert found == []

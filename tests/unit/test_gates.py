"""Sizes: no function above 40 lines, no file above 400, and no function that is hard to follow.

Hard to follow means cognitive complexity (G. Ann Campbell, SonarSource 2018), which counts nesting
and mixed boolean operators.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from complexipy import file_complexity

PACKAGE = Path(__file__).parents[2] / "delaybridge"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 40  # its docstring does not count
MOST_COMPLEXITY = 15


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of each function of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            has_docstring = ast.get_docstring(node, clean=False) is not None
            docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - docstring


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_FILE


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_no_function_is_long(path: Path) -> None:
    assert {n: lines for n, lines in functions(path) if lines > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_no_function_is_hard_to_follow(path: Path) -> None:
    found = {f.name: f.complexity for f in file_complexity(str(path)).functions}
    assert {name: count for name, count in found.items() if count > MOST_COMPLEXITY} == {}

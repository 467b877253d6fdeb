"""Gates: no function above 40 lines, no file above 400, none hard to follow; one class per name.

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


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_no_tuple_is_unpacked_only_to_steer_the_formatter(path: Path) -> None:
    """`f(*(a, b), c=d)` is `f(a, b, c=d)`; where the formatter wastes lines: `# fmt: skip`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    unpacked = (arg.value for call in calls for arg in call.args if isinstance(arg, ast.Starred))
    assert [each.lineno for each in unpacked if isinstance(each, ast.Tuple | ast.List)] == []


def test_no_two_public_classes_have_one_name() -> None:
    files: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(shown(path))
    del files["Producer"]  # drop-ins have the names of the classes that they replace
    assert {name: where for name, where in files.items() if len(where) > 1} == {}

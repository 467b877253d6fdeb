"""Gates: how long and how hard to follow a function is, a file, a class; one class per name.

Hard to follow means cognitive complexity (G. Ann Campbell, SonarSource 2018), which counts nesting
and mixed boolean operators.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from complexipy import file_complexity

PACKAGE = Path(__file__).parents[2] / "delaybridge"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 40  # its docstring does not count
MOST_COMPLEXITY = 15
MOST_METHODS = 25
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def test_no_file_is_long() -> None:
    tests = (PACKAGE.parent / "tests").rglob("*.py")
    lines = {path.name: len(path.read_text().splitlines()) for path in [*FILES, *tests]}
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_long() -> None:
    found = {(shown(path), name): lines for path in FILES for name, lines in functions(path)}
    assert {key: lines for key, lines in found.items() if lines > MOST_LINES_OF_A_FUNCTION} == {}


def test_no_function_is_hard_to_follow() -> None:
    found = {
        (shown(path), each.name): each.complexity
        for path in FILES
        for each in file_complexity(str(path)).functions
    }
    assert {key: count for key, count in found.items() if count > MOST_COMPLEXITY} == {}


def test_no_tuple_is_unpacked_only_to_steer_the_formatter() -> None:
    """`f(*(a, b), c=d)` is `f(a, b, c=d)`; where the formatter wastes lines: `# fmt: skip`."""
    assert [
        f"{shown(path)}:{arg.value.lineno}"
        for path in FILES
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for arg in call.args
        if isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Tuple | ast.List)
    ] == []


def test_no_two_public_classes_have_one_name() -> None:
    files: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(shown(path))
    del files["Producer"]  # drop-ins have the names of the classes that they replace
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_no_class_has_many_methods() -> None:
    """With its properties; a class that has more is several."""
    found = {
        f"{shown(path)}: {node.name}": count
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if (count := sum(isinstance(each, _FUNCTIONS) for each in node.body)) > MOST_METHODS
    }
    assert found == {}

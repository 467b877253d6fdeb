"""No clock of the machine decides a test: a lint of the tests, file by file.

Forbidden: a fixed wait; a deadline of one's own that is shorter than the common one; a constant as
upper bound of a measured time. tests/README.md says what to do instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LEAST_TIMEOUT_S = 30
CLOCKS = {"monotonic", "perf_counter", "time"}
MEASURED = re.compile(r"late(?!r)|lag_|took|waited|elapsed|lasted|behind", re.IGNORECASE)

# Where a test may look at the machine's clock after all: a file, or a function of it, and why.
ALLOWED = {
    "rigs/waiting.py": "it is how tests wait",
    "chaos/load.py": "it paces a load",
    "chaos/front_load.py": "it paces a load",
    "chaos/stale_owner.py": "it paces a load",
    "rigs/programs/produce_delayed.py": "it paces a load",
    "rigs/programs/consume_rabbitmq.py::reconnecting": "it polls, and imports no test code",
    "rigs/programs/consume_delayed.py::reconnecting": "it polls, and imports no test code",
    "rigs/programs/webhook.py": "a receiver that is slow, as a test asked for",
    "chaos/changes_resize.py::land_late": "it makes a page late, as a cell asked for",
    "chaos/changes_take_over.py::open_lines_late": "it makes a line late, as a cell asked for",
    "rigs/recorder.py::_toil": "a worker that is busy, as a test asked for",
    "rigs/fault_proxy.py::_pump": "it paces what passes",
    "rigs/scanner.py": "its time is the test's; it only lets tasks run",
    "unit/test_autoscaler.py": "its time is the simulation's",
    "integration/test_scanner_destinations.py": "its time is the test's",
    "servers/process.py::accepts": "one of many questions whether a server is up",
    "servers/prometheus.py::is_ready": "one of many questions whether a server is up",
}


def findings(path: Path) -> list[str]:
    place = str(path.relative_to(TESTS))
    found = []
    for scope in _scopes(ast.parse(path.read_text())):
        name = getattr(scope, "name", "")
        if place not in ALLOWED and f"{place}::{name}" not in ALLOWED:
            found += [f"{place}:{line}: {what}" for line, what in sorted(set(_of_scope(scope)))]
    return found


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Functions and methods that stand in no other, and what stands outside of any."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from node.body
        else:
            yield node


def _of_scope(scope: ast.AST) -> Iterator[tuple[int, str]]:
    elapsed = {
        _name_of(target)
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_elapsed(node.value)
        for target in node.targets
    }
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _of_call(node))
        elif isinstance(node, ast.Compare):
            for small, bound in _bounds(node):
                names = {_name_of(each) for each in ast.walk(small)}
                is_measured = names & elapsed or any(map(MEASURED.search, names))
                if (is_measured or _is_elapsed(small)) and _is_constant(bound):
                    text = ast.unparse(node)
                    yield node.lineno, f"{text}: compare with a control, or widen it by `stall`"


def _of_call(call: ast.Call) -> Iterator[str]:
    name, module = _name_of(call), _name_of(getattr(call.func, "value", call.func))
    first = call.args[0] if call.args else None
    is_fixed = not (isinstance(first, ast.Constant) and (first.value == 0 or _is_text(first)))
    if name in ("sleep", "wait_s") and is_fixed:
        yield f"{name}: wait `until` something is so"
    if (module, name) in {("asyncio", "timeout"), ("asyncio", "wait_for")}:
        if isinstance(call.args[-1], ast.Constant):
            yield f"asyncio.{name}: give DEADLINE_S of tests/rigs/waiting.py"
    for given in (keyword.value for keyword in call.keywords if keyword.arg == "timeout"):
        if isinstance(given, ast.Constant) and given.value and given.value < LEAST_TIMEOUT_S:
            yield f"timeout={given.value}: give DEADLINE_S of tests/rigs/waiting.py"


def _is_text(constant: ast.Constant) -> bool:
    """Whether it names something: a `wait_s("token")` only asks how long to wait."""
    return isinstance(constant.value, str)


def _bounds(node: ast.Compare) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(what is to be small, the bound) of each comparison, whichever way round it is written."""
    parts = [node.left, *node.comparators]
    for left, op, right in zip(parts, node.ops, parts[1:], strict=False):
        if isinstance(op, ast.Lt | ast.LtE):
            yield left, right
        elif isinstance(op, ast.Gt | ast.GtE):
            yield right, left


def _is_elapsed(node: ast.AST) -> bool:
    """Whether it has `time.x() - start`, whatever the clock."""
    return any(
        isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Sub)
        and isinstance(each.left, ast.Call)
        and _name_of(each.left) in CLOCKS
        for each in ast.walk(node)
    )


def _is_constant(node: ast.AST) -> bool:
    """Whether it is made of numbers and constants alone, with no control and no stall in it."""
    if isinstance(node, ast.Constant):
        return node.value != 0
    names = [
        _name_of(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)
    ]
    return all(name.isupper() for name in names)


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


FILES = sorted(TESTS.rglob("*.py"))


def test_no_clock_of_the_machine_decides() -> None:
    assert [found for path in FILES for found in findings(path)] == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("time.sleep(0.1)", 1),
        ("await asyncio.sleep(DELAY_S)", 1),
        ("subprocess.run(command, timeout=20)", 1),
        ("await asyncio.wait_for(task, 5)", 1),
        ("assert time.monotonic() - began_s < 5", 1),
        ("assert max(late_ms) < 1000", 1),
        ("assert BOUND_S > took_s", 1),
        ("await asyncio.sleep(0)", 0),
        ("assert max(late_ms) < max(control.late_ms) + stall.worst_ms", 0),
        ("assert took_s < 1 + stall.worst_s", 0),
        ("assert min(late_ms) >= 0", 0),
        ("assert pace.wait_s('token') == 0", 0),
        ("assert recover(later_ms) <= 7", 0),
    ],
)
def test_the_lint_finds_such_lines_and_no_others(
    line: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TESTS", tmp_path)
    path = tmp_path / "test_x.py"
    path.write_text(f"async def test_x():\n    {line}\n")
    assert len(findings(path)) == found


def test_every_exception_is_still_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = dict(ALLOWED)
    for place in places:
        monkeypatch.delitem(ALLOWED, place)
        assert findings(TESTS / place.partition("::")[0]), place
        monkeypatch.setitem(ALLOWED, place, places[place])

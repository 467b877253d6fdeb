"""The pages are true: links lead somewhere, names exist, every public name is documented."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

import delaybridge
from delaybridge import AsyncClient, Client
from delaybridge.client.surface import TABLE
from delaybridge.settings.names import fields_of
from delaybridge.settings.settings import Settings
from tests.chaos import page as faults
from tests.chaos.cells import CELLS
from tools import proof as counts

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
# For the drop-in producers.
INTERNAL = {"accept", "schedule_accepted", "schedule_each", "schedule_message", "kinds", "run"}
FEATURES = ROOT / "docs" / "features.md"
PACKAGE = ROOT / "delaybridge"
DESIGNS = {"000": (25, 3), "001": (25, 0), "002": (21, 1), "003": (13, 3), "004": (12, 0)}
UNPROVEN = {"000-23", "003-Q1", "7"}  # not needed, not there, only measured
TEST = re.compile(r"`(tests/[\w/]+\.py)::((?:\w+::)?\w+)`")
CELL = re.compile(r"`(F\d+[\w-]*)`")
FILE = re.compile(r"`([\w/]+\.(?:py|lua))`")
INSIDE = [
    *(ROOT / "docs" / f"{name}.md" for name in ("internals", "decisions")),
    *sorted((ROOT / "docs").glob("inside-*.md")),
]
SETTING = re.compile(r"`([a-z]+)\.(\w+)(?: = [^`]*)?`")
# What looks like a setting on a page: of Python, of the chart, a file.
NO_SETTINGS = {
    "dead": {"kick_many", "discard_many", "redirect", "redirect_many"},
    "front": {"enabled"},
    "ledger": {"secret"},
    "redis": {"RedisCluster"},
    "ingest": {"py"},
}
FILE_IN_A_ROOM = re.compile(r"`(\w+/[\w/]+\.(?:py|lua))[:`]")
NAME_IN_A_FILE = re.compile(r"`([\w/]+\.py): (\w+)`")


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_title(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name}: {path}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {path}#{anchor}"


def test_the_tables_of_the_faults_are_those_of_the_last_run() -> None:
    for path, text in faults.written().items():
        assert path.read_text() == text, "python -m tests.chaos.page"


def test_how_we_know_has_the_counts_of_today() -> None:
    assert counts.PAGE.read_text() == counts.page(), "python -m tools.proof"


def test_the_index_has_every_page_once() -> None:
    index = ROOT / "docs" / "README.md"
    listed = [path for path, _ in LINK.findall(index.read_text()) if "/" not in path]
    assert sorted(listed) == sorted(p.name for p in index.parent.glob("*.md") if p != index)
    assert "docs/README.md" in {path for path, _ in LINK.findall((ROOT / "README.md").read_text())}


@pytest.mark.parametrize(("page", "most"), [("README.md", 90), ("docs/internals.md", 150)])
def test_the_first_pages_are_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_setting_that_a_page_names_exists(page: Path) -> None:
    known = {section: set(names) for section, names in NO_SETTINGS.items()}
    for (section, *name), *_ in fields_of(Settings):
        if name:
            known.setdefault(section, set()).update(name)
    for section, name in SETTING.findall(page.read_text()):
        assert name in known.get(section, {name}), f"{section}.{name}"


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_python_page_names_every_public_method(client: type) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    methods = {name for name in dir(client) if not name.startswith("_")} - INTERNAL
    named = {name.rpartition(".")[2] for name in (*methods, *TABLE)}
    assert {name for name in named if not re.search(rf"\b{name}\b", page)} == set()


def test_type_checkers_know_every_public_name() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname: node.module for node in imports for alias in node.names}
    assert {*typed, "__version__"} == {*delaybridge.__all__}
    for name, home in typed.items():
        assert getattr(delaybridge, name) is getattr(import_module(str(home)), name)


def test_the_python_page_names_every_public_error() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    errors = {
        name
        for name in delaybridge.__all__
        if isinstance(made := getattr(delaybridge, name), type) and issubclass(made, Exception)
    }
    assert {name for name in errors if f"`{name}`" not in page} == set()


def test_the_features_page_has_every_row_of_the_five_designs_once() -> None:
    expected = [
        f"{design}-{number}"
        for design, (rows, errors) in DESIGNS.items()
        for number in (
            *(f"{n:02}" for n in range(1, rows + 1)),
            *(f"Q{n}" for n in range(1, errors + 1)),
        )
    ]
    named = re.findall(r"^\| (00\d-\w+) \|", FEATURES.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(expected)


@cache
def named_in(path: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tests of a file, those of a class as pytest names them: `Class::test`."""
    module = ast.parse((ROOT / path).read_text())
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    found = [(f"{of.name}::", node) for of in classes for node in of.body]
    found += [("", node) for node in module.body]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {f"{of}{node.name}": node for of, node in found if isinstance(node, functions)}


def test_the_features_page_names_tests_that_exist() -> None:
    named = TEST.findall(FEATURES.read_text())
    assert named
    assert [each for each in named if each[1] not in named_in(each[0])] == []


def test_every_row_of_what_happens_with_a_ledger_names_tests_and_cells_that_exist() -> None:
    page = (ROOT / "docs" / "ledger.md").read_text()
    _, _, table = page.partition("| what | what happens | shown by |\n")
    rows = re.findall(r"^\| (.*) \|$", table.partition("\n\n")[0], re.MULTILINE)
    assert len(rows) > 10
    for what, _, proof in (row.split(" | ") for row in rows):
        tests, cells = TEST.findall(proof), CELL.findall(proof)
        assert tests, f"{what}: a test of the fast tier"
        assert [each for each in tests if each[1] not in named_in(each[0])] == [], what
        assert not {*cells} - {*CELLS}, what
        assert not CELL.sub("", TEST.sub("", proof)).strip(", "), what


@pytest.mark.parametrize("page", [FEATURES, *INSIDE], ids=lambda page: page.name)
def test_the_pages_name_files_that_exist(page: Path) -> None:
    named = set((FILE if page == FEATURES else FILE_IN_A_ROOM).findall(page.read_text()))
    assert named
    assert [n for n in named if not (ROOT / n).exists() and not (PACKAGE / n).exists()] == []


def test_the_inside_pages_name_functions_that_exist() -> None:
    named = [each for page in INSIDE for each in NAME_IN_A_FILE.findall(page.read_text())]
    assert named
    for file, name in named:
        assert re.search(rf"(def|class) {name}\b", (PACKAGE / file).read_text()), f"{file}: {name}"


def features() -> list[list[str]]:
    """The rows of all tables of the features page."""
    rows = re.findall(r"^\| (.*) \|$", FEATURES.read_text(), re.MULTILINE)
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    return [row for row in cells if row[0] not in ("id", "no.", "feature")]


def test_every_row_of_the_features_page_has_a_proof_or_says_why_not() -> None:
    assert len(features()) > 115
    for id, *feature, answer, proof in features():
        assert all(feature) and answer, id
        assert (not proof) == (id in UNPROVEN), id
        assert not TEST.sub("", proof).strip(", "), f"{id}: a proof is the name of a test"


def is_fast(path: str, name: str) -> bool:
    """Whether a test is in the fast tier, with some of its parameters at least."""
    decorators = named_in(path)[name].decorator_list
    return "pytest.mark.slow" not in map(ast.unparse, decorators)


def test_every_row_of_the_features_page_names_a_test_of_the_fast_tier() -> None:
    slow = [row[0] for row in features() if row[0] not in UNPROVEN
            and not any(is_fast(*test) for test in TEST.findall(row[-1]))]  # fmt: skip
    assert slow == []


def test_the_kafka_consumer_of_the_tutorial_prints_records_without_a_body(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """confluent-kafka's records have the length of their bodies, so these are falsy."""

    class Record(Mock):
        def __len__(self) -> int:
            return len(self.value() or b"")

    def record(body: bytes | None) -> Record:
        return Record(**{f"{name}.return_value": value for name, value in
                         {"value": body, "error": None, "headers": None}.items()})  # fmt: skip

    consumer = Mock()
    consumer.poll.side_effect = [None, record(b""), record(None), record(b"a"), KeyboardInterrupt]
    monkeypatch.setattr("confluent_kafka.Consumer", lambda _: consumer)
    blocks = (ROOT / "docs" / "tutorial-kafka.md").read_text().split("<<'END'\n")
    (program,) = [each.split("\nEND\n")[0] for each in blocks if "import Consumer" in each]
    with pytest.raises(KeyboardInterrupt):
        exec(program, {})
    assert capsys.readouterr().out.splitlines() == ["b'' {}", "None {}", "b'a' {}"]

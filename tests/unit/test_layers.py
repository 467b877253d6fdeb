"""Rooms: imports point down only, the engine knows no annex, and each library has its rooms."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.rigs.rooms import ANNEXES, ENGINE, FACES, GROUND, LEVEL, PACKAGE, PORTS, ROOMS, room_of

MOST_FILES = 20  # of a folder
# An annex's types for mypy, in the port that finds it when it is called.
TYPES_OF_ANNEXES = {"client/annexes.py"}
# Imports against the order that are still to go, as (file, room).
LEFT: set[tuple[str, str]] = set()
STANDALONE = {"errors", "events", "times", "backoff", "message", "extensions", "accept"}
STANDALONE_MAY_USE = {"msgspec", "uuid_utils"}
CLIENT_LIBRARIES = {"pika", "confluent_kafka", "redis", "kombu", "amqp"}
# In `store`, everything else is without I/O.
REDIS_IS_IMPORTED_BY = {
    "store/redis/async_wire.py",
    "store/redis/errors.py",
    "store/redis/lifeline.py",
    "store/redis/master_watch.py",
    "store/redis/pipeline.py",
    "store/redis/redis_client.py",
    "store/redis/wire.py",
    "store/redis/sentinels.py",
    "store/redis/servers.py",
    "store/redis/store.py",
}
# In other rooms these are.
WITHOUT_IO = {
    "amqp/decoding.py",
    "amqp/encoding.py",
    "amqp/frames.py",
    "client/requests.py",
    "ingest/entries.py",
    "ingest/kafka/records.py",
    "ingest/rabbitmq/messages.py",
    "ingest/reach.py",
    "publish/rabbitmq/channel.py",
}
NO_IO = {"asyncio", "socket", "threading", *CLIENT_LIBRARIES}
READ_ALL_SETTINGS = {"settings", "client", "worker", *ANNEXES}
TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}
FILES = sorted(PACKAGE.rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def home_of(path: Path) -> str:
    return room_of(shown(path))


def files_of(*rooms: str) -> list[Path]:
    """The files of these rooms, and of the rooms in them."""
    inside = tuple(f"{room}/" for room in rooms)
    return [path for path in FILES if home_of(path) in rooms or shown(path).startswith(inside)]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@cache
def imports_of(path: Path) -> list[str]:
    """Dotted names of everything a file imports, wherever in it."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def libraries_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


def rooms_used_by(path: Path) -> set[str]:
    """Also for types only, and on demand; `from delaybridge import Client` is the face."""
    names = [name.partition(".") for name in imports_of(path)]
    own = [rest for package, _, rest in names if package == "delaybridge"]
    return {room_of(rest.replace(".", "/")) for rest in own} - {""}


@cache
def private_names(path: Path) -> set[str]:
    """The names with one underscore that a file defines."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if is_own(node.value) else set()
        elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
            found.add(str(node.value))  # `__slots__`, `getattr`
    private = {name for name in found if name.startswith("_") and not name.startswith("__")}
    return private - TUPLE_METHODS


def is_own(value: ast.expr) -> bool:
    """Whether an attribute of this is one of the object's own: self, cls, super()."""
    return ast.unparse(value) in {"self", "cls", "super()"}


def wrong(
    check: Callable[[Path], Iterable[str]], files: Iterable[Path] = FILES
) -> dict[str, set[str]]:
    """What a check finds, by file; files without a finding are left out."""
    return {shown(path): found for path in files if (found := set(check(path)))}


def test_every_file_has_its_room() -> None:
    assert [shown(path) for path in FILES if not home_of(path)] == [], "add it to rigs/rooms.py"


def test_imports_point_down() -> None:
    def above(path: Path) -> set[str]:
        level = LEVEL[home_of(path)]
        return {
            used
            for used in rooms_used_by(path)
            if LEVEL[used] > level and (shown(path), used) not in LEFT
        }

    others = [path for path in FILES if shown(path) not in TYPES_OF_ANNEXES]
    assert wrong(above, others) == {}


def test_what_is_left_to_go_is_still_there() -> None:
    found = {(shown(path), used) for path in FILES for used in rooms_used_by(path)}
    assert LEFT - found == set()


@pytest.mark.parametrize("name", sorted(TYPES_OF_ANNEXES))
def test_a_port_imports_annexes_for_their_types_only(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text())
    typing = [node for node in tree.body if isinstance(node, ast.If)]
    inside = {id(each) for node in typing for each in ast.walk(node)}
    found = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in inside
    ]
    rooms = {room_of(each.partition(".")[2].replace(".", "/")) for each in found}
    assert rooms & {*ANNEXES} == set()


def test_only_a_port_finds_an_annex_by_its_name() -> None:
    """An `import_module` of a text is an import, too."""
    rooms = "|".join(sorted({room.partition("/")[0] for room in ANNEXES}))
    named = re.compile(rf"import_module\(\s*f?\"delaybridge\.(?:{rooms})\b")
    engine = [path for path in files_of(*GROUND, *ENGINE) if shown(path) not in PORTS]
    assert [shown(path) for path in engine if named.search(path.read_text())] == []


def test_the_engine_needs_no_extra() -> None:
    """Its libraries come with the base package, but for two that it does without."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[\[<>=]", each)[0].replace("-", "_") for each in project["dependencies"]}
    allowed = {*sys.stdlib_module_names, *base, "delaybridge", "hiredis", "pydantic_core"}
    optional = {"opentelemetry", "uvloop"}
    engine = files_of(*GROUND, *ENGINE)
    assert wrong(lambda path: libraries_of(path) - allowed - optional, engine) == {}


def test_a_folder_has_few_files() -> None:
    folders = [path for path in (PACKAGE, *PACKAGE.rglob("*")) if path.is_dir()]
    counts = {str(each.relative_to(PACKAGE)): len([*each.glob("*.py")]) for each in folders}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


def test_each_room_has_a_sign() -> None:
    folders = [room for room in ROOMS if (PACKAGE / room).is_dir()]
    signs = [PACKAGE / room / "__init__.py" for room in folders]
    missing = [shown(p) for p in signs if not p.exists() or not ast.get_docstring(tree_of(p))]
    assert missing == []


def test_the_lowest_rooms_stand_alone() -> None:
    allowed = sys.stdlib_module_names | {"delaybridge"} | STANDALONE_MAY_USE
    assert wrong(lambda path: libraries_of(path) - allowed, files_of(*STANDALONE)) == {}


def test_the_scanner_knows_no_client_library() -> None:
    def known(path: Path) -> set[str]:
        publishers = (n for n in imports_of(path) if n.startswith("delaybridge.publish."))
        return libraries_of(path) & CLIENT_LIBRARIES | {n for n in publishers if n.count(".") > 2}

    assert wrong(known, files_of("scan", "client")) == {}


def test_modules_that_read_and_decide_are_without_io() -> None:
    of_store = [path for path in files_of("store") if shown(path) not in REDIS_IS_IMPORTED_BY]
    without = [*of_store, *(PACKAGE / path for path in WITHOUT_IO)]
    assert wrong(lambda path: libraries_of(path) & NO_IO, without) == {}


def test_only_processes_and_clients_get_all_settings() -> None:
    others = [path for path in FILES if home_of(path) not in {*READ_ALL_SETTINGS, *FACES}]
    all_settings = {"delaybridge.settings.settings.Settings"}
    assert wrong(lambda path: all_settings & set(imports_of(path)), others) == {}


def test_private_names_are_used_by_their_own_file_only() -> None:
    owners: dict[str, set[Path]] = {}
    for path in FILES:
        for name in private_names(path):
            owners.setdefault(name, set()).add(path)

    def foreign(path: Path) -> set[str]:
        imported = {n for n in imports_of(path) if n.startswith("delaybridge.") and "._" in n}
        used = {
            f"{node.lineno}: {ast.unparse(node)}"
            for node in nodes_of(path)
            if isinstance(node, ast.Attribute)
            and path not in owners.get(node.attr, {path})
            and not is_own(node.value)
        }
        return used | (imported - {"delaybridge.__version__"})

    assert wrong(foreign) == {}


def test_a_broker_is_imported_on_demand_only() -> None:
    brokers = {room for room in ROOMS if room.startswith(("publish/", "publishers/"))}
    on_demand = files_of("publish", "publishers", "ingest", "front", "operate/demo")
    others = [path for path in FILES if path not in on_demand]
    assert wrong(lambda path: rooms_used_by(path) & brokers, others) == {}

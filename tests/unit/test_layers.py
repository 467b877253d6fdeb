"""Rooms: imports point down only, and each room imports only the libraries that are its own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "delaybridge"
# From the lowest to the highest. A room is a folder, or a module right below the package.
ROOMS = (
    *("errors", "events", "times", "backoff", "message", "sql_connection"),
    *("failpoints", "tracing", "recurring"),
    *("amqp", "accept", "settings", "ledger", "store", "dedup", "metrics", "publish", "client"),
    *("outbox", "intercept", "scan", "ingest", "worker", "doctor"),
    *("web", "demo", "cli", "__main__"),
)
LEVEL = {room: level for level, room in enumerate(ROOMS)}
LEVEL["demo"] = LEVEL["cli"]  # `demo` is one of the commands, and prints as they do
STANDALONE = {"errors", "events", "times", "backoff", "message", "accept"}
STANDALONE_MAY_USE = {"msgspec", "uuid_utils"}
CLIENT_LIBRARIES = {"pika", "confluent_kafka", "redis", "kombu", "amqp"}
# In `store`, everything else is without I/O.
REDIS_IS_IMPORTED_BY = {
    "store/redis/async_wire.py",
    "store/redis/errors.py",
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
READ_ALL_SETTINGS = {"settings", "client", "worker", "doctor", "web", "demo", "cli"}
TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def shown(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files_of(*rooms: str) -> list[Path]:
    return [path for path in FILES if room_of(path) in rooms]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


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
    names = [name.split(".") for name in imports_of(path)]
    used = {name[1] for name in names if name[0] == "delaybridge" and len(name) > 1}
    return used & LEVEL.keys()


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


def test_every_room_has_its_level() -> None:
    assert {room_of(path) for path in FILES} <= LEVEL.keys(), "add it to ROOMS"


def test_imports_point_down() -> None:
    def above(path: Path) -> set[str]:
        return {used for used in rooms_used_by(path) if LEVEL[used] > LEVEL[room_of(path)]}

    assert wrong(above) == {}


def test_the_internals_page_shows_the_rooms_in_this_order() -> None:
    page = (PACKAGE.parent / "docs" / "internals.md").read_text()
    section = page.split("\n## The rooms\n")[1].split("\n## ")[0]
    shown = "".join(line for line in section.splitlines() if line.startswith("    "))
    found = [(shown.find(f" {room}{end}"), room) for room in ROOMS for end in ("/", ".py")]
    order = [room for place, room in sorted(found) if place >= 0]
    assert order == [room for room in ROOMS if not room.startswith("__")]


def test_each_room_has_a_sign() -> None:
    signs = [p / "__init__.py" for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"]
    assert [shown(p) for p in signs if not ast.get_docstring(ast.parse(p.read_text()))] == []


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
    others = [path for path in FILES if room_of(path) not in READ_ALL_SETTINGS]
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
    brokers = {path.name for path in (PACKAGE / "publish").iterdir() if path.is_dir()} | {"memory"}
    on_demand = {"publish", "ingest", "demo"}

    def named(path: Path) -> set[str]:
        publishers = (n for n in imports_of(path) if n.startswith("delaybridge.publish."))
        return {name.split(".")[2] for name in publishers} & brokers

    assert wrong(named, [path for path in FILES if room_of(path) not in on_demand]) == {}

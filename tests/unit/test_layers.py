"""Imports point down only, and the lowest layer knows no third party but the codec and ids."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "delaybridge"

LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "message",
        "accept",
        "instructions",
        "times",
        "amqp",
        "amqp_table",
        "errors",
        "events",
        "interrupts",
    ),
    (
        *(
            "settings",
            "settings_sources",
            "urls",
            "routes",
            "password_file",
            "keys",
            "ids",
            "commands",
            "steps",
            "damage",
        ),
        *("wheel", "retry", "flow", "alarm", "clock"),
    ),
    (
        *(
            "redis_wire",
            "redis_login",
            "store",
            "troubles",
            "selection",
            "calls",
            "quota",
            "client",
            "session",
        ),
        *("parked", "lease"),
        *("damaged", "rights", "announcements", "eventlog", "publish"),
    ),
    ("letters", "lanes", "scanner", "ingest", "intercept"),
    ("service", "reload", "brokers", "worker", "ingester", "processes"),
    ("cli", "demo", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LOWEST_MAY_USE = {"msgspec", "uuid_utils"}
CLIENT_LIBRARIES = {"pika", "confluent_kafka", "redis"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    """The module, or the folder, right below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_rooms(path: Path) -> Iterator[str]:
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "delaybridge" and len(parts) > 1 and parts[1] in LEVEL:
            yield parts[1]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    assert room in LEVEL, f"{room}: which layer is it in?"
    above = {r for r in own_rooms(path) if LEVEL[r] > LEVEL[room]}
    # A type that a constructor takes from settings is named, never imported, at run time.
    assert not above, f"{room} imports from a layer above it: {above}"


@pytest.mark.parametrize("room", LAYERS[0])
def test_the_lowest_layer_stands_alone(room: str) -> None:
    outside = {
        name.split(".")[0]
        for name in imports_of(PACKAGE / f"{room}.py")
        if name.split(".")[0] not in {*sys.stdlib_module_names, "delaybridge"}
    }
    assert outside <= LOWEST_MAY_USE


@pytest.mark.parametrize("room", ["scanner", "lanes", "session", "lease"])
def test_who_scans_knows_no_client_library(room: str) -> None:
    used = {name.split(".")[0] for name in imports_of(PACKAGE / f"{room}.py")}
    assert not used & CLIENT_LIBRARIES
    assert not any(
        name.startswith("delaybridge.publish.") and name.count(".") > 2
        for name in imports_of(PACKAGE / f"{room}.py")
    )


def test_a_broker_s_module_is_imported_by_nobody_but_on_demand() -> None:
    brokers = {"rabbitmq", "kafka", "memory", "redis_streams", "kombu"}
    for path in FILES:
        if room_of(path) == "publish" or path.name == "__init__.py":
            continue
        if room_of(path) == "ingest" and path.stem in brokers:
            continue  # imported on demand itself
        named = {n.split(".")[2] for n in imports_of(path) if n.startswith("delaybridge.publish.")}
        assert not named & brokers, path

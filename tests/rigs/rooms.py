"""The rooms of the package in their order: a room imports from those that stand before it.

A room is a folder with its files, or a module right below the package. What a folder's own files
share, and what assembles its sub-rooms, is the room with the folder's name.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "delaybridge"
# What all rooms use.
GROUND = (
    "late",
    *("errors", "times", "events", "backoff", "extensions", "failpoints", "gathering", "histogram"),
    *("message", "stranger", "tracing"),
)
# Accept a message, keep it in its bucket, claim it when it is due, publish it, settle it.
ENGINE = (
    *("amqp", "accept", "settings"),
    *("store/protocol", "store/redis", "store/namespace", "store/messages", "store"),
    "client",
    *("publish", "publish/rabbitmq", "publish/kafka"),
    *("scan/leases", "scan/lanes", "scan/wheel", "scan"),
    "worker",
)
# What plugs in: the engine never imports it.
ANNEXES = (
    *("publishers/redis_streams", "publishers/kombu", "publishers/http", "publishers"),
    "recurring",
    "resize",
    *("ledger", "ledger/sql", "ledger/comparing", "ledger/recording", "ledger/reconciling"),
    *("dedup", "outbox", "ingest", "ingest/kafka", "ingest/rabbitmq", "intercept", "front"),
    *(
        "operate/notices",
        "operate/views",
        "operate/troubles",
        "operate/metrics",
        "operate/sizing",
        "operate/parts",
        "operate/doctor",
    ),
    *("operate/supervisor", "carry", "foreign"),
    *("serve/http", "serve/stored", "serve/access", "serve/shared", "serve/api"),
    *("serve/console", "serve/dialects", "serve/server", "serve"),
    *("operate/terminal", "operate/top", "operate/demo", "operate/cli", "operate", "testing"),
)
# What is imported, or started, by a public name.
FACES = ("web", "pytest_plugin", "__init__", "__main__")
ROOMS = (*GROUND, *ENGINE, *ANNEXES, *FACES)
LEVEL = {room: level for level, room in enumerate(ROOMS)}
# The engine's ports, which find an annex when it is asked for.
PORTS = ("client/annexes.py", "settings/relations.py", "store/protocol/recorder.py")


def room_of(name: str) -> str:
    """The room of a file or module of the package, as `scan/lanes/lane`; the longest that fits."""
    parts = name.removesuffix(".py").split("/")
    while parts and "/".join(parts) not in LEVEL:
        parts.pop()
    return "/".join(parts)

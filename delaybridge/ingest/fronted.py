"""The exchanges of a namespace that fronts have made: ingest reads their intakes.

A hash of the namespace lists them, `BROKER:EXCHANGE` -> where its messages go, and its intake. The
broker has the same objects; the list is how ingest finds them at once, without its management API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from delaybridge.ingest.routes import Route
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.verbs import RedisCommand, plain


def enlist(namespace: str, route: Route) -> list[RedisCommand[Any]]:
    """Put the exchange of a front on the list, and wake the ingest processes at once."""
    name = keys.fronted(namespace)
    about = json.dumps({"target": route.target, "intake": route.intake})
    return [plain("HSET", name, str(route), about), plain("PUBLISH", name, str(route))]


def unlist(namespace: str, route: Route) -> RedisCommand[Any]:
    """Take it off the list: its intake is gone."""
    return plain("HDEL", keys.fronted(namespace), str(route))


def listed(namespace: str) -> RedisCommand[list[Route]]:
    """The exchanges on the list, in the order of their names; what cannot be read is left out."""
    return plain("HGETALL", keys.fronted(namespace), parse=_read)


def _read(reply: list[bytes]) -> list[Route]:
    found = replies.read_mapping(reply)
    return sorted(_routes(found.items()))


def _routes(items: Iterable[tuple[bytes, bytes]]) -> Iterable[Route]:
    for name, text in items:
        with suppress(ValueError, TypeError, KeyError):  # of another version, or damaged
            about = json.loads(text)
            broker, _, exchange = name.decode().partition(":")
            target, intake = about["target"], about["intake"]
            if exchange and isinstance(target, str) and isinstance(intake, str) and intake:
                yield Route(broker, "rabbitmq", exchange, target, intake)

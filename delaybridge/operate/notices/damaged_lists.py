"""Damage to the namespace's own keys: its record, its lists of processes, what else it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.damage import Damage, of_birth
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, plain

_OF_TYPE = {"zset": "ZCARD", "hash": "HLEN"}
_UNLISTED = "workers keep the buckets that they hold"
_NO_RUNS = "recurring messages are not made, others go on"
_UNAGREED = "rules and recurring definitions cannot be changed"
_LISTS = (
    (keys.workers, "zset", _UNLISTED),
    (keys.worker_info, "hash", _UNLISTED),
    (keys.ingests, "zset", "ingest goes on"),
    (keys.ingest_info, "hash", "ingest goes on"),
    (keys.fronts, "zset", "fronts go on"),
    (keys.front_info, "hash", "fronts go on"),
    (keys.fronted, "hash", "fronts write it again, ingest goes on"),
    (keys.allowances, "hash", "messages with a rate wait, others go on"),
    (keys.series, "hash", "no rates are recorded, messages go on"),
    (keys.recurring, "hash", _NO_RUNS),
    (keys.recurring_due, "zset", _NO_RUNS),
    (keys.recurring_state, "hash", _NO_RUNS),
    (keys.controls, "hash", _UNAGREED),
    (keys.unrecorded, "zset", _UNAGREED),
)


def commands(namespace: str) -> list[RedisCommand[Any]]:
    """The commands whose replies `found` reads: one for the record, and one for each list."""
    return [
        registry.read_birth(namespace),
        *(plain(_OF_TYPE[kind], name_of(namespace)) for name_of, kind, _ in _LISTS),
    ]


def found(namespace: str, replies: Sequence[Any]) -> list[Damage]:
    """The damage that the replies to `commands` show. Workers keep the leases they hold."""
    birth, *lists = replies
    damage = [
        Damage(name, f"is not a {kind}", f"redis-cli DEL '{name}'", effect)
        for (name_of, kind, effect), reply in zip(_LISTS, lists, strict=True)
        if isinstance(reply, StoreError) and (name := name_of(namespace))
    ]
    if isinstance(birth, StoreError):
        damage.append(of_birth(namespace))
    return damage

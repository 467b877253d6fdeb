"""Facts of the Redis servers, for people: version, memory, persistence, replicas, our keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.operate.views.slowness import (
    SECTIONS,
    ScriptTimes,
    SlowCall,
    script_times,
    slow_calls,
    slow_log,
)
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.namespace import Namespace
from delaybridge.store.namespace.placement import at
from delaybridge.store.protocol.command import Each, RedisCommand, Steps, plain, store_wide_error
from delaybridge.store.protocol.verbs import Bucket

_SECTIONS = ("server", "memory", "persistence", "replication", "clients", "stats")
_KEYS = {
    "due": "ZCARD", "messages": "HLEN", "mirror": "ZCARD", "attempts": "HLEN", "parked": "ZCARD",
    "dead": "ZCARD", "revoked": "ZCARD", "calls": "ZCARD",
}  # fmt: skip
_OF_COMMANDS = ("cmdstat_", "latency_percentiles_usec_")
_SIZED, _SAMPLES = ("messages", "due"), 20


class ServerFacts(NamedTuple):
    """One server. info: what INFO says. missing: why it does not answer, or refuses.

    scripts: None if no script was called. slow: None if the user may not ask, and then
    `slow_missing` says why.
    """

    node: str
    info: Mapping[str, str]
    missing: str = ""
    scripts: ScriptTimes | None = None
    slow: Sequence[SlowCall] | None = None
    slow_missing: str = ""


class StoreFacts(NamedTuple):
    """keys: kind of key -> its entries in all buckets; None if one could not be asked. size_bytes:
    of the keys that hold messages and their due times, as Redis estimates it; None if the user may
    not ask, and then `missing` says why.
    """

    servers: Sequence[ServerFacts]
    keys: Mapping[str, int | None]
    size_bytes: int | None
    missing: str


def read_facts(calls: Namespace) -> Steps[StoreFacts]:
    """Facts for a page; three round trips. What the Redis user may not ask is left out."""
    buckets = yield from calls.open()
    nodes = list(calls.placement.nodes()) or [""]
    sections = (*_SECTIONS, *SECTIONS)
    infos = yield Each(registry.info(s, at(node)) for node in nodes for s in sections)
    if len(nodes) == 1 and (error := store_wide_error(infos)) is not None:
        raise error
    found = yield Each(_counts(buckets))
    asked = yield Each([*map(slow_log, nodes), *_sizes(buckets)])
    size_bytes, missing = _size(asked[len(nodes) :])
    each, count = len(sections), len(buckets)
    return StoreFacts(
        [
            _with_slow(_server(n, infos[i * each : (i + 1) * each]), asked[i], calls.namespace)
            for i, n in enumerate(nodes)
        ],
        {name: _sum(found[i * count :][:count]) for i, name in enumerate(_KEYS)},
        size_bytes,
        missing,
    )


def _counts(buckets: Sequence[Bucket]) -> list[RedisCommand[Any]]:
    return [
        plain(command, bucket.key(name), parse=int)
        for name, command in _KEYS.items()
        for bucket in buckets
    ]


def _sizes(buckets: Sequence[Bucket]) -> list[RedisCommand[Any]]:
    return [
        plain("MEMORY USAGE", bucket.key(name), "SAMPLES", _SAMPLES)
        for name in _SIZED
        for bucket in buckets
    ]


def _size(sizes: Sequence[Any]) -> tuple[int | None, str]:
    """The sum, or the reason why it is unknown."""
    failed = next((each for each in sizes if isinstance(each, StoreError)), None)
    return (None, str(failed)) if failed else (sum(size or 0 for size in sizes), "")


def _server(node: str, replies: Sequence[Any]) -> ServerFacts:
    info: dict[str, str] = {}
    for reply in replies:
        if isinstance(reply, StoreError):
            return ServerFacts(node, info, str(reply))
        info |= reply
    of_scripts = {name: info.pop(name) for name in [*info] if name.startswith(_OF_COMMANDS)}
    return ServerFacts(node, info, scripts=script_times(of_scripts))


def _with_slow(server: ServerFacts, reply: Any, namespace: str) -> ServerFacts:
    if isinstance(reply, StoreError):
        return server._replace(slow_missing=server.missing or str(reply))
    return server._replace(slow=slow_calls(reply, namespace))


def _sum(counts: Sequence[Any]) -> int | None:
    return None if any(isinstance(each, StoreError) for each in counts) else sum(counts)

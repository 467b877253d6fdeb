"""Facts of the Redis servers, for people: version, memory, persistence, replicas, our keys.

Also how near a server is to the limit of its memory, how quick the scripts are on it, and which
calls were slow, as Redis noted it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.namespace import EVICTION, Namespace
from delaybridge.store.namespace.placement import Placement, at
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, plain, store_wide_error

_SECTIONS = ("server", "memory", "persistence", "replication", "clients", "stats")
_KEYS = {
    "due": "ZCARD", "messages": "HLEN", "mirror": "ZCARD", "attempts": "HLEN", "parked": "ZCARD",
    "dead": "ZCARD", "revoked": "ZCARD", "calls": "ZCARD",
}  # fmt: skip
_OF_COMMANDS = ("cmdstat_", "latency_percentiles_usec_")
_SIZED, _SAMPLES = ("messages", "due"), 20
_TIMES = ("commandstats", "latencystats")
_READ, _KEPT = 50, 20
_CHARS = 200


class ScriptTimes(NamedTuple):
    """All script calls of a server since it started, also those of others. In microseconds.

    p50_us, p99_us: None on a Redis before 7.
    """

    calls: int
    mean_us: float
    p50_us: float | None
    p99_us: float | None


class SlowCall(NamedTuple):
    """A call that took longer than `slowlog-log-slower-than`, 10 ms unless that is changed.

    what: the script or the command. key: the first one of this namespace. Its other
    arguments are not kept: they hold messages.
    """

    at_ms: int
    took_us: int
    what: str
    key: str


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
    buckets = yield from calls.every_bucket()
    nodes = list(calls.placement.nodes()) or [""]
    sections = (*_SECTIONS, *_TIMES)
    infos = yield Each(registry.info(s, at(node)) for node in nodes for s in sections)
    if len(nodes) == 1 and (error := store_wide_error(infos)) is not None:
        raise error
    found = yield Each(_counts(buckets))
    asked = yield Each([*map(_slow_log, nodes), *_sizes(buckets)])
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
    return server._replace(slow=_slow_calls(reply, namespace))


def _sum(counts: Sequence[Any]) -> int | None:
    return None if any(isinstance(each, StoreError) for each in counts) else sum(counts)


def script_times(stats: Mapping[str, str]) -> ScriptTimes | None:
    """From the lines of INFO; None if no script was called."""
    found = _fields(stats.get("cmdstat_evalsha", ""))
    if not (calls := int(found.get("calls", 0))):
        return None
    spread = _fields(stats.get("latency_percentiles_usec_evalsha", ""))
    mean_us = float(found["usec_per_call"])
    return ScriptTimes(calls, mean_us, _known(spread, "p50"), _known(spread, "p99"))


def _fields(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in line.split(","))}


def _known(found: Mapping[str, str], name: str) -> float | None:
    return float(found[name]) if name in found else None


def _slow_log(node: str) -> RedisCommand[Any]:
    """Asks a server for its slow log."""
    return plain("SLOWLOG GET", _READ, near=at(node))


def _slow_calls(reply: Sequence[Any], namespace: str) -> list[SlowCall]:
    """The calls in it that concern this namespace, the latest first."""
    return [call for entry in reply for call in _slow_call(entry, namespace)][:_KEPT]


def _slow_call(entry: Sequence[Any], namespace: str) -> Iterator[SlowCall]:
    _, at_s, took_us, words, *_ = entry
    known = {digest.encode(): verb for verb, (_, digest) in scripts().items()}
    key = next((each for each in words[1:] if _is_ours(each, namespace)), None)
    if key is not None:
        is_script = len(words) > 1 and words[0].upper() == b"EVALSHA"
        what = known.get(words[1], _text(words[1])) if is_script else _text(words[0]).upper()
        yield SlowCall(at_s * 1000, took_us, what, _text(key))


def _is_ours(word: bytes, namespace: str) -> bool:
    return word.startswith((f"{{{namespace}:".encode(), f"{{{namespace}}}".encode()))


def _text(word: bytes) -> str:
    return word.decode(errors="backslashreplace")[:_CHARS]


class Fullness(NamedTuple):
    """A server's memory: what counts against its limit, and the limit (maxmemory).

    node: the server, as `host:port` on a Cluster. drops: when it is full, it does not refuse new
    messages but drops old ones.
    """

    used_bytes: int
    limit_bytes: int
    node: str = ""
    drops: bool = False

    @property
    def percent(self) -> int:
        """How full it is, rounded down; above 100 if it is over its limit."""
        return 100 * self.used_bytes // self.limit_bytes


def fullest(placement: Placement) -> Steps[Fullness | None]:
    """The fullest master of those that answer. One round trip.

    None: none has a limit, or INFO is not permitted.
    """
    nodes = [node for node in placement.nodes() or [""] if not placement.misses(at(node))]
    replies = yield Each(registry.info("memory", at(node)) for node in nodes)
    answers = zip(nodes, replies, strict=True)
    found = [_fullness(node, of) for node, of in answers if not isinstance(of, StoreError)]
    limited = [each for each in found if each.limit_bytes]
    return max(limited, key=lambda each: each.used_bytes / each.limit_bytes, default=None)


def _fullness(node: str, memory: Mapping[str, str]) -> Fullness:
    # Redis does not count the buffers of replicas and of the append-only file against its limit.
    used, free = (int(memory.get(f, 0)) for f in ("used_memory", "mem_not_counted_for_evict"))
    return Fullness(
        max(0, used - free),
        int(memory.get("maxmemory", 0)),
        node,
        memory.get("maxmemory_policy", EVICTION) != EVICTION,
    )

"""How quick the scripts are on a Redis server, and which calls were slow: as Redis noted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.store.namespace.placement import at
from delaybridge.store.protocol.command import RedisCommand, plain
from delaybridge.store.protocol.scripts import scripts

SECTIONS = ("commandstats", "latencystats")
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


def script_times(stats: Mapping[str, str]) -> ScriptTimes | None:
    """From the lines of INFO; None if no script was called."""
    found = _fields(stats.get("cmdstat_evalsha", ""))
    if not (calls := int(found.get("calls", 0))):
        return None
    spread = _fields(stats.get("latency_percentiles_usec_evalsha", ""))
    mean_us = float(found["usec_per_call"])
    return ScriptTimes(calls, mean_us, _number(spread, "p50"), _number(spread, "p99"))


def _fields(line: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in line.split(","))}


def _number(found: Mapping[str, str], name: str) -> float | None:
    return float(found[name]) if name in found else None


def slow_log(node: str) -> RedisCommand[Any]:
    """Asks a server for its slow log."""
    return plain("SLOWLOG GET", _READ, near=at(node))


def slow_calls(reply: Sequence[Any], namespace: str) -> list[SlowCall]:
    """The calls in it that concern this namespace, the latest first."""
    return [call for entry in reply for call in _read(entry, namespace)][:_KEPT]


def _read(entry: Sequence[Any], namespace: str) -> Iterator[SlowCall]:
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

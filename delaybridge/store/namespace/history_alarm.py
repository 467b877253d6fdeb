"""The alarm: Redis came back with an older past, or empty. Workers note it, operators clear it.

They are kept in Redis, so they outlive the worker that noticed: the hash `alarms`, an entry of JSON
for each bucket that went back, and one for the whole namespace if it was wiped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError, printable
from delaybridge.store.namespace.translatable import Sentence
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.verbs import RedisCommand, plain
from delaybridge.times import format_time

FRESH_MS = 600_000  # `health` fails for as long
_WIPED = "wiped"
_MOST = 2**53
_CHARS = 200


class Setback(NamedTuple):
    """What a worker noticed: at_ms, by its own clock in epoch milliseconds.

    bucket: the one that went back from one turn to another; None if the namespace was wiped.
    missing: how many scheduled messages are not counted any more; they are lost, unless they had
    been published or cancelled. More may be: counts are read once a second, and what was accepted
    after the last reading, and lost, was never in one.

    rowless: with a ledger, messages of the bucket that were not in it, which it cannot rebuild.
    """

    at_ms: int
    worker: str
    bucket: int | None = None
    from_turn: int = 0
    to_turn: int = 0
    missing: int = 0
    rowless: int = 0

    @property
    def is_for_good(self) -> bool:
        """Whether the ledger lacked something of what may be lost."""
        return bool(self.rowless)


def note(namespace: str, found: Setback) -> RedisCommand[Any]:
    """Keep it; a later one of the same bucket replaces it, unless only the first is for good."""
    return plain("HSET", keys.alarms(namespace), _field(found), json.dumps(found._asdict()))


def end(namespace: str, found: Iterable[Setback]) -> RedisCommand[int]:
    """Forget these; at least one."""
    return plain("HDEL", keys.alarms(namespace), *map(_field, found), parse=int)


def _field(found: Setback) -> str:
    name = _WIPED if found.bucket is None else str(found.bucket)
    return f"{name} for good" if found.is_for_good else name


def read(namespace: str) -> RedisCommand[list[Setback]]:
    """All that are kept; what cannot be read is left out."""
    return plain("HGETALL", keys.alarms(namespace), parse=_read)


def clear(namespace: str) -> RedisCommand[int]:
    """Forget them; answers 1 if there were any."""
    return plain("DEL", keys.alarms(namespace), parse=int)


def kept(reply: list[Setback] | StoreError) -> list[Setback]:
    """The reply to `read`; none if the key is damaged."""
    return [] if isinstance(reply, StoreError) else reply


def setbacks_text(found: Sequence[Setback]) -> str:
    """In one sentence what happened; empty if nothing did."""
    return "; ".join(map(str, sentences(found)))


def sentences(found: Sequence[Setback]) -> Iterator[Sentence]:
    """What happened, and what the ledger cannot rebuild of it."""
    if found:
        yield sentence(found)
    if any(each.is_for_good for each in found):
        rowless = sum(each.rowless for each in found)
        yield Sentence(
            "the ledger does not have, and cannot rebuild: {rowless} messages",
            {"rowless": f"{rowless:,}"},
        )


def sentence(found: Sequence[Setback]) -> Sentence:
    """What happened, by at least one."""
    wiped = next((each for each in found if each.bucket is None), None)
    last = wiped or max(found, key=lambda each: each.at_ms)
    values: dict[str, object] = {"worker": last.worker, "time": format_time(last.at_ms)}
    if wiped is not None:
        return Sentence("the namespace was wiped, seen by {worker} at {time}", values)
    missing = sum(each.missing for each in found)
    values |= {
        "buckets": len({each.bucket for each in found}),
        "missing": f"{missing:,}",
        "bucket": last.bucket,
    }
    if last.to_turn < last.from_turn:
        return Sentence(
            "Redis went back to an older state in {buckets} buckets (bucket {bucket} from turn "
            "{from_turn} to {to_turn}), at least {missing} scheduled messages are missing; up to a "
            "second of accepted messages is not counted; seen by {worker} at {time}",
            values | {"from_turn": last.from_turn, "to_turn": last.to_turn},
        )
    return Sentence(
        "Redis went back to an older state in {buckets} buckets (bucket {bucket} at turn {turn}), "
        "at least {missing} scheduled messages are missing; up to a second of accepted messages is "
        "not counted; seen by {worker} at {time}",
        values | {"turn": last.to_turn},
    )


def _read(reply: list[bytes]) -> list[Setback]:
    found = replies.read_mapping(reply)
    return [*_readable(found.values())]


def _readable(texts: Iterable[bytes]) -> Iterable[Setback]:
    for text in texts:
        try:
            of = json.loads(text)
        except ValueError:
            continue
        if isinstance(of, dict):
            worker = printable(str(of.get("worker"))[:_CHARS])
            bucket = of.get("bucket")
            yield Setback(
                _whole(of, "at_ms"), worker, None if bucket is None else _whole(of, "bucket"),
                *(_whole(of, name) for name in Setback._fields[3:]),
            )  # fmt: skip


def _whole(of: Mapping[str, Any], name: str) -> int:
    value = of.get(name)
    return value if isinstance(value, int) and 0 <= value < _MOST else 0

"""Hot or cold: how calls for one id agree, although messages of both tiers may have it.

These steps are part of a recording: the errors of their commands are answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

from delaybridge.errors import StoreError, StoreWiped
from delaybridge.ledger.comparing.promotion import promote
from delaybridge.ledger.recording.ledger_rows import STAMP_BYTES
from delaybridge.ledger.recording.tiers import NOW, replaces
from delaybridge.ledger.sql.rows import COLD, HOT, LedgerRow, Name, RowName
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.keys import SCRIPT_KEYS
from delaybridge.store.protocol.verbs import Each, LedgerSteps, RedisCommand, Work, plain

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from delaybridge.ledger.sql.cold import ColdRecords

_Asked = Sequence[tuple[RedisCommand[Any], Sequence[LedgerRow]]]


def separate(cold: ColdRecords, rows: Sequence[LedgerRow]) -> LedgerSteps[Set[RowName]]:
    """Separate calls: all of a message are to be in Redis, or one is in the ledger alone.

    Two processes that schedule one id at a time have both committed their rows before they look
    for others: so at least one of them sees both. It brings the other one's message into Redis,
    which then decides between them. Answers with the cold rows that are to go there, too.
    """
    hot = [*dict.fromkeys(row.name[:2] for row in rows if row.tier != COLD)]
    names = {row.name for row in rows if row.tier == COLD}
    others, own = yield Work(partial(_tiers, cold, hot, [*names]))
    warm = {name for name in names if own.get(name[:2]) != [(name[2], COLD)]}
    if warm:
        yield Work(lambda on: cold.warm(on, [*warm]))
    yield from promote_named(cold, {*others, *(name[:2] for name in warm)})
    return warm


def _tiers(
    cold: ColdRecords, hot: Sequence[Name], names: Sequence[RowName], on: Connection
) -> tuple[Any, Any]:
    """The cold calls of the messages `hot`; all live ones of those that these cold rows are of."""
    others = {} if not names and cold.is_empty(on) else cold.calls(on, hot)
    if names and cold.are_alone(on, names):
        return others, {name[:2]: [(name[2], COLD)] for name in names}
    return others, cold.calls(on, [*{name[:2] for name in names}], tier=HOT)


def bring_lost(cold: ColdRecords, asked: _Asked) -> LedgerSteps[None]:
    """Messages that these calls are to replace go into Redis first, if it has lost them.

    Else it would know of nothing to replace, and they would come as well. A lookup of each message:
    only for buckets that were not compared with the ledger yet.
    """
    keys = {
        row.name[:2]: _keys(command)["messages"]
        for command, own in asked
        if replaces(command)
        for row in own
    }
    if not keys:
        return
    own = {row.name for _, rows in asked for row in rows}
    calls = yield Work(partial(cold.calls, names=[*keys], tier=HOT))
    others = [
        name
        for name, found in calls.items()
        if any(tier == HOT and (*name, stamp) not in own for stamp, tier in found)
    ]
    known = (yield [plain("HEXISTS", keys[name], name[1]) for name in others]) if others else []
    lost = [name for name, is_known in zip(others, known, strict=True) if is_known == 0]
    yield from promote_named(cold, lost, tier=HOT)


def promote_named(
    cold: ColdRecords, names: Iterable[Name], *, tier: int = COLD
) -> LedgerSteps[set[Name]]:
    """Bring messages into Redis; those that are there now.

    HOT: also those that it should have, but may lack. A namespace that was wiped is made again as
    it was. StoreWiped: it was made again with another birth id, or wiped once more.
    """
    by_bucket = defaultdict[int, list[Name]](list)
    for name in names:
        by_bucket[name[0]].append(name)
    if not by_bucket:
        return set()
    namespace = cold.records.namespace
    (record,) = yield [registry.read_layout(namespace)]
    if record is None and (known := (yield Work(cold.records.known))):
        _, record = yield registry.born(namespace, known[0].collapsed(), known[1])
    if isinstance(record, StoreError):
        raise record
    if record is None:
        raise StoreWiped
    found = set[Name]()
    for number, own in by_bucket.items():
        bucket = Bucket(namespace, number, record[1])
        found |= yield from _raising(promote(bucket, cold, own, tier=tier))
    return found


def for_redis(asked: _Asked) -> LedgerSteps[Set[RowName]]:
    """The cold ones among these rows that Redis is to answer for.

    Either the id was delivered within the dedup window, or Redis has a note of the call: it was
    refused or undone before. While the note is there, the message is not brought into Redis.
    """
    found = [(command, [row for row in rows if row.tier == COLD]) for command, rows in asked]
    cold = [each for each in found if each[1] and each[0].name == "schedule"]
    if not cold:
        return set()
    marks = iter((yield [look for command, _ in cold for look in _marks(command)]))
    looked = [
        look for command, rows in cold for look in _looks(command, rows, next(marks), next(marks))
    ]
    scores = (yield [look for *_, look in looked]) if looked else []
    each = zip(looked, scores, strict=True)
    return {name for (name, after, _), score in each if _is_later(score, after)}


def _marks(command: RedisCommand[Any]) -> Iterator[RedisCommand[Any]]:
    key = _keys(command)
    yield plain("HGET", key["marks"], "dedup_ms")
    yield plain("ZCARD", key["calls"])


def _looks(
    command: RedisCommand[Any], rows: Sequence[LedgerRow], window: Any, notes: Any
) -> Iterator[tuple[RowName, int, RedisCommand[Any]]]:
    """What is asked of each row; window, notes: the answers to `_marks`."""
    key, now_ms = _keys(command), int(command.args[NOW])
    for row in rows:
        if window is not None and not replaces(command):
            yield row.name, now_ms, plain("ZSCORE", key["delivered"], row.id)
        if notes:
            call = row.stamp.to_bytes(STAMP_BYTES, "big") + row.id.encode()
            yield row.name, 0, plain("ZSCORE", key["calls"], call)


def _keys(command: RedisCommand[Any]) -> dict[str, str]:
    return dict(zip(SCRIPT_KEYS["schedule"], command.keys, strict=True))


def _is_later(score: Any, after: int) -> bool:
    return isinstance(score, Exception) or float(score or 0) > after


def _raising(steps: LedgerSteps[Any]) -> LedgerSteps[Any]:
    """A call within a recording: the first error among its answers ends it."""
    try:
        asked = next(steps)
        while True:
            result = yield asked
            if not isinstance(asked, Work | Each):
                for error in (each for each in result if isinstance(each, Exception)):
                    raise error
            asked = steps.send(result)
    except StopIteration as done:
        return done.value

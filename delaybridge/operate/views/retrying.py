"""Messages whose last publish failed, read from the store: by destination, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import ORPHANED, Failing, first_word, parse_failing
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, plain

_SAMPLE = 1000  # retried messages that are read of each bucket


class Retrying(NamedTuple):
    """Messages of one destination whose last publish failed for one reason; they are tried again.

    reason: the first word of their error; example: one whole error. since_ms: when the first of
    them failed first, in epoch milliseconds.
    """

    destination: str
    reason: str
    messages: int
    since_ms: int
    example: str


def retrying_of(buckets: Sequence[Bucket]) -> Steps[tuple[list[Retrying], bool]]:
    """Retried messages by destination and reason; and whether this is only a sample."""
    replies = yield Each(_failing(bucket, _SAMPLE) for bucket in buckets)
    answers = [({}, True) if isinstance(reply, StoreError) else reply for reply in replies]
    asked = [(b, found) for b, (found, _) in zip(buckets, answers, strict=True) if found]
    # A worker of an older version leaves the error of a settled message behind.
    tries: list[RedisCommand[Any]] = [plain("HMGET", b.key("attempts"), *ids) for b, ids in asked]
    tried = (yield tries) if tries else []  # None without an entry
    failing = [
        each
        for (_, found), known in zip(asked, tried, strict=True)
        for each, now in zip(found.values(), known, strict=True)
        if now is not None
    ]
    return counted(failing), not all(whole for _, whole in answers)


def _failing(bucket: Bucket, most: int) -> RedisCommand[tuple[dict[bytes, Failing], bool]]:
    """About `most` messages whose last publish failed; and whether these are all of them."""
    asked = (0, "MATCH", "*\0", "COUNT", 2 * most)  # two fields each
    return plain("HSCAN", bucket.key("attempts"), *asked, parse=_read_failing)


def counted(failing: Iterable[Failing]) -> list[Retrying]:
    """Failing messages grouped by destination and reason, the largest group first.

    Without orphans that wait for the operator: these are told as such.
    """
    found: dict[tuple[str, str], Retrying] = {}
    for each in (one for one in failing if first_word(one.error) != ORPHANED):
        group = each.destination, first_word(each.error)
        one = Retrying(*group, 1, each.since_ms, each.error)
        old = found.get(group)
        found[group] = one if old is None else _joined(old, one)
    return sorted(found.values(), key=lambda of: (-of.messages, of.since_ms))


def _joined(a: Retrying, b: Retrying) -> Retrying:
    first = min(a, b, key=lambda of: of.since_ms)
    return first._replace(messages=a.messages + b.messages)


def _read_failing(reply: list[Any]) -> tuple[dict[bytes, Failing], bool]:
    cursor, fields = reply
    texts = zip(fields[::2], fields[1::2], strict=True)
    found = {field[:-1]: parse_failing(text.decode(errors="replace")) for field, text in texts}
    return {id: failing for id, failing in found.items() if failing}, int(cursor) == 0

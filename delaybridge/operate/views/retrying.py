"""Messages whose last publish failed, read from the store: by destination, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delaybridge.errors import StoreError
from delaybridge.store.protocol import replies
from delaybridge.store.protocol.command import Each, RedisCommand, Steps, plain
from delaybridge.store.protocol.record import Failing
from delaybridge.store.protocol.troubles import Retrying, counted
from delaybridge.store.protocol.verbs import Bucket

_SAMPLE = 1000  # retried messages that are read of each bucket


def retrying_of(buckets: Sequence[Bucket]) -> Steps[tuple[list[Retrying], bool]]:
    """Retried messages by destination and reason; and whether this is only a sample."""
    replies = yield Each(_failing(bucket, _SAMPLE) for bucket in buckets)
    answers = [({}, True) if isinstance(reply, StoreError) else reply for reply in replies]
    asked = [(b, found) for b, (found, _) in zip(buckets, answers, strict=True) if found]
    # A worker of an older version leaves the error of a settled message behind.
    tried = (yield [_tried(bucket, found) for bucket, found in asked]) if asked else []
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
    return plain("HSCAN", bucket.key("attempts"), *asked, parse=replies.read_failing)


def _tried(bucket: Bucket, ids: Iterable[bytes]) -> RedisCommand[list[bytes | None]]:
    """The `attempts` entry of each id, None without one."""
    return plain("HMGET", bucket.key("attempts"), *ids)

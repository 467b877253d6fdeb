"""What an earlier owner of a bucket left parked, and where it is bound for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.store.command import RedisCommand
from delaybridge.store.keys import SCRIPT_KEYS
from delaybridge.store.verbs import Bucket

_EACH_BYTES = 2**11  # of records, for each message of the limit: a mebibyte takes five ms


class ParkedSlice(NamedTuple):
    """Parked messages in order: (score, id, destination), and whether there are more.

    The destination is empty if the record cannot be read.
    """

    messages: Sequence[tuple[float, bytes, str]]
    more: bool


def parked(
    bucket: Bucket,
    token: str,
    ttl_ms: int,
    *,
    limit: int,
    after: tuple[float, bytes] | None = None,
) -> RedisCommand[ParkedSlice | None]:
    """Read parked messages in order of (score, id), after one. None if the lease is lost.

    At most `limit`, fewer if they are large, at least one if there is one.
    """
    after_score, after_id = (b"", b"") if after is None else (repr(after[0]), after[1])
    args = (token, ttl_ms, after_score, after_id, limit, limit * _EACH_BYTES)
    keys = tuple(bucket.key(key) for key in SCRIPT_KEYS["parked"])
    return RedisCommand("parked", keys, args, _read)


def _read(reply: list[Any] | None) -> ParkedSlice | None:
    if reply is None:
        return None
    texts, scores = reply[3::3], map(float, reply[2::3])
    names = {text: text.decode(errors="replace") for text in {*texts}}
    found = zip(scores, reply[1::3], [names[text] for text in texts], strict=True)
    return ParkedSlice([*found], reply[0] == 1)

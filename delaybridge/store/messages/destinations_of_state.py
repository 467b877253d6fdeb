"""Where the messages of one state are bound for, without their records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.message import State
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import RedisCommand

_EACH_BYTES = 2**11  # of records, for each message of the limit: a mebibyte takes five ms


class BoundSlice(NamedTuple):
    """Messages in order: (score, id, destination), and whether there are more.

    The destination is empty if the record cannot be read.
    """

    messages: Sequence[tuple[float, bytes, str]]
    more: bool


def bound(
    bucket: Bucket,
    state: State,
    *,
    limit: int,
    after: tuple[float, str | bytes] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> RedisCommand[BoundSlice]:
    """Read messages in one state in order of (score, id), after one. low, high: of the score.

    At most `limit`, fewer if they are large, at least one if there is one.
    """
    page = bucket.page(state, limit=limit, after=after, low=low, high=high,
                       max_bytes=limit * _EACH_BYTES)  # fmt: skip
    return RedisCommand(page.name, page.keys, (*page.args[:-1], 1), _read)


def _read(reply: list[Any]) -> BoundSlice:
    texts, scores = reply[3::3], map(float, reply[2::3])
    names = {text: text.decode(errors="replace") for text in {*texts}}
    found = zip(scores, reply[1::3], [names[text] for text in texts], strict=True)
    return BoundSlice([*found], reply[0] == 1)

"""What an earlier owner of a bucket left parked, and where it is bound for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.message import State
from delaybridge.store.command import RedisCommand
from delaybridge.store.verbs import Bucket

_EACH_BYTES = 2**11  # of records, for each message of the limit: a mebibyte takes five ms


class ParkedSlice(NamedTuple):
    """Parked messages in order: (score, id, destination), and whether there are more.

    The destination is empty if the record cannot be read.
    """

    messages: Sequence[tuple[float, bytes, str]]
    more: bool


def parked(
    bucket: Bucket, *, limit: int, after: tuple[float, bytes] | None = None
) -> RedisCommand[ParkedSlice]:
    """Read parked messages in order of (score, id), after one.

    At most `limit`, fewer if they are large, at least one if there is one.
    """
    page = bucket.page(State.PARKED, limit=limit, after=after, max_bytes=limit * _EACH_BYTES)
    return RedisCommand(page.name, page.keys, (*page.args[:-1], 1), _read)


def _read(reply: list[Any]) -> ParkedSlice:
    texts, scores = reply[3::3], map(float, reply[2::3])
    names = {text: text.decode(errors="replace") for text in {*texts}}
    found = zip(scores, reply[1::3], [names[text] for text in texts], strict=True)
    return ParkedSlice([*found], reply[0] == 1)

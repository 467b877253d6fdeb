"""What a command tells of its messages, for the ledger: read from its arguments.

They are described in lua/, at the head of each script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from delaybridge.ledger.rows import DEAD, DELAYED, LedgerRow, Name
from delaybridge.message import destination_text
from delaybridge.store.command import RedisCommand

STAMP_BYTES = 4
_LOWEST = 255  # priority
_NOW, _ID, _WHEN, _COUNT, _FIRST_ID = 0, 2, 3, 9, 10  # places of arguments


def rows_of(command: RedisCommand[Any], namespace: str) -> Iterator[LedgerRow]:
    """The rows of a command that stores messages."""
    args: Sequence[Any] = command.args
    bucket, now_ms = bucket_in(command, namespace), int(args[_NOW])
    if command.name == "quarantine":
        for at in range(3, len(args), 4):
            stamp, id, payload, reason = args[at : at + 4]
            yield _row(bucket, id, stamp, payload, now_ms, now_ms)._replace(
                state=DEAD, error=reason
            )
        return
    count = int(args[_COUNT])
    ids, entries = args[_FIRST_ID:][:count], args[_FIRST_ID + count :][:count]
    scores = _scores(args[_FIRST_ID + 2 * count :], now_ms)
    for id, entry, score in zip(ids, entries, scores, strict=True):
        yield _row(bucket, id, entry[:STAMP_BYTES], entry[STAMP_BYTES:], score, now_ms)


def _row(
    bucket: int, id: str, stamp: bytes, payload: bytes, score: float, now_ms: int
) -> LedgerRow:
    first_ms = math.floor(score)
    priority = _LOWEST - round(score % 1 * 256)
    return LedgerRow(
        bucket, id, int.from_bytes(stamp, "big"), first_ms, priority, destination_text(payload),
        payload, DELAYED, "", now_ms, now_ms,
    )  # fmt: skip


def _scores(runs: Sequence[Any], now_ms: int) -> Iterator[float]:
    for text, many in zip(runs[::2], runs[1::2], strict=True):
        score = float(text) + (now_ms if str(text).startswith("+") else 0)
        yield from [score] * int(many)


def due_ms(command: RedisCommand[Any]) -> int:
    """The time in epoch milliseconds that `reschedule` names."""
    when = str(command.args[_WHEN])
    return int(when) + (int(command.args[_NOW]) if when.startswith("+") else 0)


def kick_due_ms(command: RedisCommand[Any]) -> int:
    """When a message that `kick` brings back is due, in epoch milliseconds."""
    return int(command.args[_NOW]) + int(command.args[_WHEN])


def named(command: RedisCommand[Any], namespace: str) -> Name:
    """The message that a command by id names."""
    return bucket_in(command, namespace), str(command.args[_ID])


def marks_of(command: RedisCommand[Any]) -> str:
    """The key `marks` of a command's bucket; empty if it does not use it."""
    return next((key for key in command.keys if key.endswith(":marks")), "")


def bucket_in(command: RedisCommand[Any], namespace: str) -> int:
    """The number of the bucket whose keys a command has."""
    tag = command.keys[0][1 : command.keys[0].index("}")]
    return int(tag.removeprefix(f"{namespace}:").partition(".")[0])

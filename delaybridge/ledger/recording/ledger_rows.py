"""What a command tells of its messages, for the ledger: read from its arguments.

They are described in lua/, at the head of each script.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from delaybridge.errors import printable
from delaybridge.ledger.sql.rows import COLD, DEAD, DELAYED, HOT, LedgerRow, Name, noted
from delaybridge.message import ELEVEN_ITEMS, Answer, destination_text
from delaybridge.store.protocol.record import ForDeadSet
from delaybridge.store.protocol.verbs import GATHERED, RedisCommand

STAMP_BYTES = 4
_LOWEST = 255  # priority
_GATHERED = (Answer.CREATED, Answer.REPLACED, Answer.KEPT)
_GATHERING = re.compile(r"[~^]([0-9]+)(?::([0-9]+))?(\.[0-9]+)")  # in place of a score
_DOUBLE = struct.Struct(">d")
_MAYBE_DELIVERED = 3, 6  # policies
# Places of arguments.
_NOW, _POLICY, _ID, _SOURCE, _REACH, _COUNT, _FIRST_ID = 0, 1, 2, 6, 8, 9, 10
_SOURCE_AND_REACH = {"cancel": (3, 6), "reschedule": (6, 8)}
_RECEIPT_OF = {"cancel": (7,), "reschedule": (9,)}


def rows_of(command: RedisCommand[Any], namespace: str, hot_until_ms: int) -> list[LedgerRow]:
    """The rows of a command that stores messages; those due later are cold.

    Not those that were read from a source: only Redis knows which offsets it has had. Nor those
    that replace what the caller has read, if that is still there; nor those of which a copy may
    have been delivered.
    """
    args: Sequence[Any] = command.args
    bucket, now_ms = bucket_in(command, namespace), int(args[_NOW])
    rest = "", now_ms, now_ms
    if command.name == "quarantine":
        return [
            LedgerRow(
                bucket, id, _number(stamp), math.floor(score), _priority(score),
                _destination(payload), payload, DEAD, noted(reason), now_ms, now_ms,
            )
            for stamp, id, payload, reason, at, *_ in buried_in(command)
            for score in [float(at or now_ms + _LOWEST / 256)]
        ]  # fmt: skip
    # Redis alone can decide.
    is_maybe = int(args[_POLICY]) % GATHERED in _MAYBE_DELIVERED
    stays_hot = args[_SOURCE] or args[_REACH] or is_maybe
    count = int(args[_COUNT])
    messages = zip(args[_FIRST_ID:][:count], args[_FIRST_ID + count :][:count], strict=True)
    found: list[LedgerRow] = []
    for score, many, end in _runs(args[_FIRST_ID + 2 * count :], now_ms):
        first_ms, priority = math.floor(score), _priority(score)
        tier = COLD if first_ms > hot_until_ms and not (stays_hot or end) else HOT
        for id, entry in islice(messages, many):
            payload = entry[STAMP_BYTES : len(entry) - len(end)] + end
            found.append(
                LedgerRow(
                    bucket, id, _number(entry[:STAMP_BYTES]), first_ms, priority,
                    _destination(payload), payload, DELAYED, *rest, tier,
                )
            )  # fmt: skip
    return found


def buried_in(command: RedisCommand[Any]) -> list[ForDeadSet]:
    """The messages of a `quarantine`."""
    return [ForDeadSet(*each) for each in zip(*[iter(command.args[3:])] * 8, strict=True)]


def replaced_by(command: RedisCommand[Any], answers: Sequence[Answer]) -> dict[int, int]:
    """The stamps of the dead messages that those of a `quarantine` have replaced, by place."""
    each = enumerate(zip(buried_in(command), answers, strict=False))
    return {i: _number(one.head[8:]) for i, (one, said) in each if said is Answer.REPLACED}


def _priority(score: float) -> int:
    return _LOWEST - round(score % 1 * 256)


def _number(stamp: bytes) -> int:
    return int.from_bytes(stamp, "big")


def _destination(payload: bytes) -> str:
    """A routing key that was refused may hold what a database does not take as text."""
    return printable(destination_text(payload))


def _runs(runs: Sequence[Any], now_ms: int) -> Iterator[tuple[float, int, bytes]]:
    """Score and number of messages of each run, as of the first of their gatherings; how the
    payloads end of those that are debounced."""
    for text, many in zip(map(str, runs[::2]), map(int, runs[1::2]), strict=True):
        if (found := _GATHERING.fullmatch(text)) is None:
            yield float(text) + (now_ms if text.startswith("+") else 0), many, b""
            continue
        quiet, longest, rank = found.groups()
        until = _DOUBLE.pack(now_ms + int(longest)) if longest else b""
        yield now_ms + int(quiet if longest else 0) + float(rank), many, until


def gathered_rows(
    rows: Sequence[LedgerRow], answers: Sequence[tuple[Answer, int]], ends: Sequence[bytes]
) -> Iterator[LedgerRow]:
    """The rows of gathered messages that are due at another time, or end otherwise, in Redis.

    ends: of those that replaced another.
    """
    found = iter(ends)
    for row, (answer, due_ms) in zip(rows, answers, strict=False):
        end = next(found, b"") if answer is Answer.REPLACED else b""
        payload = row.payload[: len(row.payload) - len(end)] + end
        is_changed = (due_ms, payload) != (row.due_ms, row.payload)
        if is_changed and answer in _GATHERED and row.payload[:1] == ELEVEN_ITEMS:
            yield row._replace(due_ms=due_ms, payload=payload)


def named(command: RedisCommand[Any], namespace: str) -> Name:
    """The message that a command by id names."""
    return bucket_in(command, namespace), str(command.args[_ID])


def is_of_source(command: RedisCommand[Any]) -> bool:
    """Whether it was read from a source, or has a reach: Redis alone can decide."""
    return _has(command, _SOURCE_AND_REACH)


def is_of_redis(command: RedisCommand[Any]) -> bool:
    """Whether it is about what Redis has alone: so, or by the receipt of a consumer."""
    return is_of_source(command) or _has(command, _RECEIPT_OF)


def _has(command: RedisCommand[Any], places: Mapping[str, Sequence[int]]) -> bool:
    return any(command.args[place] for place in places.get(command.name, ()))


def marks_of(command: RedisCommand[Any]) -> str:
    """The key `marks` of a command's bucket; empty if it does not use it."""
    return next((key for key in command.keys if key.endswith(":marks")), "")


def bucket_in(command: RedisCommand[Any], namespace: str) -> int:
    """The number of the bucket whose keys a command has."""
    tag = command.keys[0][1 : command.keys[0].index("}")]
    return int(tag.removeprefix(f"{namespace}:").partition(".")[0])

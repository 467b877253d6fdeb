"""The model's numbers as Redis has them, and back."""

from __future__ import annotations

import math
import struct

from delaybridge.message import ELEVEN_ITEMS
from delaybridge.store.protocol.record import parse_tried, split_record
from tests.protocol.bucket import NEVER, Token

START_MS, TICK_MS, TTL_MS = 1_800_000_000_000, 1000, 600_000
LOW = 255 / 256  # of a millisecond: how a message of low priority is ordered
NAMES = ("x", "y")
_HEAD = struct.Struct(">xdI")


def redis_healed(name: int) -> str:
    return f"run:{name}" if name else ""


def healed_of(text: bytes | None) -> int:
    return int((text or b":0").partition(b":")[2])


def ms_of(score: int) -> int:
    return START_MS + score // 2 * TICK_MS


def redis_score(score: int) -> float:
    return ms_of(score) + score % 2 * LOW


def redis_stamp(stamp: int) -> bytes:
    return stamp.to_bytes(4)


def redis_owner(token: Token) -> str:
    return f"worker:{token[0]:016x}"


def redis_token(token: Token) -> str:
    return f"{redis_owner(token)}:{token[1]}"


def token_of(text: bytes) -> Token:
    _, owner, turn = text.decode().split(":")
    return int(owner, 16), int(turn)


def score_of(number: float) -> int:
    """A score. What the model cannot have is a number that no score of it equals."""
    ticks, rest = divmod(number - START_MS, TICK_MS)
    return 2 * int(ticks) + (1 if rest == LOW else 0 if rest == 0 else 10**6)


def maybe_score_of(text: bytes | None) -> int | None:
    return score_of(float(text)) if text else None


def look_of(text: bytes) -> int:
    """Ticks. A look at a message of low priority is rounded up, which to the model is a tick."""
    number = float(text)
    return NEVER if number == 9e15 else math.ceil((number - START_MS) / TICK_MS)


def head_of(record: bytes) -> tuple[int, int, int]:
    """Score, stamp and `until` of a stored record."""
    score, stamp = _HEAD.unpack_from(record)
    if record[13:14] != ELEVEN_ITEMS:
        return score_of(score), stamp, -1
    (until_ms,) = struct.unpack(">d", split_record(record)[1][-8:])
    return score_of(score), stamp, int(until_ms - START_MS) // TICK_MS if until_ms else 0


def tried_of(text: bytes) -> tuple[bool, int]:
    tried = parse_tried(text)
    return tried.maybe_delivered, tried.failures

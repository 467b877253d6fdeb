"""The head of a stored record, and the entries of the `attempts` hash."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from delaybridge.errors import DecodeError

HEAD_SIZE = 13
STAMP = slice(9, HEAD_SIZE)  # of the call that scheduled the message
HEAD_VERSION = 1
BACKDATED = 2  # due before it was accepted: the time of acceptance follows, in eight more bytes
MAX_SCORE = 2**53  # scores below it are exact
ORPHANED = 2**52  # added to the score of a parked orphan: no session brings it back
_VERSIONS = (HEAD_VERSION, BACKDATED)
_HEAD = struct.Struct(">Bd")
_TIME = struct.Struct(">d")
_TRIED = re.compile(rb"([0-9]{1,9}):([01]):([0-9]{0,15})(?::[0-9]{1,16})?")


class Tried(NamedTuple):
    """How often publishing failed.

    due_ms: the due time first asked for, None if neither a back-off nor a spread has moved it yet.
    """

    failures: int = 0
    maybe_delivered: bool = False
    due_ms: int | None = None


UNTRIED = Tried()


class Failing(NamedTuple):
    """The last failed publish of a message that is tried again.

    since_ms: when it failed first, in epoch milliseconds.
    """

    since_ms: int
    destination: str
    error: str


def split_record(record: bytes) -> tuple[float, bytes]:
    """Score and payload of a stored record; DecodeError if the head cannot be read."""
    if len(record) >= HEAD_SIZE:
        version, score = _HEAD.unpack_from(record)
        if version in _VERSIONS and not 0 <= score < MAX_SCORE:
            raise DecodeError("undecodable", "record", "the head has no due time")
        if version == HEAD_VERSION:
            return score, record[HEAD_SIZE:]
        if version == BACKDATED:
            return score, record[HEAD_SIZE:-8]
    raise DecodeError("undecodable", "record", "the head has another format version")


def joined_record(score: float, stamp: int, payload: bytes) -> bytes:
    """A record as it is stored: what `split_record` takes apart."""
    return _HEAD.pack(HEAD_VERSION, score) + stamp.to_bytes(HEAD_SIZE - _HEAD.size) + payload


def since_ms(record: bytes) -> int:
    """The time a record is late from: its due time, or when it was accepted if that is later.

    DecodeError if the head cannot be read.
    """
    score, _ = split_record(record)
    if record[0] != BACKDATED or len(record) < HEAD_SIZE + _TIME.size:
        return int(score)
    accepted_ms: float = _TIME.unpack_from(record, len(record) - _TIME.size)[0]
    return int(accepted_ms) if score < accepted_ms < MAX_SCORE else int(score)


def score_of(record: bytes) -> float:
    """The score in a record's head, unchecked; 0 if the record is too short to have one."""
    return float(_HEAD.unpack_from(record)[1]) if len(record) >= _HEAD.size else 0.0


def due_score(score: float) -> float:
    """The score of a parked message without what keeps an orphan parked."""
    return score - ORPHANED if score >= ORPHANED else score


def parse_tried(text: bytes) -> Tried:
    """An entry of the `attempts` hash. If unreadable, it counts as "may have been delivered"."""
    if not text:
        return UNTRIED
    found = _TRIED.fullmatch(text)
    if found is None:
        return Tried(0, True, None)
    count, maybe, due_ms = found.groups()
    return Tried(int(count), maybe == b"1", int(due_ms) if due_ms else None)


def parse_failing(text: str) -> Failing | None:
    """The last error in the `attempts` hash (time, destination, error); None if unreadable."""
    since_ms, _, rest = text.partition("\n")
    destination, _, error = rest.partition("\n")
    return Failing(int(since_ms), destination, error) if since_ms.isdecimal() else None

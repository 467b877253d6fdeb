"""What left a bucket, and what it lacks, by the ledger: the commands that keep both in agreement.

docs/ledger.md has the rule: what was read of the ledger may be restored only as long as `gone` has
all that left the bucket since. tests/protocol explores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from delaybridge.errors import StoreWiped, text_of
from delaybridge.message import State
from delaybridge.store.namespace.marks import turn_of
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import Arg, RedisCommand, as_received, plain

_STAMP_BYTES = 4
_EACH_BYTES = 2**11  # of records, for each message of the limit: a mebibyte takes five ms
_HOWS = {1: "published", 2: "cancelled"}


class Sealed(NamedTuple):
    """What left a bucket so far. generation: sealed with this call; entries: kept at all.

    healed: the run of the server under which the bucket was compared with the ledger as a whole, a
    colon and that comparison's own name; after a question mark while it is under way.
    """

    generation: int
    entries: int
    healed: str

    def is_healed_under(self, run: str) -> bool:
        """Whether the bucket was compared under this run of the server."""
        return _is_under(self.healed, run)


class Left(NamedTuple):
    """A message that left. stamp: of the call that scheduled it. state: the ledger's."""

    id: str
    stamp: bytes
    state: str


class Standing(NamedTuple):
    """How far a bucket is, as read before the ledger is; empty where it has no ledger yet.

    beside: the last comparison of a bucket that takes its messages.
    """

    generation: str = ""
    healed: str = ""
    beside: str = ""

    def is_healed_under(self, run: str) -> bool:
        """Whether the bucket was compared as a whole under this run of the server."""
        return _is_under(self.healed, run)

    def is_healed_since(self, run: str, turn: int) -> bool:
        """Whether the bucket was compared under this run, by a session that began after a turn."""
        return _is_under(self.healed, run) and turn_of(self.healed) > turn


class Presence(IntEnum):
    """Where a message of the ledger is. ABSENT: it was not here; restored, if that was asked.

    ELSEWHERE: the bucket gives its messages to others, which are to be asked (`along`).
    """

    ABSENT, HERE, OTHER, LEFT, ELSEWHERE = range(5)


class Lacking(NamedTuple):
    """A message of the ledger. payload: empty, if it is only looked for. reason: why it is dead."""

    id: str
    stamp: bytes
    score: float
    payload: bytes = b""
    reason: str = ""


class StoredCall(NamedTuple):
    """A message in Redis. stamp: of the call that scheduled it. tried: its attempts, or empty."""

    id: str
    score: float
    stamp: bytes
    tried: bytes


def seal(
    bucket: Bucket, owner: tuple[str, int], *, known: int | None = None, healed: str = ""
) -> RedisCommand[Sealed | None]:
    """Seal what left the bucket so far; forget what the ledger knew at the last seal but one.

    owner: token and ttl of the lease. known: the ledger has everything up to this generation.
    healed: as in `Sealed`, if it has changed.
    """
    args: list[Arg] = [*owner, "" if known is None else known, healed]
    return bucket.call("seal", args, _read_sealed)


def left(
    bucket: Bucket, known: int, sealed: int, first: int, limit: int
) -> RedisCommand[list[Left]]:
    """What left after generation `known` and up to `sealed`: some of them, beginning at `first`."""
    span = (known + 1, f"({sealed + 1}")
    words = (bucket.key("gone"), *span, "WITHSCORES", "LIMIT", first, limit)
    return plain("ZRANGEBYSCORE", *words, parse=_read_left)


def standing(bucket: Bucket) -> RedisCommand[Standing]:
    """To be read before the ledger is, and then passed to `restore`."""
    return standing_at(bucket.key("marks"))


def standing_at(marks: str) -> RedisCommand[Standing]:
    """The same of the bucket with this key `marks`."""
    return plain("HMGET", marks, *Standing._fields, parse=_read_standing)


def note_beside(source: Bucket, comparison: str) -> RedisCommand[int]:
    """Note at a bucket that one which takes its messages is being compared."""
    return plain("HSET", source.key("marks"), "beside", comparison, parse=int)


def restore(
    bucket: Bucket, as_of: Standing, messages: Iterable[Lacking], *, now_ms: int | None = None
) -> RedisCommand[list[Presence] | None]:
    """Bring messages of the ledger back that the bucket lacks, unless they left it.

    as_of: read before the ledger was. Answers None if the ledger has to be read again; StoreWiped
    if the namespace was made again with another birth id.
    """
    now: Arg = "" if now_ms is None else now_ms
    args: list[Arg] = [bucket.birth, *as_of[:2], bucket.wake, bucket.number, now]
    for each in messages:
        args += (each.id, each.stamp, repr(each.score), each.payload, each.reason)
    return bucket.call("restore", args, _read_presence)


def stored_calls(
    bucket: Bucket, state: State, *, limit: int, after: tuple[float, str] | None
) -> RedisCommand[tuple[list[StoredCall], bool]]:
    """Messages in one state in order of (score, id), after one; and whether there are more."""
    page = bucket.page(state, limit=limit, after=after, max_bytes=limit * _EACH_BYTES)
    return RedisCommand(page.name, page.keys, (*page.args[:-1], 2), _read_calls)


def drop(
    bucket: Bucket, owner: tuple[str, int], names: Iterable[tuple[str, bytes]]
) -> RedisCommand[int | None]:
    """Drop messages that have ended by the ledger: (id, stamp of the call that scheduled it)."""
    args: list[Arg] = [*owner]
    for name in names:
        args += name
    return bucket.call("drop", args, as_received)


def _read_sealed(reply: Sequence[int | bytes] | None) -> Sealed | None:
    if reply is None:
        return None
    generation, entries, healed = reply
    return Sealed(int(generation), int(entries), text_of(healed))


def _read_left(reply: Sequence[bytes]) -> list[Left]:
    found = zip(reply[::2], reply[1::2], strict=True)
    return [
        Left(text_of(member[_STAMP_BYTES:]), member[:_STAMP_BYTES], _how(float(score)))
        for member, score in found
    ]


def _how(score: float) -> str:
    return _HOWS.get(round(score % 1 * 256), "cancelled")


def _read_standing(reply: Sequence[bytes | None]) -> Standing:
    return Standing(*(text_of(value or b"") for value in reply))


def _read_calls(reply: Sequence[Any]) -> tuple[list[StoredCall], bool]:
    found = zip(reply[1::3], map(float, reply[2::3]), reply[3::3], strict=True)
    calls = [
        StoredCall(text_of(id), score, word[:_STAMP_BYTES], word[_STAMP_BYTES:])
        for id, score, word in found
    ]
    return calls, reply[0] == 1


def _read_presence(reply: Sequence[int]) -> list[Presence] | None:
    if [*reply[:1]] == [-1]:
        raise StoreWiped
    return None if [*reply[:1]] == [-2] else [*map(Presence, reply)]


def _is_under(healed: str, run: str) -> bool:
    return bool(run) and healed.partition(":")[0] == run

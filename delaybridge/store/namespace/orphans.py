"""Orphans: records that are in none of a bucket's sets, since a key has vanished or came back old.

The bucket's owner counts what each key says (`count`). If they contradict one another, it walks
through the bucket before it claims (`mend`), page by page. What was mended is told in `marks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import ORPHAN_SCORE
from delaybridge.store.protocol.verbs import Arg, RedisCommand, plain

WALKED = ("messages", "due", "parked", "dead", "dead_reason")
"""The keys that a walk goes through, in this order: until an orphan is dead its reason stays."""
PAGE = 200  # entries at most; records of 1 KB take about two milliseconds of Redis
_FEW = 10  # entries of the first page of a key: their size is not known yet
_PAGE_BYTES = 2**20


class KeySizes(NamedTuple):
    """How many entries each key has. bare: entries of `dead` without a record.

    suspect: 1 if they did not add up, or a look found a contradiction, and no walk was made since.
    """

    messages: int = 0
    due: int = 0
    mirror: int = 0
    parked: int = 0
    dead: int = 0
    reasons: int = 0
    bare: int = 0
    suspect: int = 0

    @property
    def listed(self) -> int:
        """The messages that the sets list."""
        return self.due + self.mirror + self.parked + self.dead - self.bare

    @property
    def difference(self) -> tuple[int, int, int]:
        """Records in no set, reasons of no dead message, suspect; all 0: nothing is wrong."""
        return self.messages - self.listed, self.reasons - self.dead, self.suspect

    def pages(self, limit: int = PAGE) -> int:
        """How many pages a walk has, about. limit: entries of a page."""
        walked = (self.messages, self.due, self.parked, self.dead, self.reasons)
        return sum(1 + size // limit for size in walked)

    def __str__(self) -> str:
        told = f"{self.messages} records, {self.listed} in the sets"
        if self.reasons != self.dead:
            told += f"; {self.dead} dead, {self.reasons} reasons"
        return told


SOUND = KeySizes().difference


class WalkPlace(NamedTuple):
    """Where a walk is. of: one of WALKED. limit: entries of the next page, about."""

    of: str
    cursor: bytes = b"0"
    limit: int = _FEW

    def after(self, page: WalkedPage) -> WalkPlace | None:
        """The place of the next page; None after the last. page: the last one.

        Its size is judged, not its time, which also tells of others that use Redis.
        """
        if page.cursor != b"0":
            fitting = self.limit * _PAGE_BYTES // max(1, page.size)
            return WalkPlace(self.of, page.cursor, max(1, min(fitting, 2 * self.limit, PAGE)))
        following = WALKED[WALKED.index(self.of) + 1 :]
        return WalkPlace(following[0]) if following else None


FIRST = WalkPlace(WALKED[0])


class Mended(NamedTuple):
    """What became of what was found. due, dead, parked: orphans that were put there.

    bare: entries without a record, now dead as `payload_missing`. other: entries in a second set or
    with another score, reasons without a message, dead messages without a reason.
    """

    due: int = 0
    dead: int = 0
    parked: int = 0
    bare: int = 0
    other: int = 0

    def plus(self, more: Mended) -> Mended:
        """What both have mended together."""
        return Mended(*(a + b for a, b in zip(self, more, strict=True)))


class WalkedPage(NamedTuple):
    """The answer to `mend`. found: contradictions; overdue: orphans overdue by over an hour.

    size: bytes that were read. unoffered: destinations of pull topics with a parked message that is
    not in `ready`, and the lowest score of these.
    """

    cursor: bytes
    found: int
    overdue: int
    mended: Mended
    size: int
    unoffered: tuple[tuple[str, float], ...] = ()


def count(bucket: Bucket, owner: tuple[str, int]) -> RedisCommand[KeySizes | None]:
    """Count what each key of the bucket says. owner: token and ttl of the lease."""
    return bucket.call("count", owner, _read_counts)


def mend(
    bucket: Bucket,
    owner: tuple[str, int],
    place: WalkPlace,
    how: str = "look",
    *,
    now_ms: int | None = None,
) -> RedisCommand[WalkedPage | None]:
    """Look at a page of the bucket. how: `look`, `mend`, or `hold`: park what is long overdue.

    Nothing is mended once the session has claimed something: the lease then counts as lost.
    """
    now: Arg = "" if now_ms is None else now_ms
    args = (*owner, now, *place, how)
    return bucket.call("mend", args, _read_page)


def waiting(bucket: Bucket) -> RedisCommand[int]:
    """How many parked orphans wait for an operator."""
    return plain("ZCOUNT", bucket.key("parked"), ORPHAN_SCORE, "+inf", parse=int)


def _read_counts(reply: Sequence[int] | None) -> KeySizes | None:
    return None if reply is None else KeySizes(*reply)


def _read_page(reply: Sequence[Any] | None) -> WalkedPage | None:
    if reply is None:
        return None
    cursor, found, overdue, *mended, size = reply[: 4 + len(Mended._fields)]
    pull = reply[4 + len(mended) :]
    names = (text.decode(errors="replace") for text in pull[::2])
    unoffered = zip(names, map(float, pull[1::2]), strict=True)
    return WalkedPage(cursor, found, overdue, Mended(*mended), size, tuple(unoffered))

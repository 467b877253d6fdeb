"""The audit: who did what over HTTP that cannot be undone, as two streams of bounded length.

Acts of administrators have one of their own: whoever may only write can fill the other, but can
push none of theirs out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import RedisCommand, plain

KEPT = 10_000  # records of each stream, approximately
_PLACE = re.compile(r"([1-9][0-9]{0,18})-([0-9]{1,19})(\.others)?")


class Position(NamedTuple):
    """Where a record is among all, in their order; of two at once, that of others is the older.

    ms: the time on Redis' clock. of_admin: whether it is in the stream of administrators.
    """

    ms: int
    number: int
    of_admin: bool

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}{'' if self.of_admin else '.others'}"

    @classmethod
    def read(cls, text: str) -> Position | None:
        """The place that is written so; None if none is."""
        found = _PLACE.fullmatch(text)
        return found and cls(int(found[1]), int(found[2]), found[3] is None)


Record = tuple[Position, dict[str, str]]


def write(namespace: str, record: Mapping[str, str], *, of_admin: bool) -> RedisCommand[str]:
    """Add a record; its place, as text."""
    words = [word for pair in record.items() for word in pair]
    key = _key(namespace, of_admin=of_admin)

    def placed(reply: bytes) -> str:
        return str(_place(reply, of_admin=of_admin))

    return plain("XADD", key, "MAXLEN", "~", KEPT, "*", *words, parse=placed)


def read(namespace: str, before: Position | None, most: int) -> list[RedisCommand[list[Record]]]:
    """The latest records of each stream, of which `latest` makes one list.

    before: a place; None: from the end.
    """
    return [_read(namespace, before, most, of_admin=of_admin) for of_admin in (True, False)]


def latest(found: Iterable[list[Record]], most: int) -> list[Record]:
    """The latest records of both streams, the latest first."""
    both = chain.from_iterable(found)
    return sorted(both, key=lambda record: record[0], reverse=True)[:most]


def _read(
    namespace: str, before: Position | None, most: int, *, of_admin: bool
) -> RedisCommand[list[Record]]:
    last = "+"
    if before is not None:
        is_before = (of_admin, before.of_admin) == (False, True)  # one of the same time, too
        last = f"{'' if is_before else '('}{before.ms}-{before.number}"

    def parse(reply: Any) -> list[Record]:
        return [(_place(id, of_admin=of_admin), dict(_pairs(words))) for id, words in reply]

    key = _key(namespace, of_admin=of_admin)
    return plain("XREVRANGE", key, last, "-", "COUNT", most, parse=parse)


def _key(namespace: str, *, of_admin: bool) -> str:
    return keys.audit(namespace) if of_admin else keys.audit_others(namespace)


def _place(id: bytes, *, of_admin: bool) -> Position:
    ms, _, number = id.partition(b"-")
    return Position(int(ms), int(number), of_admin)


def _pairs(words: list[bytes]) -> Iterator[tuple[str, str]]:
    texts = [word.decode("utf-8", "replace") for word in words]
    return zip(texts[::2], texts[1::2], strict=True)

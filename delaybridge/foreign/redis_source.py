"""Entries of a system that keeps them in Redis: its sorted sets, lists and hashes, page by page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from delaybridge.carry.line import BadLine, Line
from delaybridge.foreign.source import Source, failures, place_of
from delaybridge.store.redis.redis_client import connect

TIMEOUT_S = 15.0
_PAGE = 100  # entries in memory at a time: some systems allow bodies of megabytes
Lines = Iterator[Line | BadLine | None]
"""None stands for what is not wanted."""
Member = tuple[bytes, Any]
"""A member of a sorted set with its score, a value of a hash with its field, one of a list."""


class RedisSource(Source):
    """A system in one Redis."""

    def __init__(self, url: str, *given: Any) -> None:
        super().__init__(url, *given)
        self.redis: Any = connect(Redis.from_url, url, TIMEOUT_S)
        self.gone: Counter[bytes] = Counter()  # removed from each list

    def keys(self) -> Iterator[tuple[bytes, str]]:
        """The keys to read, each with its queue; without one, all queues are in it."""
        raise NotImplementedError

    def page(self, key: bytes, queue: str, members: list[Member]) -> Lines:
        """The lines of some members, in one round trip at most."""
        raise NotImplementedError

    def lines(self) -> Iterator[Line | BadLine]:
        """As of every source. Of what others move meanwhile some is missed, or found twice."""
        with failures(RedisError):
            for key, queue in self.keys():
                try:
                    members = self._members(key)
                    while some := list(islice(members, _PAGE)):
                        yield from filter(None, self.page(key, queue, some))
                except ResponseError as exc:
                    yield BadLine(place_of(key), "key", str(exc))

    def _members(self, key: bytes) -> Iterator[Member]:
        kind, taken = self.redis.type(key), 0
        if kind == b"hash":
            yield from ((value, field) for field, value in self.redis.hscan_iter(key, count=_PAGE))
        elif kind == b"list":  # from the end, where the oldest are, and from where some are removed
            while some := self.redis.lrange(key, (end := self.gone[key] - taken) - _PAGE, end - 1):
                taken += len(some)
                yield from ((each, None) for each in reversed(some))
        else:
            while some := self.redis.zrange(key, taken, taken + _PAGE - 1, withscores=True):
                taken += len(some)
                yield from some

    def hashes(self, base: bytes, members: list[Member], fields: Sequence[str]) -> list[Any]:
        """These fields of the hash of each member; an error if that is of another type."""
        pipeline = self.redis.pipeline(transaction=False)
        for id, _ in members:
            pipeline.hmget(base + id, fields)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def close(self) -> None:
        """Close the connections to its Redis."""
        self.redis.close()

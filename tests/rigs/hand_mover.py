"""Moves messages to other buckets by hand, one script at a time."""

from __future__ import annotations

from typing import Any, TypeVar

from delaybridge.client import Client
from delaybridge.resize import resizing
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.moves import EMPTY, Lifted, MovedPage
from delaybridge.store.protocol.verbs import RedisCommand, Steps

T = TypeVar("T")


class HandMover:
    """What a worker's mover does, at the test's pace: no lease is held, nothing is due soon."""

    def __init__(self, client: Client, count: int, *, limit: int = 200) -> None:
        """count: of buckets. limit: messages of a page."""
        self.client, self.limit = client, limit
        self.layout = client.run(lambda calls: resizing.begin(calls, count))
        self.following = client._calls.following

    @property
    def sources(self) -> list[int]:
        return [*self.layout.here.numbers]

    def bucket(self, number: int) -> Bucket:
        return self.following.bucket(number)

    def run(self, command: RedisCommand[T]) -> T:
        def one(_: object) -> Steps[Any]:
            return (yield [command])[0]

        return self.client.run(one)

    def begin(self, number: int) -> bool:
        return self.run(moves.begin(self.bucket(number)))

    def lift(self, number: int, landed: bytes = b"", *back: bytes, **fields: Any) -> Lifted:
        """The next page. fields: of `moves.lift`."""
        stamp = moves.new_page()
        fields = {"limit": self.limit, "max_bytes": 2**20, "near_ms": 0, "back": back} | fields
        found = self.run(moves.lift(self.bucket(number), landed, stamp, **fields))
        assert found is not None
        return found

    def land(self, number: int, page: MovedPage) -> list[bytes]:
        """Land a page; the ids that were refused."""
        refused = self.client.run(lambda _: self.following.land(self.bucket(number), page))
        return [id for ids in refused.values() for id in ids]

    def put_back(self, number: int, page: MovedPage, ids: list[bytes]) -> None:
        entries = [each for each in page.entries if each.id in ids]
        self.run(moves.land_back(self.bucket(number), page, entries))

    def empty(self, number: int) -> None:
        """Begin with a bucket if need be, move all that it has, and delete what is left."""
        assert self.begin(number)
        landed = b""
        for _ in range(1000):
            found = self.lift(number, landed)
            landed = b""
            if found.page is not None:
                assert self.land(number, found.page) == []
                landed = found.page.stamp
            elif found.phase == EMPTY:
                assert self.run(moves.retire(self.bucket(number)))
                return
        raise AssertionError("it has something left")

    def finish(self) -> None:
        """The next buckets are all there are."""
        self.client.run(lambda _: self.following.look_at(self.sources))
        assert all(map(self.following.is_retired, self.sources))
        namespace, after = self.client._calls.namespace, self.layout.moved()
        change = registry.relayout(namespace, self.layout, after, self.following.birth)
        assert self.run(change)

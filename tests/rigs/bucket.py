"""One bucket on a real Redis, driven by tests one call at a time, with the time passed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self, TypeVar

import redis

from delaybridge.accept.accept import Accepted
from delaybridge.message import Answer, ConflictPolicy, OnConflict, rank_of
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.record import split_record
from delaybridge.store.protocol.replies import Claim, Fired
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import Store

T = TypeVar("T")
State = dict[str, Any]

TTL_MS = 600_000
BIRTH = "0123456789abcdef"
NUMBER = 3
ERROR = "kafka:orders\nrefused: by a test"
HASHES = ("messages", "attempts", "dead_reason", "marks", "sources")


class World(AbstractContextManager):
    """A bucket and its connection. Stamps are counted, so two worlds used alike end alike."""

    def __init__(
        self, url: str, namespace: str, now_ms: int, *, number: int = NUMBER, birth: str = BIRTH
    ) -> None:
        self.url, self.store = url, Store(url)
        self.namespace, self.number = namespace, number
        self.bucket = Bucket(namespace, number, birth)
        self.now_ms = now_ms
        self._stamps = 0
        self._owners = 0

    @classmethod
    def of_key(cls, store: Store, url: str, namespace: str, key: bytes) -> Self:
        """The bucket of a key in a namespace that clients use, too, at Redis' time."""
        birth, now_us = store.run([registry.read_birth(namespace), registry.store_time()])
        number = verbs.bucket_of(key, birth[0])
        return cls(url, namespace, now_us // 1000, number=number, birth=birth[1])

    def __exit__(self, *exc: object) -> None:
        self.redis.delete(*(self.key(name) for name in keys.BUCKET_KEYS))
        self.store.close()

    @property
    def redis(self) -> redis.Redis:
        """A connection to the server that has this bucket."""
        servers = self.store._servers
        return redis.Redis(
            connection_pool=servers.wire_at(self.store.node_of(self.key("messages"))).pool
        )

    def key(self, name: str) -> str:
        return keys.bucket_key(self.namespace, self.number, name)

    def run(self, command: RedisCommand[T]) -> T:
        (answer,) = self.store.run([command])
        return answer

    def stamp(self) -> bytes:
        self._stamps += 1
        return self._stamps.to_bytes(4)

    # sent by clients

    def scheduling(
        self,
        id: str,
        due_ms: int,
        *,
        priority: int = 0,
        payload: bytes = b"payload",
        policy: ConflictPolicy = OnConflict.FAIL,
        **fields: Any,
    ) -> RedisCommand[list[tuple[Answer, int]] | None]:
        accepted = Accepted(id, id.encode(), str(due_ms), rank_of(priority), payload)
        return self.scheduling_all([accepted], policy, **fields)

    def scheduling_all(
        self, messages: Iterable[Accepted], policy: ConflictPolicy = OnConflict.FAIL, **fields: Any
    ) -> RedisCommand[list[tuple[Answer, int]] | None]:
        """All in one call."""
        stamped = [(self.stamp(), message) for message in messages]
        fields = {"first": True, "now_ms": self.now_ms} | fields
        return self.bucket.schedule(stamped, policy, **fields)

    def quarantining(self, *ids: str, reason: str = "ingress: why") -> RedisCommand[Any]:
        kept = [(self.stamp(), id, b"payload", reason) for id in ids]
        return self.bucket.quarantine(kept, first=True, now_ms=self.now_ms)

    def canceling(
        self, id: str, source: str = "", offset: int = 0, **fields: Any
    ) -> RedisCommand[Answer]:
        return self.bucket.cancel(
            self.stamp(), id, source=source, offset=offset, now_ms=self.now_ms, **fields
        )

    def rescheduling(
        self, id: str, due_ms: int, source: str = "", offset: int = 0, **fields: Any
    ) -> RedisCommand[Answer]:
        return self.bucket.reschedule(
            *(self.stamp(), id, str(due_ms)),
            source=source,
            offset=offset,
            now_ms=self.now_ms,
            **fields,
        )

    def kicking(self, id: str) -> RedisCommand[Answer]:
        return self.bucket.kick(self.stamp(), id, now_ms=self.now_ms)

    def discarding(self, id: str) -> RedisCommand[Answer]:
        return self.bucket.discard(self.stamp(), id, now_ms=self.now_ms)

    def schedule(self, id: str, due_ms: int, **fields: Any) -> Answer:
        answers = self.run(self.scheduling(id, due_ms, **fields))
        assert answers is not None
        return answers[0][0]

    def replace(self, id: str, due_ms: int, payload: bytes = b"other") -> Answer:
        return self.schedule(id, due_ms, payload=payload, policy=OnConflict.REPLACE)

    def cancel(self, id: str) -> Answer:
        return self.run(self.canceling(id))

    def reschedule(self, id: str, due_ms: int) -> Answer:
        return self.run(self.rescheduling(id, due_ms))

    def kick(self, id: str) -> Answer:
        return self.run(self.kicking(id))

    def discard(self, id: str) -> Answer:
        return self.run(self.discarding(id))

    # owners

    def owner(self, name: str = "worker", *, dedup_ms: int = 0) -> Owner:
        """A new owner of the lease, which must be free."""
        self._owners += 1
        who = f"{name}:{self._owners:016x}"
        acquired = self.run(self.bucket.acquire(who, TTL_MS, dedup_ms=dedup_ms))
        assert acquired.token is not None, "the lease is held"
        return Owner(self, acquired.token, acquired.turn)

    def successor(self) -> Owner:
        """The next owner, after the lease expired; it has reclaimed everything."""
        self.end_lease()
        owner = self.owner()
        owner.reclaim()
        return owner

    def claimed(self, *ids: str, due_ms: int | None = None) -> tuple[Owner, list[Copy]]:
        """Messages that are due now, or then, on the wheel of a new owner."""
        for id in ids:
            self.schedule(id, self.now_ms if due_ms is None else due_ms)
        owner = self.owner()
        return owner, owner.claim()

    def fired(self, *ids: str, due_ms: int | None = None) -> tuple[Owner, list[Copy]]:
        """The same, handed to the broker."""
        owner, _ = self.claimed(*ids, due_ms=due_ms)
        return owner, owner.fire((self.now_ms if due_ms is None else due_ms) + 0.999)

    def end_lease(self) -> None:
        self.redis.delete(self.key("lease"))

    # the content of the store

    def state(self) -> State:
        """Everything in the bucket, by key; without keys that do not exist."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for name in keys.BUCKET_KEYS:
                if name in HASHES:
                    pipeline.hgetall(self.key(name))
                elif name == "lease":
                    pipeline.get(self.key(name))
                else:
                    pipeline.zrange(self.key(name), 0, -1, withscores=True)
            found = dict(zip(keys.BUCKET_KEYS, pipeline.execute(), strict=True))
        return {
            name: dict(content) if isinstance(content, list) else content
            for name, content in found.items()
            if content
        }

    def place(self, id: str) -> str | None:
        """The one set that a message is in, None if there is none."""
        raw = id.encode()
        places = ("due", "mirror", "parked", "dead")
        found = [place for place in places if self.redis.zscore(self.key(place), raw) is not None]
        assert len(found) == self.redis.hexists(self.key("messages"), raw)
        return found[0] if found else None

    def score(self, id: str) -> float | None:
        score: float | None = self.redis.zscore(self.key("due"), id)
        return score

    def tried(self, id: str) -> str | None:
        """The entry of `attempts` for a message."""
        found: bytes | None = self.redis.hget(self.key("attempts"), id)
        return None if found is None else found.decode()


class Copy(NamedTuple):
    """A claimed message on an owner's wheel."""

    id: str
    claim: int
    score: float

    @property
    def item(self) -> Item:
        return Item(*self)


class Firing(NamedTuple):
    """A fire as it was sent."""

    command: RedisCommand[Fired | None]
    watermark: float
    last_claim: int


class Owner:
    """One session of one worker, which behaves as an owner must (docs/internals.md)."""

    def __init__(self, world: World, token: str, turn: int) -> None:
        self.world, self.token, self.turn = world, token, turn
        self.last_claim = turn
        self.last_revocation = 0
        self.watermark = -1.0
        self.wheel: list[Copy] = []

    @property
    def bucket(self) -> Bucket:
        return self.world.bucket

    # claim

    def claiming(
        self, *, ahead_ms: int = 10_000, limit: int = 100, max_bytes: int = 10**6, **fields: Any
    ) -> RedisCommand[Claim | None]:
        """A claim to be sent, perhaps more than once."""
        return self.bucket.claim(
            *(self.token, TTL_MS, self.last_claim),
            ahead_ms=ahead_ms,
            limit=limit,
            max_bytes=max_bytes,
            now_ms=self.world.now_ms,
            **fields,
        )

    def received(self, claimed: Claim | None) -> list[Copy]:
        """Take the answer to a claim."""
        assert claimed is not None
        self.last_claim = claimed.number
        records = zip(claimed.ids, claimed.records, strict=True)
        copies = [Copy(i.decode(), claimed.number, split_record(r)[0]) for i, r in records]
        self.wheel += copies
        return copies

    def claim(self, **fields: Any) -> list[Copy]:
        return self.received(self.world.run(self.claiming(**fields)))

    # fire

    def firing(self, up_to: float) -> Firing:
        """A fire to be sent; its watermark is never below the one before."""
        self.watermark = max(self.watermark, up_to)
        owner, now_ms = (self.token, TTL_MS), self.world.now_ms
        fire = self.bucket.fire(
            *owner, self.watermark, self.last_claim, self.last_revocation, now_ms=now_ms
        )
        return Firing(fire, self.watermark, self.last_claim)

    def publishes(self, firing: Firing, fired: Fired | None) -> list[Copy]:
        """Take the answer to a fire; returns the copies that go to the broker now."""
        assert fired is not None
        turns = {id.decode(): turn for id, turn in fired.revoked.items()}
        if turns and self.last_claim >= fired.claimed:
            self.last_revocation = max(self.last_revocation, *turns.values())
        self.wheel = [c for c in self.wheel if c.claim > turns.get(c.id, -1)]
        out = [
            c for c in self.wheel if c.score <= firing.watermark and c.claim <= firing.last_claim
        ]
        self.wheel = [c for c in self.wheel if c not in out]
        return out

    def fire(self, up_to: float) -> list[Copy]:
        firing = self.firing(up_to)
        return self.publishes(firing, self.world.run(firing.command))

    # exits

    def settling(self, *copies: Copy) -> RedisCommand[Any]:
        return self.bucket.settle(self.token, TTL_MS, grouped(copies), now_ms=self.world.now_ms)

    def settling_once(self, *copies: Copy) -> RedisCommand[Any]:
        return self.bucket.settle_once(
            self.token, TTL_MS, grouped(copies), now_ms=self.world.now_ms
        )

    def retrying(
        self, *copies: Copy, delay_ms: int | None = None, maybe: bool = False
    ) -> RedisCommand[Any]:
        items = [(copy.item, delay_ms, maybe, ERROR) for copy in copies]
        return self.bucket.retry(self.token, TTL_MS, items, now_ms=self.world.now_ms)

    def deferring(self, *copies: Copy, by_ms: int = 500) -> RedisCommand[Any]:
        items = [(copy.item, copy.score + by_ms) for copy in copies]
        return self.bucket.defer(self.token, TTL_MS, items)

    def burying(
        self, *copies: Copy, counted: bool = True, maybe: bool = False
    ) -> RedisCommand[Any]:
        items = [(copy.item, counted, maybe, "refused: by a test") for copy in copies]
        return self.bucket.bury(self.token, TTL_MS, items, now_ms=self.world.now_ms)

    def parking(self, *copies: Copy) -> RedisCommand[Any]:
        return self.bucket.park(self.token, TTL_MS, [copy.item for copy in copies])

    def unparking(self, *, limit: int = 100, ids: Sequence[str] = ()) -> RedisCommand[Any]:
        return self.bucket.unpark(self.token, TTL_MS, limit=limit, ids=ids)

    def reclaiming(self, *, limit: int = 100) -> RedisCommand[Any]:
        return self.bucket.reclaim(self.token, TTL_MS, limit, now_ms=self.world.now_ms)

    def settle(self, *copies: Copy) -> None:
        self._end(self.settling(*copies), copies)

    def retry(self, *copies: Copy, delay_ms: int | None = None, maybe: bool = False) -> None:
        self._end(self.retrying(*copies, delay_ms=delay_ms, maybe=maybe), copies)

    def bury(self, *copies: Copy, counted: bool = True, maybe: bool = False) -> None:
        self._end(self.burying(*copies, counted=counted, maybe=maybe), copies)

    def park(self, *copies: Copy) -> None:
        self._end(self.parking(*copies), copies)

    def _end(self, command: RedisCommand[Any], copies: Iterable[Copy]) -> None:
        assert self.world.run(command) is not None, "the lease is lost"
        self.wheel = [copy for copy in self.wheel if copy not in copies]

    def reclaim(self) -> None:
        while self.world.run(self.reclaiming()).left:
            pass


def grouped(copies: Iterable[Copy]) -> list[tuple[int, list[str]]]:
    """Copies in the form that `settle` takes: (claim number, ids)."""
    groups: dict[int, list[str]] = {}
    for copy in copies:
        groups.setdefault(copy.claim, []).append(copy.id)
    return list(groups.items())

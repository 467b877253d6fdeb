"""A dry run of a verb with ids: what it would answer for each now, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any

import pytest

from delaybridge import Client
from delaybridge.client.surface import TABLE
from delaybridge.errors import DelayOutOfRange
from delaybridge.store.protocol.ids import quarantine_ids
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import TTL_MS, Owner, State, World

HOUR_MS = 3_600_000
BROKERS = {"memory": "memory://"}
UNDECODABLE = "undecodable: not MessagePack"
VERBS: dict[str, Callable[..., Any]] = {
    "cancel": Client.cancel_many,
    "reschedule": partial(Client.reschedule_many, delay="1h"),
    "publish": partial(Client.reschedule_many, delay=0),
    "touch": partial(Client.touch_many, ttl="1h"),
    "move": partial(Client.move_many, by_ms=-HOUR_MS),
    "redirect": partial(Client.redirect_many, to="memory:r"),
    "dead.redirect": lambda client, *named, **of: client.dead.redirect_many(
        *named, to="memory:r", **of
    ),
    "kick": lambda client, *named, **of: client.dead.kick_many(*named, **of),
    "discard": lambda client, *named, **of: client.dead.discard_many(*named, **of),
}


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client


class Messages:
    """One message in each state, all in the bucket of one key, as an owner without a worker."""

    def __init__(self, client: Client, world: World) -> None:
        self._client, self._world = client, world
        self._owner: Owner = world.owner()
        self.ids = ["delayed", "unknown"]
        self.add("delayed")
        self.keep("retried", "retry", False)
        self.keep("retried_maybe", "retry", True)
        self.keep("parked", "park")
        self.keep("dead", "bury", False)
        self.keep("dead_maybe", "bury", True)
        self.keep("unreadable", "bury", False, UNDECODABLE)
        damaged = b"\x01" + bytes(12) + b"\xc1"
        world.redis.hset(world.key("messages"), "unreadable", damaged)
        self.keep("headless", "bury", False)
        world.redis.hset(world.key("messages"), "headless", b"\x01" + bytes(10))
        self.keep("bare", "bury", False)
        world.redis.hdel(world.key("messages"), "bare")
        self.keep("fired")
        self.add("claimed")
        self._owner.claim(ahead_ms=2 * HOUR_MS)
        self.ids.append("quarantined")
        world.run(world.quarantining(quarantine_ids("quarantined")[0]))

    def add(self, id: str) -> None:
        self.ids += [id] if id not in self.ids else []
        delay = "20h" if id == "delayed" else "15m"
        self._client.schedule("memory:q", b"x" * 100, id=id, key="k", delay=delay)

    def keep(self, id: str, exit: str = "", maybe: bool = False, reason: str = "why") -> None:
        """A message that was fired, and how that ended, if it has."""
        self.add(id)
        (copy,) = (each for each in self._owner.claim(ahead_ms=HOUR_MS) if each.id == id)
        self._owner.fire(copy.score)
        bucket, token, item = self._owner.bucket, self._owner.token, copy.item
        calls = {
            "retry": lambda: bucket.retry(token, TTL_MS, [(item, 20 * HOUR_MS, maybe, reason)]),
            "bury": lambda: bucket.bury(token, TTL_MS, [(item, True, maybe, reason)]),
            "park": lambda: bucket.park(token, TTL_MS, [item]),
        }
        if exit:
            assert self._world.run(calls[exit]()) is not None


@pytest.fixture
def world(store: Store, client: Client, redis_url: str, namespace: str) -> Iterator[World]:
    client.schedule("memory:q", b"x", id="other", key="k", delay="20h")
    with World.of_key(store, redis_url, namespace, b"k") as world:
        yield world


def test_every_verb_that_can_run_dry_is_here() -> None:
    many = {name for name, row in TABLE.items() if "dry_run" in signature(row.call).parameters}
    assert {name.rpartition(".")[2].removesuffix("_many") for name in many} <= VERBS.keys()


def content(world: World) -> State:
    return world.state() | {"calls": world.redis.zrange(world.key("calls"), 0, -1)}


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("word", VERBS)
def test_it_answers_for_each_id_what_the_verb_then_answers(
    client: Client, world: World, word: str, key: str | None
) -> None:
    ids = Messages(client, world).ids
    before = content(world)
    foreseen = dict(zip(ids, VERBS[word](client, ids, key=key, dry_run=True), strict=True))
    assert content(world) == before
    assert dict(zip(ids, VERBS[word](client, ids, key=key), strict=True)) == foreseen
    assert len({*foreseen.values()}) > 1, "not all are unknown"


def test_a_move_that_would_be_too_far_is_refused_dry_as_well(client: Client, world: World) -> None:
    with pytest.raises(DelayOutOfRange):
        client.move_many(["other"], by_ms=10**12, dry_run=True)


@pytest.mark.slow_with("mariadb*", "sqlite*")
def test_what_the_ledger_alone_has_is_foreseen_too(
    redis_url: str, namespace: str, ledger_url: str
) -> None:
    options: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(redis_url, namespace=namespace, brokers=BROKERS, **options) as client:
        client.schedule("memory:q", b"x", id="cold", delay="1h")
        assert client.cancel_many(["cold", "none"], dry_run=True) == ["cancelled", "unknown"]
        assert client.move_many(["cold"], by_ms=5000, dry_run=True) == ["rescheduled"]
        assert client.get("cold") is not None
        assert client.cancel_many(["cold", "none"]) == ["cancelled", "unknown"]

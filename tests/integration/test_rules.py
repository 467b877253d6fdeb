"""Rules of destinations on a real Redis: changed by many at once, told to the fleet, when full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from delaybridge.errors import MessageError, StoreError
from delaybridge.store.namespace import registry, rules
from delaybridge.store.namespace.rules import Rule
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import AsyncStore, Store
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer

PLACE = "rabbitmq:orders"


@pytest.fixture
def store(redis_url: str, namespace: str) -> Iterator[Store]:
    with closing(Store(redis_url)) as store:
        yield store
        store.redis.delete(keys.destinations(namespace))


def stored(store: Store, namespace: str) -> rules.Rules:
    (reply,) = store.run([rules.read(namespace)])
    return rules.understood(reply)


async def test_changes_of_different_fields_at_once_all_win(
    redis_url: str, namespace: str, store: Store
) -> None:
    changes = [
        {"paused": True}, {"rate": 5}, {"spread_ms": 7}, {"dead_letter": "rabbitmq:/d"},
        *({"retry": {field: 3}} for field in ("max_attempts", "base_ms", "factor", "max_ms")),
    ]  # fmt: skip
    operators = [AsyncStore(redis_url) for _ in changes]
    try:
        for _ in range(5):
            work = zip(operators, changes, strict=True)
            await asyncio.gather(*(s.complete(rules.change(namespace, PLACE, c)) for s, c in work))
            rule = stored(store, namespace).by_place[PLACE]
            plan = rules.RetryPlan(max_attempts=3, base_ms=3, factor=3.0, max_ms=3)
            assert rule == Rule(True, 5.0, 7, plan, "rabbitmq:/d")
            store.complete(rules.remove(namespace, PLACE))
            assert not stored(store, namespace).by_place
    finally:
        for operator in operators:
            await operator.close()


def test_a_change_sent_again_changes_nothing_and_says_the_same(
    store: Store, namespace: str
) -> None:
    name = keys.destinations(namespace)
    set_ = registry.set_rule(namespace, PLACE, b"", b'{"paused":true}', limit=9)
    assert store.run([set_, set_]) == [1, 1]
    assert store.redis.hgetall(name) == {PLACE.encode(): b'{"paused":true}'}
    other = registry.set_rule(namespace, PLACE, b"", b'{"rate":1}', limit=9)
    removed = registry.set_rule(namespace, PLACE, b'{"paused":true}', b"", limit=9)
    assert store.run([other, removed, removed]) == [0, 1, 1]
    assert not store.redis.exists(name)


def test_every_change_is_told_to_the_fleet(store: Store, namespace: str) -> None:
    with store.redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.wake(namespace))
        heard.get_message(timeout=DEADLINE_S)
        for change in ({"paused": True}, {"paused": True}, {"paused": False}):
            store.complete(rules.change(namespace, PLACE, change))
        texts = [heard.get_message(timeout=DEADLINE_S) for _ in range(2)]
        assert [text["data"] for text in texts if text] == [b"destinations"] * 2
        store.redis.publish(keys.wake(namespace), "marker")  # nothing came before it
        marker = heard.get_message(timeout=DEADLINE_S)
        assert marker is not None and marker["data"] == b"marker"


def test_no_more_rules_than_workers_read(store: Store, namespace: str) -> None:
    name = keys.destinations(namespace)
    store.redis.hset(name, mapping={f"kafka:{n}": "{}" for n in range(rules.RULES_LIMIT)})
    with pytest.raises(MessageError, match="too_many"):
        store.complete(rules.change(namespace, PLACE, {"paused": True}))
    store.complete(rules.change(namespace, "kafka:7", {"paused": True}))
    with pytest.raises(MessageError, match="too_large"):
        long = {"dead_letter": "kafka:" + "\1" * 1000}  # six bytes each in JSON
        store.complete(rules.change(namespace, "kafka:7", long))


def test_a_key_of_another_type_is_refused(store: Store, namespace: str) -> None:
    store.redis.set(keys.destinations(namespace), "x")
    with pytest.raises(StoreError, match="has a wrong type"):
        store.complete(rules.change(namespace, PLACE, {"paused": True}))


def test_a_destination_can_be_paused_while_redis_is_full(namespace: str) -> None:
    with RedisServer() as server, closing(Store(f"redis://{LOOPBACK}:{server.port}/0")) as store:
        store.complete(rules.change(namespace, PLACE, {"rate": 5}))
        store.redis.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            store.redis.set("x", "y")
        store.complete(rules.change(namespace, PLACE, {"paused": True}))
        assert json.loads(store.redis.hget(keys.destinations(namespace), PLACE))["paused"]

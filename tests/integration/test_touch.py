"""`touch`: another ttl for a pending message, which is replaced by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from delaybridge import Client, Message, MessageError
from delaybridge.message import Answer, OnConflict
from delaybridge.store.messages import pulling
from delaybridge.store.protocol.record import STAMP
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis.store import Store
from tests.rigs.api import ended_job
from tests.rigs.bucket import TTL_MS, Owner, World
from tests.rigs.command_line import Run

HOUR_MS = 3_600_000
BROKERS = {"memory": "memory://"}


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client


@pytest.fixture
def world(store: Store, client: Client, redis_url: str, namespace: str) -> Iterator[World]:
    client.schedule("memory:q", b"x", id="other", key="k", delay="20h")
    with World.of_key(store, redis_url, namespace, b"k") as world:
        yield world


def schedule(client: Client, answer: str = "created", **fields: Any) -> None:
    about: dict[str, Any] = {"id": "a", "key": "k", "delay": "15m", "ttl": "1m", **fields}
    assert client.schedule("memory:q", b"body", **about) == answer


async def test_only_the_ttl_of_a_message_changes(make: Any, redis_url: str, namespace: str) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    retry, headers = {"max_attempts": 3}, [("a", b"1")]
    await client.schedule(
        "memory:q", b"body", id="a", delay="15m", ttl="1m", priority=7, retry=retry, headers=headers
    )
    before = await client.get("a")
    assert await client.touch("a", ttl="1h") == Answer.REPLACED
    assert (await client.get("a")).ttl_ms == HOUR_MS
    assert await client.touch_many(["a", "none"], ttl=None) == ["replaced", "unknown"]
    assert (await client.get("a")).ttl_ms is None
    assert await client.touch("a", ttl=60) == Answer.REPLACED
    assert await client.get("a") == before
    with pytest.raises(MessageError, match="ttl"):
        await client.touch("a", ttl="soon")


def test_a_copy_on_the_wheel_is_revoked(client: Client, world: World) -> None:
    schedule(client)
    owner: Owner = world.owner()
    (copy,) = owner.claim(ahead_ms=HOUR_MS)
    assert client.touch("a", ttl="1h") == Answer.REPLACED
    fired = world.run(owner.bucket.fire(owner.token, TTL_MS, copy.score, copy.item.claim, 0))
    assert b"a" in fired.revoked
    found = client.get("a")
    assert found is not None and (found.state, found.ttl_ms) == ("delayed", HOUR_MS)


def test_a_fired_message_is_in_flight_and_a_dead_one_stays_dead(
    client: Client, world: World
) -> None:
    schedule(client)
    owner: Owner = world.owner()
    (copy,) = owner.claim(ahead_ms=HOUR_MS)
    owner.fire(copy.score)
    assert client.touch("a", ttl="1h") == Answer.IN_FLIGHT
    world.run(owner.bucket.bury(owner.token, TTL_MS, [(copy.item, True, False, "why")]))
    assert client.touch("a", ttl="1h") == Answer.DEAD
    found = client.get("a")
    assert found is not None and (found.state, found.ttl_ms) == ("dead", 60_000)


@pytest.mark.parametrize("ends", ["settled", "replaced", "buried", "cancelled"])
def test_a_message_that_changed_after_it_was_read_is_not_replaced(
    client: Client, world: World, ends: str
) -> None:
    schedule(client)
    row = world.run(world.bucket.get("a"))
    assert row is not None
    changed = second_half(world, row.record[STAMP], client)
    owner: Owner = world.owner()
    if ends == "replaced":
        client.schedule("memory:q", b"new", id="a", key="k", delay="15m", on_conflict="replace")
    elif ends == "cancelled":
        client.cancel("a")
    else:
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        owner.fire(copy.score)
        exits = {
            "settled": owner.bucket.settle(owner.token, TTL_MS, [(copy.item.claim, ["a"])]),
            "buried": owner.bucket.bury(owner.token, TTL_MS, [(copy.item, True, False, "why")]),
        }
        world.run(exits[ends])
    before = world.state()
    answer = world.run(changed)[0][0]
    assert answer == Answer.FOREIGN
    assert world.state() == before


@pytest.mark.parametrize("changed", ["k", "k2"])
def test_of_two_messages_of_one_id_the_one_that_changed_is_read_again(
    client: Client, changed: str
) -> None:
    for key in ("k", "k2"):
        schedule(client, key=key)
    steps = client._calls.touch("a", None, HOUR_MS)
    read = client._store.run(next(steps))
    schedule(client, key=changed, answer="replaced", on_conflict="replace", delay="20m")
    assert rest_of(client._store, steps, read) == Answer.REPLACED
    found = [client.get("a", key=key) for key in ("k", "k2")]
    assert [each and each.ttl_ms for each in found] == [HOUR_MS] * 2


def second_half(world: World, stamp: bytes, client: Client) -> Any:
    """The second half of a touch: what replaces the message that was read."""
    accepted = client.accept(Message("memory:q", b"body", id="a", key="k", delay="1h", ttl="1h"))
    return world.bucket.schedule([(b"newer"[:4], accepted)], OnConflict.REPLACE, reach=b"=" + stamp)


def test_a_message_that_a_consumer_has_is_in_flight(
    client: Client, store: Store, redis_url: str, namespace: str
) -> None:
    client.schedule("pull:t", b"x", id="a", key="k", delay=0)
    with World.of_key(store, redis_url, namespace, b"k") as world:
        owner: Owner = world.owner()
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        owner.fire(copy.score)
        offered = [(copy.item, "pull:t")]
        world.run(pulling.offer(owner.bucket, (owner.token, TTL_MS), offered))
        (received,) = client.topics.receive("t", ttr="1m")
        assert client.touch("a", ttl="1h") == Answer.IN_FLIGHT
        assert client.topics.finish([received]) == [Answer.FINISHED]
        assert client.touch("a", ttl="1h") == Answer.UNKNOWN


@pytest.mark.slow_with("mariadb*", "sqlite*")
def test_a_message_that_the_ledger_alone_has_is_touched_and_recorded(
    redis_url: str, namespace: str, ledger_url: str
) -> None:
    options: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(redis_url, namespace=namespace, brokers=BROKERS, **options) as client:
        for id, delay in (("cold", "1h"), ("hot", "5s")):
            client.schedule("memory:q", b"x", id=id, delay=delay, ttl="1m")
            assert client.touch(id, ttl="2m") == Answer.REPLACED
            assert client.touch_many([id, "none"], ttl="3m") == ["replaced", "unknown"]
            found = client.get(id)
            assert found is not None and found.ttl_ms == 180_000
            assert client.cancel(id) == Answer.CANCELLED
            assert client.get(id) is None
        assert client.cancel("none") == Answer.UNKNOWN


@pytest.mark.slow_with("mariadb*", "sqlite*")
@pytest.mark.parametrize("delay", ["1h", "5s"])
def test_a_message_that_was_cancelled_meanwhile_does_not_come_back(
    redis_url: str, namespace: str, ledger_url: str, delay: str
) -> None:
    options: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(redis_url, namespace=namespace, brokers=BROKERS, **options) as client:
        client.schedule("memory:q", b"x", id="a", delay=delay, ttl="1m")
        steps = client._calls.touch("a", None, HOUR_MS)
        read = client._store.run(next(steps))
        assert client.cancel("a") == Answer.CANCELLED
        assert rest_of(client._store, steps, read) == Answer.UNKNOWN
        assert client.get("a") is None


def rest_of(store: Store, steps: Steps[Any], replies: list[Any]) -> Any:
    """The answer of a call whose first commands were answered so."""
    try:
        while True:
            replies = store.run(steps.send(replies))
    except StopIteration as done:
        return done.value


async def test_the_route_and_its_job_come_from_the_row(http: httpx.AsyncClient) -> None:
    message = {"destination": "memory:q", "body": "x", "delay": "15m", "id": "a"}
    assert (await http.post("/v1/messages", json=message)).status_code == 201
    answer = await http.post("/v1/messages/a:touch", json={"ttl": "1h"})
    assert (answer.status_code, answer.json()) == (200, {"id": "a", "result": "replaced"})
    assert (await http.get("/v1/messages/a")).json()["ttl_ms"] == HOUR_MS
    assert (await http.post("/v1/messages/none:touch", json={"ttl": "1h"})).status_code == 404
    assert (await http.post("/v1/messages/a:touch", json={})).status_code == 422
    started = await http.post("/v1/messages:touch", json={"ids": ["a"], "ttl": "2h"})
    job = await ended_job(http, started.json()["id"])
    assert job["answers"] == {"replaced": 1}
    assert (await http.get("/v1/messages/a")).json()["ttl_ms"] == 2 * HOUR_MS


def test_the_command_comes_from_the_row(run: Run, client: Client) -> None:
    schedule(client)
    assert run("message", "touch", "a", "--ttl", "1h").out == "a  replaced\n"
    assert run("message", "touch", "none", "--ttl", "1h").code == 3
    assert run("--json", "message", "touch", "--id-prefix", "a", "--ttl", "2h", "--yes").code == 0
    found = client.get("a")
    assert found is not None and found.ttl_ms == 2 * HOUR_MS

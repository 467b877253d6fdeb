"""`redirect`: a message goes to another destination, exactly once, or stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from delaybridge import Client, Message, MessageError
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.records import Records
from delaybridge.message import State
from delaybridge.store.messages import pulling
from delaybridge.store.protocol.verbs import Work
from delaybridge.store.redis.store import Store
from tests.rigs.api import ended_job
from tests.rigs.bucket import TTL_MS, Owner, World
from tests.rigs.command_line import Run

HOUR_MS = 3_600_000
BROKERS = {
    "memory": "memory://", "rabbitmq": "amqp://127.0.0.1:1", "kafka": "kafka://127.0.0.1:1",
    "http": "https://example.invalid/",
}  # fmt: skip
HEADERS = {"number": 5, "table": {"a": 1}, "text": "x"}


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client


@pytest.fixture
def world(store: Store, client: Client, redis_url: str, namespace: str) -> Iterator[World]:
    client.schedule("memory:q", b"x", id="other", key="k", delay="20h")
    with World.of_key(store, redis_url, namespace, b"k") as world:
        yield world


def test_only_the_destination_changes_at_a_broker_of_the_same_kind(client: Client) -> None:
    retry, properties = {"max_attempts": 3}, {"type": "t", "delivery_mode": 2}
    about: dict[str, Any] = {"id": "a", "key": "k", "delay": "1h", "ttl": "1m", "priority": 7}
    client.schedule(
        "rabbitmq:a/k", b"body", headers=HEADERS, properties=properties, retry=retry, **about
    )
    before = client.get("a")
    answer = client.redirect("a", to="rabbitmq:b/k")
    assert (answer, [*answer.notes]) == ("redirected", [])
    after = client.get("a")
    assert before is not None
    assert after is not None
    assert after.destination == "rabbitmq:b/k"
    fields = (each for each in before.__slots__ if each != "destination")
    assert [name for name in fields if getattr(after, name) != getattr(before, name)] == []
    assert client.redirect("a", to="rabbitmq:b/k") == "redirected", "it is there already"


def test_what_another_kind_of_broker_cannot_carry_is_told(client: Client) -> None:
    properties = {"content_type": "text/plain", "type": "t", "delivery_mode": 2}
    client.schedule(
        "rabbitmq:a/k", b"x", id="a", delay="1h", headers=HEADERS, properties=properties
    )
    lost = ["header table is left out", "property type is left out"]
    (foreseen,) = client.redirect_many(["a"], to="kafka:t", dry_run=True)
    assert (foreseen, foreseen.notes) == ("redirected", lost)
    answer = client.redirect("a", to="kafka:t")
    assert (answer, answer.notes) == ("redirected", lost)
    found = client.get("a")
    assert found is not None
    kept = [("number", b"5"), ("text", b"x"), ("content-type", b"text/plain")]
    assert (found.headers, found.properties) == (kept, {})
    assert client.redirect("a", to="rabbitmq:a/k").notes == []
    found = client.get("a")
    assert found is not None
    assert found.headers == [("number", "5"), ("text", "x")]
    assert found.properties == {"content_type": "text/plain"}


def test_what_the_new_destination_does_not_take_stays(client: Client) -> None:
    client.schedule("kafka:t", None, id="tombstone", delay="1h")
    answer = client.redirect("tombstone", to="rabbitmq:a/b")
    assert answer == "refused"
    assert "null" in answer.notes[0]
    found = client.get("tombstone")
    assert found is not None
    assert found.destination == "kafka:t"
    with pytest.raises(MessageError, match="to: unknown_destination"):
        client.redirect("tombstone", to="nowhere:a")


@pytest.mark.parametrize("changed", ["moved", "replaced", "cancelled", "fired", "settled"])
def test_a_message_that_changed_after_it_was_read_is_left_and_told(
    client: Client, world: World, changed: str
) -> None:
    client.schedule("memory:q", b"x", id="a", key="k", delay="15m")
    steps = client._calls.redirect_many(["a"], "memory:new", b"k")
    replies = client._store.run(next(steps))
    if changed == "moved":
        client.reschedule("a", delay="16m", key="k")
    elif changed == "replaced":
        client.schedule("memory:q", b"y", id="a", key="k", delay="15m", on_conflict="replace")
    elif changed == "cancelled":
        client.cancel("a", key="k")
    else:
        owner: Owner = world.owner()
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        owner.fire(copy.score)
        if changed == "settled":
            settle = owner.bucket.settle(owner.token, TTL_MS, [(copy.item.claim, ["a"])])
            world.run(settle)
    before = world.state()
    (answer,) = rest_of(client._store, steps, replies)
    assert answer == ("in_flight" if changed == "fired" else "changed")
    assert world.state() == before


def test_only_what_is_bound_for_the_place_is_redirected(client: Client) -> None:
    client.schedule("memory:q", b"x", id="a", delay="15m")
    assert client.redirect("a", to="memory:r", bound_for="kafka") == "changed"
    assert client.redirect("a", to="memory:r", bound_for="memory") == "redirected"


def test_an_earlier_publish_that_may_have_arrived_is_told(client: Client, world: World) -> None:
    client.schedule("memory:q", b"x", id="a", key="k", delay="15m")
    owner: Owner = world.owner()
    (copy,) = owner.claim(ahead_ms=HOUR_MS)
    owner.fire(copy.score)
    world.run(owner.bucket.retry(owner.token, TTL_MS, [(copy.item, HOUR_MS, True, "why")]))
    assert client.redirect("a", to="memory:r", key="k") == "redirected_maybe_delivered"
    found = client.get("a", key="k")
    assert found is not None
    assert (found.attempts, found.maybe_delivered) == (0, True)


def test_a_message_that_a_consumer_has_is_in_flight(
    client: Client, store: Store, redis_url: str, namespace: str
) -> None:
    client.schedule("pull:t", b"x", id="a", key="k", delay=0)
    with World.of_key(store, redis_url, namespace, b"k") as world:
        owner: Owner = world.owner()
        (copy,) = owner.claim(ahead_ms=HOUR_MS)
        owner.fire(copy.score)
        world.run(pulling.offer(owner.bucket, (owner.token, TTL_MS), [(copy.item, "pull:t")]))
        (received,) = client.topics.receive("t", ttr="1m")
        assert client.redirect("a", to="memory:r") == "in_flight"
        assert client.topics.finish([received]) == ["finished"]


def buried(client: Client, world: World, *ids: str, delay: str = "15m") -> None:
    """Messages that are dead, for a reason, after one attempt."""
    messages = [Message("memory:q", b"x", id=id, key="k", delay=delay) for id in ids]
    client.schedule_many(messages)
    owner: Owner = world.owner()
    copies = owner.claim(ahead_ms=HOUR_MS)
    owner.fire(copies[-1].score)
    dead = [(copy.item, True, False, "why") for copy in copies]
    world.run(owner.bucket.bury(owner.token, TTL_MS, dead))


def test_a_dead_message_stays_dead_until_it_is_kicked(client: Client, world: World) -> None:
    buried(client, world, "a", "b")
    before = client.get("a", key="k")
    assert client.redirect("a", to="memory:r", key="k") == "dead"
    assert client.dead.redirect_many(["a", "none"], to="memory:r") == ["redirected", "unknown"]
    after = client.get("a", key="k")
    assert before is not None
    assert after is not None
    fields = (each for each in before.__slots__ if each != "destination")
    assert [name for name in fields if getattr(after, name) != getattr(before, name)] == []
    assert (after.state, after.reason, after.attempts) == (State.DEAD, "why", 1)
    assert client.dead.redirect("b", to="memory:r") == "redirected"
    assert client.dead.kick("b") == "kicked"
    found = client.get("b", key="k")
    assert found is not None
    assert (found.state, found.destination, found.attempts) == (State.DELAYED, "memory:r", 0)
    assert client.schedule("memory:r", b"x", id="b", key="k", delay="15m") == "duplicate"


@pytest.mark.parametrize("changed", ["kicked", "discarded", "redirected"])
def test_a_dead_message_that_changed_after_it_was_read_is_left_and_told(
    client: Client, world: World, changed: str
) -> None:
    buried(client, world, "a")
    steps = client._calls.redirect_many(["a"], "memory:new", b"k", is_dead=True)
    replies = client._store.run(next(steps))
    if changed == "redirected":
        assert client.dead.redirect("a", to="memory:r") == "redirected"
    else:
        (client.dead.kick if changed == "kicked" else client.dead.discard)("a")
    before = world.state()
    assert rest_of(client._store, steps, replies) == ["changed"]
    assert world.state() == before


@pytest.mark.slow_with("mariadb*", "sqlite*")
def test_the_ledger_knows_the_new_destination(
    redis_url: str, namespace: str, ledger_url: str, store: Store
) -> None:
    options: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "hot_window_s": 10.0}
    with Client(redis_url, namespace=namespace, brokers=BROKERS, **options) as client:
        for id, delay in (("cold", "1h"), ("hot", "5s")):
            client.schedule("memory:q", b"x", id=id, delay=delay)
            assert client.redirect_many([id, "none"], to="memory:r") == ["redirected", "unknown"]
            found = client.get(id)
            assert found is not None
            assert found.destination == "memory:r"
            assert client.cancel(id) == "cancelled"
            assert client.get(id) is None
        with World.of_key(store, redis_url, namespace, b"k") as world:
            buried(client, world, "a", delay="5s")
            assert client.dead.redirect("a", to="memory:r") == "redirected"
        with closing(open_ledger(ledger_url)) as ledger:
            rows = ledger.run(Work(lambda on: Records(namespace).life(on, "a"))).rows
        ended = {(row.destination, row.state, row.error) for row in rows}
        assert ended == {("memory:q", "cancelled", "replaced"), ("memory:r", "dead", "why")}


def rest_of(store: Store, steps: Any, replies: list[Any]) -> Any:
    """The answer of a call whose first commands were answered so."""
    try:
        while True:
            replies = store.run(steps.send(replies))
    except StopIteration as done:
        return done.value


async def test_the_job_tells_what_is_left_out(http: httpx.AsyncClient) -> None:
    for id, headers in (("a", {"x": "1"}), ("b", {})):
        message = {"destination": "memory:q", "body": "x", "delay": "15m", "id": id}
        answer = await http.post("/v1/messages", json={**message, "headers": headers})
        assert answer.status_code == 201
    answer = await http.post("/v1/messages/a:redirect", json={"to": "memory:r"})
    assert (answer.status_code, answer.json()) == (200, {"id": "a", "result": "redirected"})
    wanted = {"filter": {"destination": "memory:q"}, "to": "memory:r"}
    started = await http.post("/v1/messages:redirect", json=wanted)
    assert (await ended_job(http, started.json()["id"]))["answers"] == {"redirected": 1}
    assert (await http.get("/v1/messages/b")).json()["destination"] == "memory:r"
    for chosen in ({"filter": {"destination": "memory:r"}}, {"ids": ["a"]}):
        wrong = await http.post("/v1/messages:redirect", json={**chosen, "to": "nowhere:q"})
        assert (wrong.status_code, wrong.json()["at"]) == (422, "$.to")
    answer = await http.post("/v1/dead/b:redirect", json={"to": "memory:r"})
    assert answer.status_code == 404


def test_the_command_names_both_destinations(run: Run, client: Client) -> None:
    client.schedule("memory:q", b"x", id="a", delay="1h")
    assert run("message", "redirect", "--destination", "memory:q", "--to", "memory:r", "--yes").out
    found = client.get("a")
    assert found is not None
    assert found.destination == "memory:r"
    assert "--to" in run("message", "redirect", "a").err

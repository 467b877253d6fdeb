"""Destinations as operators see and steer them: `Client`, `AsyncClient` and the command line."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import pytest

from delaybridge import Client, Message, MessageError
from delaybridge.operate.views import tally
from delaybridge.operate.views.destinations import Place
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.rules import Rule, places_of
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.record import SLOW
from delaybridge.store.redis.store import Store
from tests.rigs.command_line import Run
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.flavours import Maker
from tests.rigs.waiting import until_async

BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h", "eu": "amqp://eu"}
HOUR = ("--in", "1h")
MANY = ("rabbitmq:orders/close", "rabbitmq:orders/close", "rabbitmq:orders/open", "rabbitmq:/jobs")


def named(places: list[Place]) -> dict[str, Place]:
    return {place.place: place for place in places}


def announced(store: Store, namespace: str, **about: Any) -> None:
    about = {"brokers": {}, "paused": [], "parked": {}, **about}
    store.run([registry.announce(namespace, "w", "i", 60_000, json.dumps(about).encode())])


async def test_places_count_the_messages_that_they_cover(
    make: Maker, redis_url: str, namespace: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    at = "2035-01-01T00:00:0{}Z"
    await client.schedule_many(
        [Message(to, b"", at=at.format(9 - n)) for n, to in enumerate([*MANY, "kafka:orders"])]
    )
    await client.destinations.pause("rabbitmq")
    await client.destinations.limit("rabbitmq:orders/close", 5)
    found = await client.destinations()
    places = named(found.places)
    delayed = {name: place.delayed for name, place in places.items()}
    assert delayed == {
        "kafka:orders": (1, 0), "rabbitmq": (4, 0), "rabbitmq:/jobs": (1, 0),
        "rabbitmq:orders": (3, 0), "rabbitmq:orders/close": (2, 0),
    }  # fmt: skip
    assert places["rabbitmq:orders"].next_due_ms == 2_051_222_407_000
    assert places["rabbitmq:orders/close"].next_due_ms == 2_051_222_408_000
    assert {name: place.state for name, place in places.items()} == {
        name: "paused" if name.startswith("rabbitmq") else "ok" for name in delayed
    }
    assert places["rabbitmq:orders/close"].paused_by[0] == "rabbitmq"
    assert places["rabbitmq:orders/close"].in_force == {"rate": (5.0, "rabbitmq:orders/close")}
    assert (found.more, found.damaged, found.ignoring) == (0, False, [])


async def test_a_rule_is_set_changed_and_removed_field_by_field(
    make: Maker, redis_url: str, namespace: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    to = "rabbitmq:orders"
    assert (await client.destinations.limit(to, 500)).rate == 500
    assert (await client.destinations.spread(to, "10m")).spread_ms == 600_000
    await client.destinations.retry_plan(to, {"max_attempts": 3, "dead_letter": "eu:/failed"})
    rule = await client.destinations.retry_plan(to, {"base_ms": 10_000})
    assert (rule.retry.max_attempts, rule.retry.base_ms) == (3, 10_000)
    assert (rule.rate, rule.dead_letter) == (500, "eu:/failed")
    rule = await client.destinations.retry_plan(to, {"max_attempts": None, "dead_letter": ""})
    assert (rule.retry.max_attempts, rule.retry.base_ms, rule.dead_letter) == (None, 10_000, "")
    paused = await client.destinations.pause(to)
    assert paused.paused and paused.paused_ms
    assert (
        await client.destinations.pause(to)
    ) == paused  # since when it is paused, not since the last call
    await client.destinations.limit(to, None)
    await client.destinations.spread(to, None)
    await client.destinations.retry_plan(to, None)
    assert await client.destinations.resume(to) == Rule()
    (place,) = (await client.destinations(to)).places
    assert (place.levels, place.state, place.in_force) == ([], "ok", {})


@pytest.mark.parametrize(
    ("method", "args", "field", "what"),
    [
        (".pause", (5,), "destination", "give text"),
        (".pause", ("",), "destination", "BROKER"),
        (".pause", ("rabit",), "destination", "configured: rabbitmq"),
        (".pause", ("nowhere:x",), "destination", "no broker is named"),
        (".pause", ("kafka:a/b",), "destination", "not a topic name"),
        (".pause", ("rabbitmq:" + "x" * 300,), "destination", "at most 255"),
        (".limit", ("kafka:t", 0), "rate", "use pause"),
        (".limit", ("kafka:t", 0.0), "rate", "use pause"),
        (".limit", ("kafka:t", -1), "rate", "up to 1,000,000"),
        (".limit", ("kafka:t", float("nan")), "rate", "got nan"),
        (".limit", ("kafka:t", float("inf")), "rate", "got inf"),
        (".limit", ("kafka:t", 10**400), "rate", "got int"),
        (".limit", ("kafka:t", True), "rate", "got True"),
        (".limit", ("kafka:t", "5"), "rate", "got '5'"),
        (".spread", ("kafka:t", "25h"), "window", "at most 1d"),
        (".spread", ("kafka:t", -1), "window", "below zero"),
        (".spread", ("kafka:t", "soon"), "window", "got 'soon'"),
        (".retry_plan", ("kafka:t", {"max_attempts": 0}), "retry.max_attempts", "from 1"),
        (".retry_plan", ("kafka:t", {"colour": 1}), "retry", "unknown"),
        (".retry_plan", ("kafka:t", {"dead_letter": "eu:/q"}), "retry.dead_letter", "kind kafka"),
        (".retry_plan", ("kafka:t", {"dead_letter": "kafka:t"}), "retry.dead_letter", "itself"),
        ("", ("kafka:",), "destination", "BROKER"),
        (".purge", ("kafka:",), "destination", "BROKER"),
    ],
)
async def test_wrong_arguments_are_refused_by_field(
    make: Maker, redis_url: str, namespace: str, method: str, args: Any, field: str, what: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    with pytest.raises(MessageError) as caught:
        await attrgetter(f"destinations{method}")(client)(*args)
    assert caught.value.field == field
    assert what in caught.value.detail


def test_a_rule_of_a_broker_that_is_gone_can_still_be_removed(
    redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        client.destinations.pause("eu:orders")
    with Client(redis_url, namespace=namespace, brokers={"kafka": "kafka://h"}) as stranger:
        with pytest.raises(MessageError, match="no broker is named"):
            stranger.destinations.pause("eu:other")
        assert stranger.destinations.resume("eu:orders") == Rule()


@pytest.mark.parametrize(
    ("place", "covering"),
    [
        ("rabbitmq", ("rabbitmq",)),
        ("rabbitmq:orders", ("rabbitmq", "rabbitmq:orders")),
        ("rabbitmq:orders/", ("rabbitmq", "rabbitmq:orders", "rabbitmq:orders/")),
        ("rabbitmq:a%2Fb/c/d", ("rabbitmq", "rabbitmq:a%2Fb", "rabbitmq:a%2Fb/c/d")),
        ("rabbitmq:/a/b", ("rabbitmq", "rabbitmq:/a/b")),
        ("kafka:orders", ("kafka", "kafka:orders")),
        ("redis:a/b", ("redis", "redis:a/b")),
        ("unknown:a/b", ("unknown", "unknown:a", "unknown:a/b")),
        ("(unreadable)", ("(unreadable)",)),
    ],
)
def test_places_are_covered_by_their_exchange_and_broker(
    place: str, covering: tuple[str, ...]
) -> None:
    kinds = {"rabbitmq": "rabbitmq", "kafka": "kafka", "redis": "redis"}
    assert places_of(place, kinds) == covering


def test_a_destination_in_trouble_is_shown_with_the_reason(
    run: Run, store: Store, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", *HOUR)
    brokers = {"kafka": None, "eu": "down: refused"}
    announced(store, namespace, brokers=brokers, parked={"kafka:t": "open: unroutable"})
    rows = {each["destination"]: each for each in run("--json", "destination", "ls").objects}
    trouble = rows["kafka:t"]["state"], rows["kafka:t"]["trouble"]
    assert trouble == ("trouble", "open: unroutable (w)")
    assert rows["eu"]["state"] == "trouble"
    assert "trouble" in run("destination", "show", "kafka:t").out
    # What is announced while the last ones go out.
    announced(store, namespace, brokers=brokers, parked={"kafka:t": SLOW})
    assert "trouble" not in run("destination", "show", "kafka:t").out


async def test_what_an_operator_holds_back_is_not_late(
    crew: Crew, arrived: Arrived, run: Run
) -> None:
    """A paused destination's messages wait, another destination's failure still counts."""
    crew.start(lease=CALM)
    await crew.shared("w")
    await crew.client.destinations.pause("memory:paused")
    await crew.obeys_pause("memory:paused")
    await crew.client.schedule("memory:paused", b"", delay=0, id="p")

    async def is_parked() -> bool:
        return (await crew.client.stats()).parked == 1

    await until_async(is_parked, "it is parked")
    stats = await crew.client.stats()
    ((place, since_ms, waiting),) = stats.paused
    assert (place, waiting) == ("memory:paused", (1, 0))
    assert since_ms is not None
    assert 0 <= stats.now_ms - since_ms < 30_000
    assert stats.overdue_ms == 0
    await crew.stop()
    await crew.client.schedule("memory:other", b"", delay=0, id="o")

    async def is_late() -> bool:
        return (await crew.client.stats()).overdue_ms > 0

    await until_async(is_late, "the other message is late")
    await crew.client.destinations.resume("memory:paused")
    assert (await crew.client.stats()).paused == []


def test_stats_health_and_workers_show_what_is_paused(
    run: Run, store: Store, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", "--in", "0s")
    run("destination", "pause", "kafka:t")
    announced(store, namespace, paused=["kafka:t"])
    shown = run("stats")
    assert "PAUSED   WAITING  SINCE\n" in shown.out
    assert "overdue   nothing\n" in shown.out
    assert run("--json", "stats").objects[0]["paused"][0]["place"] == "kafka:t"
    health = run("health", "--max-overdue", "0s")
    assert "kafka:t is paused for " in health.out
    assert "overdue" not in health.out
    assert run("--json", "health").objects[0]["paused"] == ["kafka:t"]
    assert "obeyed, 1 paused" in run("worker", "ls").out
    store.run([registry.announce(namespace, "w", "i", 60_000, b"{}")])
    assert "ignored" in run("worker", "ls").out
    run("destination", "resume", "kafka:t")
    assert "RULES" not in run("worker", "ls").out
    assert "1 of" not in run("stats").out
    late = run("health", "--max-overdue", "0s")
    assert "overdue" in late.out


def test_a_rate_holds_nothing_back_where_there_is_trouble(
    run: Run, store: Store, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", "--in", "0s")
    run("destination", "limit", "kafka:t", "--rate", "5")
    announced(store, namespace, parked={"kafka:t": "limited: 5/s"})
    assert run("--json", "stats").objects[0]["overdue_ms"] > 0  # its bucket has no worker
    (birth,) = store.run([registry.read_birth(namespace)])
    assert birth is not None
    store.run([Bucket(namespace, n, birth[1]).acquire("w:1", 60_000) for n in range(16)])
    assert run("--json", "stats").objects[0]["overdue_ms"] == 0
    assert "parks messages" not in run("health").out
    announced(store, namespace, parked={"kafka:t": "unroutable: no such topic"})
    assert run("--json", "stats").objects[0]["overdue_ms"] > 0
    assert "unroutable" in run("health", "--max-overdue", "0s").out


def test_a_destination_whose_messages_are_estimated_says_so(
    run: Run, caller: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "MOST_READ", 64)
    monkeypatch.setattr(tally, "LEAST_READ", 8)
    caller.schedule_many(Message("kafka:a", b"", delay=3600) for _ in range(2000))
    listed = run("destination", "ls")
    assert "~" in listed.out and "estimated" in listed.err
    assert run("--json", "destination", "ls").objects[0]["error"]
    for command in ("destination pause kafka:aa", "message cancel --yes --destination kafka:aa"):
        done = run(*command.split())
        assert (done.code, "did you mean 'kafka:a'?" in done.err) == (0, True), "some may be hidden"


def test_without_rules_no_worker_is_said_to_ignore_them(
    run: Run, store: Store, namespace: str
) -> None:
    store.run([registry.announce(namespace, "old", "i", 60_000, b'{"version": "0.1.0"}')])
    assert "ignore" not in run("destination", "ls").err
    run("destination", "pause", "kafka:t", "--new")
    assert run("--json", "destination", "ls").objects[0]["ignored_by"] == ["old"]
    assert "Resume it" not in run("doctor").out, "a new pause is not forgotten"


def test_health_says_once_what_workers_cannot_do_because_of_damage(
    run: Run, store: Store, namespace: str
) -> None:
    store.redis.set(keys.series(namespace), "x")
    reason = f"redis: one of these keys has a wrong type: {keys.series(namespace)}; which one"
    announced(store, namespace, failing={"series": reason})
    assert run("health").out.count("no rates are recorded") == 1

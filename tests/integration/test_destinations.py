"""Destinations as operators see and steer them: `Client`, `AsyncClient` and the command line."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
import redis

from delaybridge import Answer, Client, Message, MessageError
from delaybridge.client import steering
from delaybridge.store import keys, registry, tally
from delaybridge.store.destinations import Place
from delaybridge.store.rules import Rule, places_of
from delaybridge.store.store import Store
from delaybridge.store.troubles import SLOW
from delaybridge.store.verbs import Bucket
from tests.rigs.command_line import Run
from tests.rigs.crew import Arrived, Crew
from tests.rigs.flavours import Maker
from tests.rigs.waiting import until, until_async

BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h", "eu": "amqp://eu"}
HOUR = ("--in", "1h")
MANY = ("rabbitmq:orders/close", "rabbitmq:orders/close", "rabbitmq:orders/open", "rabbitmq:/jobs")


def named(places: list[Place]) -> dict[str, Place]:
    return {place.place: place for place in places}


async def test_places_count_the_messages_that_they_cover(
    make: Maker, redis_url: str, namespace: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    at = "2035-01-01T00:00:0{}Z"
    await client.schedule_many(
        [Message(to, b"", at=at.format(9 - n)) for n, to in enumerate([*MANY, "kafka:orders"])]
    )
    await client.pause("rabbitmq")
    await client.limit("rabbitmq:orders/close", 5)
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
    assert (await client.limit(to, 500)).rate == 500
    assert (await client.spread(to, "10m")).spread_ms == 600_000
    await client.retry_plan(to, {"max_attempts": 3, "dead_letter": "eu:/failed"})
    rule = await client.retry_plan(to, {"base_ms": 10_000})
    assert (rule.retry.max_attempts, rule.retry.base_ms) == (3, 10_000)
    assert (rule.rate, rule.dead_letter) == (500, "eu:/failed")
    rule = await client.retry_plan(to, {"max_attempts": None, "dead_letter": ""})
    assert (rule.retry.max_attempts, rule.retry.base_ms, rule.dead_letter) == (None, 10_000, "")
    paused = await client.pause(to)
    assert paused.paused and paused.paused_ms
    assert (await client.pause(to)) == paused  # since when it is paused, not since the last call
    await client.limit(to, None)
    await client.spread(to, None)
    await client.retry_plan(to, None)
    assert await client.resume(to) == Rule()
    (place,) = (await client.destinations(to)).places
    assert (place.levels, place.state, place.in_force) == ([], "ok", {})


@pytest.mark.parametrize(
    ("method", "args", "field", "what"),
    [
        ("pause", (5,), "destination", "give text"),
        ("pause", ("",), "destination", "BROKER"),
        ("pause", ("rabit",), "destination", "configured: rabbitmq"),
        ("pause", ("nowhere:x",), "destination", "no broker is named"),
        ("pause", ("kafka:a/b",), "destination", "not a topic name"),
        ("pause", ("rabbitmq:" + "x" * 300,), "destination", "at most 255"),
        ("limit", ("kafka:t", 0), "rate", "use pause"),
        ("limit", ("kafka:t", 0.0), "rate", "use pause"),
        ("limit", ("kafka:t", -1), "rate", "up to 1,000,000"),
        ("limit", ("kafka:t", float("nan")), "rate", "got nan"),
        ("limit", ("kafka:t", float("inf")), "rate", "got inf"),
        ("limit", ("kafka:t", 10**400), "rate", "got int"),
        ("limit", ("kafka:t", True), "rate", "got True"),
        ("limit", ("kafka:t", "5"), "rate", "got '5'"),
        ("spread", ("kafka:t", "25h"), "window", "at most 1d"),
        ("spread", ("kafka:t", -1), "window", "below zero"),
        ("spread", ("kafka:t", "soon"), "window", "got 'soon'"),
        ("retry_plan", ("kafka:t", {"max_attempts": 0}), "retry.max_attempts", "from 1"),
        ("retry_plan", ("kafka:t", {"colour": 1}), "retry", "unknown"),
        ("retry_plan", ("kafka:t", {"dead_letter": "eu:/q"}), "retry.dead_letter", "kind kafka"),
        ("retry_plan", ("kafka:t", {"dead_letter": "kafka:t"}), "retry.dead_letter", "itself"),
        ("destinations", ("kafka:",), "destination", "BROKER"),
        ("purge", ("kafka:",), "destination", "BROKER"),
    ],
)
async def test_wrong_arguments_are_refused_by_field(
    make: Maker, redis_url: str, namespace: str, method: str, args: Any, field: str, what: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    with pytest.raises(MessageError) as caught:
        await getattr(client, method)(*args)
    assert caught.value.field == field
    assert what in caught.value.detail


def test_a_rule_of_a_broker_that_is_gone_can_still_be_removed(
    redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        client.pause("eu:orders")
    with Client(redis_url, namespace=namespace, brokers={"kafka": "kafka://h"}) as stranger:
        with pytest.raises(MessageError, match="no broker is named"):
            stranger.pause("eu:other")
        assert stranger.resume("eu:orders") == Rule()


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


def test_many_messages_are_estimated_and_say_so(
    run: Run, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "_READ", 64)
    monkeypatch.setattr(tally, "_LEAST_READ", 8)
    with Client(redis_url, namespace=namespace) as client:
        messages = [Message(f"kafka:{'ab'[n % 4 == 0]}", b"", delay=3600) for n in range(2000)]
        client.schedule_many(messages)
        places = named(client.destinations().places)
    for name, truth in (("kafka:a", 1500), ("kafka:b", 500)):
        number = places[name].delayed
        assert number.error > 0
        assert abs(number.messages - truth) <= 3 * number.error
    listed = run("destination", "ls")
    assert "~" in listed.out
    assert "estimated" in listed.err
    assert all(each["error"] for each in run("--json", "destination", "ls").objects)


def test_the_command_line_shows_what_holds_and_who_set_it(run: Run) -> None:
    for to in MANY:
        run("schedule", to, "x", *HOUR)
    assert run("destination", "ls").out.count("\n") == 3
    paused = run("destination", "pause", "rabbitmq:orders")
    assert paused.out == "rabbitmq:orders  paused  0 parked, 3 delayed\n"
    limited = run("destination", "limit", "rabbitmq", "--rate", "30/m")
    assert limited.out == "rabbitmq  limited 0.5/s  0 parked, 4 delayed  rate=0.5/s\n"
    plan = ("--max-attempts", "3", "--backoff", "10s", "--max-backoff", "1m", "--factor", "3")
    assert run("destination", "retry", "rabbitmq:orders/close", *plan).code == 0
    shown = run("--json", "destination", "show", "rabbitmq:orders/close").objects[0]
    assert (shown["state"], shown["paused_by"], shown["delayed"]) == (
        "paused",
        "rabbitmq:orders",
        2,
    )
    assert shown["paused_since"].startswith("20")
    assert shown["in_force"]["rate"] == {"value": 0.5, "set_by": "rabbitmq"}
    assert shown["in_force"]["retry.max_ms"]["value"] == 60_000
    text = run("destination", "show", "rabbitmq:orders/close").out
    assert "state               paused by rabbitmq:orders\n" in text
    assert "rate                0.5/s  (set for rabbitmq)\n" in text
    still = run("destination", "resume", "rabbitmq:orders/close").out
    assert still.startswith("rabbitmq:orders/close  paused by rabbitmq:orders  ")
    assert run("destination", "resume", "rabbitmq:orders").out.startswith(
        "rabbitmq:orders  limited 0.5/s  "
    )
    for verb, place in (("limit", "rabbitmq"), ("retry", "rabbitmq:orders/close")):
        assert run("destination", verb, place, "--off").code == 0
    rules = [each["rule"] for each in run("--json", "destination", "ls").objects]
    assert rules == [{}, {}]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("limit", "kafka:t", "--rate", "0"), "rate: 0 would let nothing pass; use pause"),
        (("limit", "kafka:t", "--rate", "5/d"), "--rate: got '5/d'; write 500/s"),
        (("limit", "kafka:t", "--rate", "nan"), "rate: got nan"),
        (("limit", "kafka:t"), "--rate: missing; give it, or --off"),
        (("limit", "kafka:t", "--rate", "5", "--off"), "--rate: given together with --off"),
        (("spread", "kafka:t"), "WINDOW: missing; give it, or --off"),
        (("spread", "kafka:t", "2d"), "window: got 2d; at most 1d"),
        (("retry", "kafka:t"), "--max-attempts: missing; give it, another option, or --off"),
        (("retry", "kafka:t", "--jitter", "2"), "--jitter: got 2.0; give a share"),
        (("pause", "nowhere"), "destination: no broker is named 'nowhere'"),
        (("show", "kafka:"), "destination: "),
        (("purge", "kafka:t", "--confirm", "kafka:u"), "--confirm: got 'kafka:u'"),
    ],
)
def test_wrong_command_lines_change_nothing(
    run: Run, redis_url: str, namespace: str, words: tuple[str, ...], error: str
) -> None:
    refused = run("destination", *words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {error}")
    with redis.Redis.from_url(redis_url) as connection:
        assert not connection.exists(keys.destinations(namespace))


def test_workers_that_know_no_rules_are_named(run: Run, store: Store, namespace: str) -> None:
    run("schedule", "kafka:t", "x", *HOUR)
    old, new = {"version": "0.1.0"}, {"version": "0.2.0", "paused": []}
    for name, info in (("old", old), ("new", new)):
        told = json.dumps(info).encode()
        store.run([registry.announce(namespace, name, "i", 60_000, told)])
    assert run("destination", "ls").err == ""  # no rule, nothing to ignore
    paused = run("destination", "pause", "kafka:t")
    assert "workers of an older version ignore these rules: old\n" in paused.err
    assert run("--json", "destination", "ls").objects[0]["ignored_by"] == ["old"]


def test_odd_rules_and_damage_are_reported_and_nothing_else_is_lost(
    run: Run, redis_url: str, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", *HOUR)
    run("destination", "limit", "kafka:t", "--rate", "5")
    with redis.Redis.from_url(redis_url) as connection:
        name = keys.destinations(namespace)
        connection.hset(name, "kafka:\x1b[31m", '{"rate": -1}')
        connection.hset(name, b"\xff\xfe", b"\xff not JSON")
        listed = run("destination", "ls")
        assert listed.code == 0
        assert "\x1b" not in listed.out + listed.err
        assert "ignored in the rule of kafka:\\x1b[31m: rate: " in listed.err
        assert "limited 5/s" in listed.out
        connection.set(name, "a string")
        listed = run("destination", "ls")
        assert listed.code == 0
        assert "not everything could be read; see: delaybridge doctor" in listed.err
        refused = run("destination", "pause", "kafka:t")
        assert (refused.code, refused.out) == (5, "")


def test_a_place_of_an_unknown_broker_is_shown_with_a_warning(run: Run) -> None:
    shown = run("destination", "show", "kafak:t")
    assert (shown.code, "no broker is named 'kafak' here; configured: " in shown.err) == (3, True)
    purged = run("destination", "purge", "kafak:t", "--dry-run")
    assert (purged.code, "no broker is named 'kafak' here" in purged.err) == (0, True)


def test_a_place_that_nobody_knows_is_said_to_be_unknown(run: Run) -> None:
    unused = "kafka:ordres: no message and no rule there; see: delaybridge destination ls\n"
    shown = run("destination", "show", "kafka:ordres")
    assert (shown.code, shown.err) == (3, unused)
    resumed = run("destination", "resume", "kafka:ordres")
    assert (resumed.code, resumed.err) == (0, f"{unused}kafka:ordres itself was not paused\n")
    purged = run("destination", "purge", "kafka:ordres", "--confirm", "kafka:ordres")
    assert (purged.code, purged.err) == (0, f"{unused}no message matches\n")
    paused = run("destination", "pause", "kafka:ordres")
    assert paused.err == "kafka:ordres: no message there; see: delaybridge destination ls\n"
    assert run("destination", "show", "kafka:ordres").code == 0  # it has a rule
    run("schedule", "kafka:orders", "x", *HOUR)
    assert run("destination", "show", "kafka:orders").err == ""
    run("destination", "pause", "kafka")
    held = run("destination", "resume", "kafka:ordres")
    assert held.err.endswith("still paused: delaybridge destination resume kafka\n")
    assert "itself was not paused" not in held.err


def test_the_highest_rate_is_shown_in_digits(run: Run) -> None:
    assert "rate=1000000/s" in run("destination", "limit", "kafka:t", "--rate", "1e6").out
    assert "limited 8.333333/s" in run("destination", "limit", "kafka:t", "--rate", "500/m").out


async def test_a_purge_takes_every_message_of_a_place_in_whatever_state(
    make: Maker, redis_url: str, namespace: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    messages = [Message(MANY[n % 4], b"", delay=3600, id=f"{n}") for n in range(600)]
    await client.schedule_many(messages)
    assert await client.purge("rabbitmq:orders") == {Answer.CANCELLED: 450}
    assert await client.purge("rabbitmq:orders") == {}
    left = named((await client.destinations()).places)
    assert left["rabbitmq:/jobs"].delayed == (150, 0)
    assert await client.purge("rabbitmq") == {Answer.CANCELLED: 150}


async def test_a_purge_of_a_paused_destination_takes_its_parked_messages_and_delivers_none(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start()
    await crew.shared("w")
    await crew.client.pause("memory:paused")

    async def obeyed() -> bool:
        return "memory:paused" in (await crew.client.stats()).workers[0].said.paused

    await until_async(obeyed, "the worker obeys the pause")
    some = [Message("memory:paused", b"", delay=0.05 * n, id=f"p{n}") for n in range(100)]
    other = [Message("memory:other", b"", delay=0.05 * n, id=f"o{n}") for n in range(40)]
    await crew.client.schedule_many([*some, *other])

    async def is_parked() -> bool:
        return bool((await crew.client.destinations("memory:paused")).places[0].parked.messages)

    await until_async(is_parked, "some are parked")
    (stored,) = (await crew.client.pending(state="parked", limit=1)).items
    assert stored.reason == "paused: memory:paused; see: delaybridge destination show memory:paused"
    answers = await crew.client.purge("memory:paused")
    assert answers == {Answer.CANCELLED: 100}
    await crew.client.resume("memory:paused")
    await arrived.all([message.id for message in other if message.id])
    assert not [id for id in arrived.at_ms if id.startswith("p")]


async def test_a_purge_while_messages_fall_due_never_delivers_what_it_answered_purged(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.start()
    await crew.shared("w")
    monkeypatch.setattr(steering, "_CALL_MESSAGES", 20)
    ids = [f"m{n}" for n in range(400)]
    await crew.client.schedule_many(
        [Message("memory:t", b"", delay=0.005 * n, id=id) for n, id in enumerate(ids)]
    )
    answered: dict[str, Answer] = {}
    cancel_many = crew.client.cancel_many

    async def noted(messages: Any) -> list[Answer]:
        answers = await cancel_many(messages)
        answered.update(zip([one.id for one in messages], answers, strict=True))
        return answers

    monkeypatch.setattr(crew.client, "cancel_many", noted)
    while len(arrived.at_ms) < 20:
        await asyncio.sleep(0)
    counts = await crew.client.purge("memory:t")
    purged = {id for id, answer in answered.items() if answer is Answer.CANCELLED}
    assert counts[Answer.CANCELLED] == len(purged) > 50
    await arrived.all([id for id in ids if id not in purged])
    assert not purged & arrived.at_ms.keys()


def test_the_purge_of_the_command_line_looks_again_until_nothing_is_left(
    run: Run, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come while it runs stand for those that move back to a state already read."""
    with Client(redis_url, namespace=namespace) as client:
        some = [Message("kafka:t", b"", delay=3600, id=f"m{n}", key="k") for n in range(5)]
        client.schedule_many(some)
        cancel_many, late = Client.cancel_many, ["m5", "m6"]

        def scheduling(self: Client, messages: Any, **fields: Any) -> list[Answer]:
            while late:
                client.schedule("kafka:t", b"", delay=3600, id=late.pop(), key="k")
            return cancel_many(self, messages, **fields)

        monkeypatch.setattr(Client, "cancel_many", scheduling)
        purged = run("destination", "purge", "kafka:t", "--confirm", "kafka:t")
        monkeypatch.undo()
        assert (purged.code, purged.err) == (0, "7 cancelled\n")
        assert client.pending().items == []


def test_counters_of_a_purge_count_late_messages_once() -> None:
    purge = steering.Purge("kafka:t")
    purge.count([Answer.CANCELLED, Answer.IN_FLIGHT, Answer.IN_FLIGHT])
    purge.end_pass()
    assert not purge.is_done
    purge.count([Answer.IN_FLIGHT])
    purge.end_pass()
    assert purge.is_done
    assert purge.answers == Counter({Answer.CANCELLED: 1, Answer.IN_FLIGHT: 1})


def test_a_destination_in_trouble_is_shown_with_the_reason(
    run: Run, store: Store, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", *HOUR)
    info = {"brokers": {"kafka": None, "eu": "down: refused"}, "paused": [], "parked": {}}
    info |= {"parked": {"kafka:t": "open: unroutable"}}
    store.run([registry.announce(namespace, "w", "i", 60_000, json.dumps(info).encode())])
    rows = {each["destination"]: each for each in run("--json", "destination", "ls").objects}
    assert (rows["kafka:t"]["state"], rows["kafka:t"]["trouble"]) == (
        "trouble",
        "open: unroutable (w)",
    )
    assert rows["eu"]["state"] == "trouble"
    info |= {"parked": {"kafka:t": SLOW}}  # what is announced while the last ones go out
    store.run([registry.announce(namespace, "w", "i", 60_000, json.dumps(info).encode())])
    assert "trouble" not in run("destination", "show", "kafka:t").out
    info |= {"parked": {"kafka:t": "open: unroutable"}}
    store.run([registry.announce(namespace, "w", "i", 60_000, json.dumps(info).encode())])
    assert until(lambda: "trouble" in run("destination", "show", "kafka:t").out)


async def test_what_an_operator_holds_back_is_not_late(
    crew: Crew, arrived: Arrived, run: Run
) -> None:
    """A paused destination's messages wait, another destination's failure still counts."""
    crew.start()
    await crew.shared("w")
    await crew.client.pause("memory:paused")
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
    await crew.client.resume("memory:paused")
    assert (await crew.client.stats()).paused == []


def announced(store: Store, namespace: str, **about: Any) -> None:
    about = {"brokers": {}, "paused": [], "parked": {}, **about}
    store.run([registry.announce(namespace, "w", "i", 60_000, json.dumps(about).encode())])


def test_health_says_what_workers_cannot_do_each_second(
    run: Run, store: Store, namespace: str
) -> None:
    announced(store, namespace, failing={"recurring": "redis: full", "series": "redis: odd"})
    shown = run("health").out
    assert "recurring messages are not made: redis: full (w)" in shown
    assert "no rates are recorded: redis: odd (w)" in shown
    store.redis.set(keys.series(namespace), "x")
    reason = f"redis: one of these keys has a wrong type: {keys.series(namespace)}; which one"
    announced(store, namespace, failing={"series": reason})
    assert run("health").out.count("no rates are recorded") == 1


def test_stats_health_and_workers_show_what_is_paused(
    run: Run, store: Store, namespace: str, monkeypatch: pytest.MonkeyPatch
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


def test_doctor_warns_of_forgotten_unserved_and_odd_rules(
    run: Run, redis_url: str, store: Store, namespace: str
) -> None:
    run("schedule", "kafka:t", "x", *HOUR)
    announced(store, namespace, brokers={"kafka": None})
    with redis.Redis.from_url(redis_url) as connection:
        name = keys.destinations(namespace)
        connection.hset(name, "kafka:old", '{"paused": true, "paused_ms": 1800000000}')
        connection.hset(name, "kafka:new", '{"paused": true, "paused_ms": 9000000000000}')
        connection.hset(name, "gone:x", '{"rate": 5}')
        connection.hset(name, "kafka:odd", '{"rate": "fast"}')
        found = {each["text"]: each["level"] for each in run("--json", "doctor").objects}
        old = next(text for text in found if text.startswith("kafka:old is paused for "))
        assert old.endswith("Resume it: delaybridge destination resume kafka:old")
        assert not [text for text in found if "kafka:new" in text]
        assert [
            level for text, level in found.items() if "no broker named gone is configured" in text
        ] == ["warn"]
        assert [level for text, level in found.items() if "kafka:odd: rate: " in text] == ["fail"]
        store.run([registry.announce(namespace, "w", "i", 60_000, b"{}")])
        assert "the rules are ignored by workers of an older version: w" in run("doctor").out
        assert "workers of an older version ignore rules: w" in run("health").out
        connection.delete(name)
        connection.set(name, "text")
        result = run("doctor")
        assert result.code == 1
        assert "is not a hash: workers keep the rules that they know" in result.out
        health = json.loads(run("--json", "health").out)
        assert not [fault for fault in health["faults"] if name in fault], "no worker is restarted"
        assert [note for note in health["notes"] if f"{name} is not a hash: workers keep" in note]
        for command in (
            "destination pause kafka:t",
            "destination resume kafka",
            "definitions export",
        ):
            failed = run(*command.split())
            assert (failed.code, failed.err.count("\n")) == (5, 1)
            assert f"{name} has a wrong type; move it away: redis-cli RENAME '{name}'" in failed.err

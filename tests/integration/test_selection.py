"""Bulk verbs: a selection finds the right messages, each once, and each gets its answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message, MessageError, Selection
from delaybridge.message import Answer, State
from delaybridge.operate import cli
from delaybridge.store.messages import selection
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import World

AT = "2035-01-01T00:00:0{}Z"
AT_MS = 2_051_222_400_000
BROKERS = {"rabbitmq": "amqp://h", "eu": "amqp://eu", "kafka": "kafka://h"}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, so that a few messages fill several."""
    monkeypatch.setattr(selection, "PAGE_MESSAGES", 2)


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    """A client of a namespace of this test's own."""
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client
    with redis.Redis.from_url(redis_url) as connection:
        connection.delete(*connection.scan_iter(f"{{{namespace}*", count=10_000))


def found(client: Client, **fields: Any) -> list[str]:
    """The ids that a selection finds, sorted."""
    return sorted(one.id for page in client.select(Selection(**fields)) for one in page)


PLACES = ("rabbitmq:orders/a", "rabbitmq:orders/b", "eu:orders/a", "rabbitmq:/q", "kafka:orders")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "01234"),
        ({"destination": "rabbitmq:orders/a"}, "0"),
        ({"destination": "rabbitmq:%6Frders/a"}, "0"),
        ({"destination": "rabbitmq:orders"}, "01"),
        ({"destination": "rabbitmq:orders/*"}, "01"),
        ({"destination": "rabbitmq:%6Frders", "place": "rabbitmq:orders/a"}, "0"),
        ({"destination": "rabbitmq:/q"}, "3"),
        ({"destination": "rabbitmq:order"}, ""),
        ({"destination": "rabbitmq"}, "013"),
        ({"destination": "nowhere"}, ""),
        ({"exchange": "rabbitmq:orders"}, "01"),
        ({"exchange": "rabbitmq:orders/*"}, "01"),
        ({"exchange": "orders"}, "0124"),
        ({"exchange": "order"}, ""),
        ({"exchange": "kafka:orders"}, "4"),
        ({"exchange": "rabbitmq:"}, "3"),
        ({"exchange": ""}, "3"),
        ({"due_from_ms": AT_MS + 1000, "due_to_ms": AT_MS + 3000}, "123"),
        ({"due_to_ms": AT_MS - 1}, ""),
        ({"exchange": "orders", "due_to_ms": AT_MS + 1000}, "01"),
        ({"states": (State.PARKED,)}, ""),
        ({"reason": "unroutable"}, ""),
    ],
    ids=str,
)
def test_a_selection_finds_the_messages_that_fit_every_field(
    client: Client, fields: dict[str, Any], expected: str
) -> None:
    client.schedule_many(
        Message(place, b"", at=AT.format(number), id=f"{prefix}{number}", priority=number)
        for number, place in enumerate(PLACES)
        for prefix in ("m", "n")
    )
    assert found(client, **fields, id_prefix="m") == [f"m{number}" for number in expected]
    assert len(found(client, **fields)) == 2 * len(expected)


def test_messages_to_a_broker_that_the_client_does_not_know_are_found_too(
    client: Client, redis_url: str, namespace: str
) -> None:
    client.schedule("eu:orders/a", b"", delay=60, id="a")
    with Client(redis_url, namespace=namespace) as stranger:
        assert found(stranger, destination="eu:orders/a") == ["a"]
        assert found(stranger, destination="eu:orders/*") == ["a"]
        assert found(stranger, exchange="eu:orders") == ["a"]
        assert found(stranger, exchange="orders") == ["a"]
        assert found(stranger, exchange="a") == []


def test_each_message_is_moved_once_even_if_it_stays_in_the_set_being_read(client: Client) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60 + n, id=f"m{n}") for n in range(60))
    answers: list[Answer] = []
    for page in client.select(Selection()):
        answers += client.reschedule_many(page, delay=120)
    assert answers == [Answer.RESCHEDULED] * 60


def test_messages_due_at_once_are_found_on_whatever_page(client: Client) -> None:
    client.schedule_many(
        Message("kafka:t", b"", at=AT.format(n // 5), id=f"m{n}", key="one bucket")
        for n in range(10)
    )
    every = [f"m{n}" for n in range(10)]
    assert found(client, due_from_ms=AT_MS) == every
    assert found(client, due_from_ms=AT_MS, due_to_ms=AT_MS) == every[:5]
    assert found(client) == every


def test_many_messages_are_due_as_far_apart_as_asked(client: Client) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60, id=id) for id in ("a", "b", "c"))
    answers = client.reschedule_many(["a", "b", "c"], at=AT.format(0), spread_ms=[0, 500, 70])
    assert answers == [Answer.RESCHEDULED] * 3
    due_ms = [stored.due_ms - AT_MS for id in ("a", "b", "c") if (stored := client.get(id))]
    assert due_ms == [0, 500, 70]


def test_a_spread_with_another_number_of_values_is_refused_and_nothing_moves(
    client: Client,
) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60, id=id) for id in ("a", "b"))
    before = [client.get(id) for id in ("a", "b")]
    for spread_ms in ([5], [5, 5, 5]):
        with pytest.raises(MessageError, match="spread_ms: bad_time: "):
            client.reschedule_many(["a", "b"], delay=120, spread_ms=spread_ms)
    assert [client.get(id) for id in ("a", "b")] == before


def test_a_field_of_a_wrong_type_is_refused(client: Client) -> None:
    client.schedule("kafka:t", b"", delay=60)
    for field in (
        *({"header": wrong} for wrong in (("a", "b"), ["a"], b"a", 5, {}, "", "=b")),
        *({"attempts": wrong} for wrong in (-1, "1", None, (1,))),
        *({"states": wrong} for wrong in ("delayed", ("x",), None)),
        *({"id_prefix": wrong} for wrong in (b"a", 5)),
        *({"due_to_ms": "1"}, {"place": 5}, {"reason": ("a",)}),
    ):
        with pytest.raises(MessageError):
            found(client, **field)


def test_each_answer_is_true_even_if_the_message_has_moved_on(
    client: Client, store: Store, redis_url: str, namespace: str
) -> None:
    # Given one message in each state, and one that is handed to the broker
    for number in range(5):
        client.schedule("kafka:t", b"", delay=0, id=f"m{number}", key="x", priority=9 - number)
    client.schedule("kafka:t", b"", delay=60, id="m5", key="x")
    with World.of_key(store, redis_url, namespace, b"x") as world:
        owner = world.owner()
        copies = owner.claim()
        owner.park(copies[0])
        owner.bury(copies[1], counted=False)
        owner.fire(copies[2].score)
        # When all are cancelled
        every = Selection(states=(*selection.PENDING, State.DEAD))
        answers = {
            one.id: answer
            for page in client.select(every)
            for one, answer in zip(page, client.cancel_many(page), strict=True)
        }
        # Then only the one with the broker is left
        cancelled = dict.fromkeys(("m0", "m1", "m3", "m4", "m5"), Answer.CANCELLED)
        assert answers == cancelled | {"m2": Answer.IN_FLIGHT}
        assert found(client, states=tuple(State)) == ["m2"]
        assert client.cancel_many(["m1", "m2", "zz"]) == ["unknown", "in_flight", "unknown"]


def test_dead_messages_are_found_by_their_reason(
    client: Client, store: Store, redis_url: str, namespace: str
) -> None:
    for id in ("a", "b"):
        client.schedule("kafka:t", b"", delay=0, id=id, key="x")
    with World.of_key(store, redis_url, namespace, b"x") as world:
        owner = world.owner()
        for copy in owner.claim():
            owner.bury(copy, counted=False)
        dead = {"states": (State.DEAD,)}
        assert found(client, **dead, reason="refused") == ["a", "b"]
        assert found(client, **dead, reason="refuse") == []
        assert found(client, **dead, due_to_ms=AT_MS) == ["a", "b"]
        assert found(client, **dead, due_from_ms=AT_MS) == []
        (page,) = [page for page in client.select(Selection(**dead)) if page]
        assert client.dead.kick_many(page[:1], spread_ms=[60_000]) == [Answer.KICKED]
        assert client.dead.discard_many(page) == [Answer.UNKNOWN, Answer.DISCARDED]


def test_messages_that_are_tried_again_are_found_by_their_last_error(
    client: Client, store: Store, redis_url: str, namespace: str
) -> None:
    for id in ("a", "b"):
        client.schedule("kafka:t", b"", delay=0, id=id, key="x")
    with World.of_key(store, redis_url, namespace, b"x") as world:
        owner = world.owner()
        copies = owner.claim()
        owner.fire(copies[-1].score)
        owner.retry(copies[0], delay_ms=60_000)
        assert found(client, reason="refused") == [copies[0].id]
        assert found(client, reason="refuse") == []


@pytest.mark.parametrize("key", ["due", "calls"])
def test_a_damaged_bucket_does_not_stop_a_bulk_verb_in_the_others(
    client: Client, redis_url: str, namespace: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60, key=str(n)) for n in range(40))
    name = keys.bucket_key(namespace, 0, key)
    lost = client.stats().buckets[0].delayed
    assert lost
    with redis.Redis.from_url(redis_url) as connection:
        connection.set(name, "x")
    flags = ["--redis", redis_url, "--namespace", namespace]
    sweep = [*flags, "message", "cancel", "--exchange", "t"]
    assert cli.main([*sweep, "--yes"]) == 5
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == f"{40 - lost} cancelled"
    assert printed[1].startswith(f"error: redis: {name}")
    assert cli.main([*sweep, "--dry-run"]) == (5 if key == "due" else 0)


async def test_the_asyncio_client_does_the_same(
    client: Client, redis_url: str, namespace: str
) -> None:
    client.schedule_many(Message("kafka:t", b"", delay=60, id=f"m{n}") for n in range(9))
    async with AsyncClient(redis_url, namespace=namespace) as mine:
        assert await mine.reschedule_many(["m0"], delay=1, spread_ms=[5]) == ["rescheduled"]
        answers = [
            a async for page in mine.select(Selection()) for a in await mine.cancel_many(page)
        ]
        assert answers == [Answer.CANCELLED] * 9
        assert (
            await mine.dead.kick_many(["m0"]) + await mine.dead.discard_many(["m0"])
            == ["unknown"] * 2
        )

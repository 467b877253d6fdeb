"""The horizon: each message is in the cell in which it falls due; an estimate says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from delaybridge import Client, Horizon, Message, MessageError
from delaybridge.operate import cli
from delaybridge.operate.views.horizon import read_horizon
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.bucket import Bucket, Item
from delaybridge.store.protocol.record import split_record
from delaybridge.store.redis.store import Store
from tests.rigs.flavours import FLAVOURS, Maker

HOUR_MS = 3_600_000
BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h"}


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def redis_ms(store: Store) -> int:
    seconds, micros = store.redis.time()
    return int(seconds * 1000 + micros // 1000)


async def test_each_message_is_in_the_cell_in_which_it_falls_due(
    make: Maker, redis_url: str, namespace: str, store: Store
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    start_ms = redis_ms(store) // HOUR_MS * HOUR_MS + 2 * HOUR_MS  # none is due meanwhile
    dues = [start_ms - 1, start_ms, start_ms, start_ms + HOUR_MS - 1, start_ms + 2 * HOUR_MS]
    dues += [start_ms + 100 * HOUR_MS]
    await client.schedule_many(
        # The highest priority is due at the whole millisecond, the others a little later.
        [Message("kafka:t", b"x", at=at(ms), priority=n % 2 * 255) for n, ms in enumerate(dues)]
    )
    receipt = await client.schedule("kafka:t", b"x", delay=0)
    found: Horizon = await client.horizon("6h", "1h")
    while found.now_ms <= receipt.due_ms:
        found = await client.horizon("6h", "1h")
    assert found.cells[0].from_ms == found.now_ms
    assert found.cells[-1].to_ms == found.now_ms + 6 * HOUR_MS
    next_ms = found.now_ms // HOUR_MS * HOUR_MS + HOUR_MS
    assert [cell.from_ms for cell in found.cells[1:]] == [next_ms + n * HOUR_MS for n in range(6)]
    expected = {start_ms - HOUR_MS: 1, start_ms: 3, start_ms + 2 * HOUR_MS: 1}
    for cell in found.cells:
        assert cell.messages == expected.get(cell.from_ms // HOUR_MS * HOUR_MS, 0), cell
        assert cell.error == 0
    assert (found.messages, found.overdue, found.later) == (5, 1, 1)
    assert found.next_due_ms == start_ms - 1
    assert found.busiest is not None and found.busiest.messages == 2
    assert found.busiest.from_ms == start_ms
    assert found.busiest.to_ms == start_ms + 60_000


def test_messages_in_flight_and_parked_are_counted_apart(
    redis_url: str, namespace: str, store: Store
) -> None:
    with Client(redis_url, namespace=namespace, brokers=BROKERS, buckets=1) as client:
        ids = [each.id for each in client.schedule_many([Message("kafka:t", b"", delay=60)] * 4)]
        birth = store.run([registry.read_birth(namespace)])[0]
        bucket = Bucket(namespace, 0, birth[1])
        (held,) = store.run([bucket.acquire("w:1", 60_000)])
        claim = bucket.claim(
            held.token, 60_000, held.turn, ahead_ms=HOUR_MS, limit=3, max_bytes=10_000
        )
        (claimed,) = store.run([claim])
        item = Item(claimed.ids[0].decode(), claimed.number, split_record(claimed.records[0])[0])
        store.run([bucket.park(held.token, 60_000, [item])])
        found = client.horizon("1h")
        assert (found.messages, found.in_flight, found.parked) == (1, 2, 1), ids
        assert client.horizon("1h", destination="kafka:t").messages == 1


@pytest.fixture
def client(redis_url: str, namespace: str) -> Any:
    with Client(redis_url, namespace=namespace, brokers=BROKERS) as client:
        yield client


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("rabbitmq:orders/a", 1),
        ("rabbitmq:orders", 3),
        ("rabbitmq", 4),
        ("kafka:t", 5),
        ("kafka:x", 0),
    ],
)
def test_few_messages_of_a_destination_are_counted(client: Client, place: str, count: int) -> None:
    places = ["rabbitmq:orders/a"] + ["rabbitmq:orders/b"] * 2 + ["rabbitmq:/q"] + ["kafka:t"] * 5
    client.schedule_many([Message(each, b"x", delay="30m") for each in places])
    client.schedule(places[0], b"x", delay="3h")
    found = client.horizon("1h", destination=place)
    assert found.messages == sum(cell.messages for cell in found.cells) == count
    assert not found.is_estimated
    assert found.later == (place[:1] == "r")
    assert (found.next_due_ms is not None) == (count > 0)
    with pytest.raises(MessageError, match="no broker is named 'x'"):
        client.horizon("1h", destination="x")


def test_many_messages_of_a_destination_are_estimated_within_the_error(client: Client) -> None:
    many = [Message(f"kafka:{n // 60 % 5}", b"x", delay=60 * (n % 60) + 1) for n in range(20_000)]
    client.schedule_many(many)
    client.schedule_many([Message("kafka:rare", b"x", delay=5)])
    exact = client.horizon("1h", "10m")
    # From the same instant, so that the cells are the same.
    asked = 3_600_000, 600_000, "kafka:3", exact.now_ms
    found = client.run(lambda calls: read_horizon(calls, *asked))
    assert found.is_estimated and found.next_due_ms is None
    for cell, whole in zip(found.cells, exact.cells, strict=True):
        assert cell.error <= max(0.2 * whole.messages, 10)
        # One of five, and the bound of this test is three times the stated error.
        assert abs(cell.messages - whole.messages / 5) <= 3 * cell.error + 2
    rare = client.horizon("1h", "10m", destination="kafka:rare")
    assert sum(cell.error for cell in rare.cells) >= 1, "nothing found is not: there is none"


@pytest.mark.parametrize(
    ("span", "step", "field", "said"),
    [
        ("0s", None, "span", "zero"),
        ("1h", "0s", "step", "zero"),
        ("1h", "2h", "step", "longer than the span"),
        ("10d", "500ms", "step", "1,728,000 cells are too many; at most 1,000"),
        ("4000000d", None, "span", "beyond the year 3000"),
        ("tomorrow", None, "span", "write a number with a unit"),
        (None, None, "span", "missing"),
        (-1, None, "span", "below zero"),
    ],
)
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_bad_arguments_name_their_field(
    flavour: Any, span: Any, step: Any, field: str, said: str
) -> None:
    client = flavour("redis://127.0.0.1:1/0")
    with pytest.raises(MessageError, match=said) as error:
        if (asked := client.horizon(span, step)) is not None:
            await asked
    assert error.value.field == field


def test_many_buckets_have_fewer_cells(redis_url: str, namespace: str) -> None:
    with Client(redis_url, namespace=namespace, buckets=1024) as client:
        assert len(client.horizon("3h", "1m").cells) in (180, 181)
        with pytest.raises(MessageError, match="at most 195 of"):
            client.horizon("1000m", "1m")


def test_a_far_future_is_counted(client: Client) -> None:
    client.schedule("kafka:t", b"x", delay="300d")
    found = client.horizon("330000d", "1000d")
    assert (found.messages, found.later) == (1, 0)


def test_the_command_prints_bars_that_fit_80_columns_and_json(
    client: Client, store: Store, redis_url: str, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # At one instant: else a new minute may begin among them, and the peak is lower.
    client.schedule_many([Message("kafka:t", b"x", at=at(redis_ms(store) + 5_400_000))] * 1500)
    client.schedule("kafka:t", b"x", delay="4h")
    command = ["--redis", redis_url, "--namespace", namespace, "horizon", "--for", "6h"]
    assert cli.main([*command, "--step", "1h"]) == 0
    out, _ = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    assert "1,500  <- peak" in out and "#" * 30 in out.replace("█", "#")
    assert "1,501 of 1,501 pending" in out
    assert "quiet until" in out and "peak         1,500 from" in out
    assert cli.main([*command, "--step", "1h", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert sum(cell["messages"] for cell in data["cells"]) == data["messages"] == 1501
    assert data["estimated"] is False

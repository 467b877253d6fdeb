"""Which destinations each part of a span is due for: counted, or by the shares of what was read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from delaybridge import Client, Message
from delaybridge.operate.views.destinations_by_due import Mix, MixPart, read_destinations_due
from delaybridge.operate.views.horizon import Cell, Horizon, read_horizon

START_MS, SPAN_MS, STEP_MS = 2_051_222_400_000, 3_600_000, 60_000
A, B, C = NAMES = ["memory:a", "memory:b", "memory:c"]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace, brokers={"memory": "memory://"}) as found:
        yield found


def schedule(client: Client, dues: list[tuple[str, int]]) -> None:
    moments = [(to, datetime.fromtimestamp(ms / 1000, UTC)) for to, ms in dues]
    client.schedule_many(
        [Message(to, b"x", at=at, priority=n % 256) for n, (to, at) in enumerate(moments)]
    )


def looked(client: Client) -> tuple[Horizon, Mix]:
    ahead = client.run(lambda calls: read_horizon(calls, SPAN_MS, STEP_MS, None, START_MS))
    return ahead, client.run(
        lambda calls: read_destinations_due(calls, START_MS, START_MS + SPAN_MS)
    )


def test_few_messages_are_counted_in_each_cell(client: Client) -> None:
    draw = random.Random(3)
    dues = [(draw.choice(NAMES), START_MS + draw.randrange(-STEP_MS, SPAN_MS)) for _ in range(400)]
    dues += [(A, START_MS + 5 * STEP_MS), (B, START_MS + 5 * STEP_MS - 1)]  # on a border
    schedule(client, dues)
    ahead, mix = looked(client)
    for cell in ahead.cells:
        inside = Counter(to for to, ms in dues if cell.from_ms <= ms < cell.to_ms)
        assert mix.split(cell, NAMES) == [inside[name] for name in NAMES]
        assert inside.total() == cell.messages


def test_many_are_shared_out_as_those_that_were_read(client: Client) -> None:
    half = SPAN_MS // 2  # before it three of four are for a, after it all are for b
    dues = [(A if n % 4 else B, START_MS + n * half // 10_000) for n in range(10_000)]
    dues += [(B, START_MS + half + n * half // 10_000) for n in range(10_000)]
    schedule(client, dues)
    ahead, mix = looked(client)
    assert any(not part.is_whole for part in mix.parts)
    for cell in ahead.cells:
        a, b, c = mix.split(cell, [A, B, C])
        if cell.from_ms < START_MS + half:
            assert a == pytest.approx(0.75 * cell.messages, rel=0.2)
        else:
            assert a == 0
        assert a + b == pytest.approx(cell.messages, abs=1) and c == 0


def test_the_parts_of_a_cell_are_never_more_than_it_has(client: Client) -> None:
    schedule(client, [(name, START_MS + 1000) for name in NAMES])
    ahead, mix = looked(client)
    fewer = ahead.cells[0]._replace(messages=2)  # one came between the two looks
    assert mix.split(fewer, NAMES) == [1, 1, 0]


def test_an_empty_span_has_no_destinations(client: Client) -> None:
    ahead, mix = looked(client)
    assert mix.destinations == [] and mix.split(ahead.cells[0], NAMES) == [0, 0, 0]


def test_every_message_of_a_cell_is_assigned() -> None:
    part = MixPart(0, 100, False, {}, {A: 0.4, B: 0.35, C: 0.25})
    for messages in range(50):
        assert sum(Mix([], [part]).split(Cell(0, 100, messages), NAMES)) == messages
    assert Mix([], [part]).split(Cell(0, 100, 1), NAMES) == [1, 0, 0]
    assert sum(Mix([], [part]).split(Cell(0, 100, 100), [A, B])) == 75

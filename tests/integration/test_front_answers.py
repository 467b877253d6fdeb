"""The same methods, in any order and any number at once: a delayed exchange at the front answers as
an exchange of its type does at the broker."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pika import spec

from tests.rigs.front_raw import (
    Basic,
    Exchange,
    Fronts,
    Queue,
    RawClient,
    declare,
    fronts_of,
)

BATCHES, SIZES = 25, [1, 1, 2, 4, 8]
WEIGHTS = [6, 1, 4, 6, 1, 2, 1, 6, 3, 2, 1]


def plain(exchange: str, **about: Any) -> Any:
    return Exchange.Declare(exchange=exchange, type="direct", **{"durable": True} | about)


def method(draw: random.Random, names: str, is_delayed: bool) -> Any:
    """One of three exchanges and two queues, and what may be done with them."""
    x, y = (f"{names}-x{draw.randrange(3)}" for _ in range(2))
    q, k, nowait = f"{names}-q{draw.randrange(2)}", draw.choice("ab"), draw.random() < 0.3
    durable, kind = draw.random() < 0.95, declare if is_delayed else plain
    ways: list[Any] = [
        kind(x, nowait=nowait, durable=durable),
        plain(x, passive=True),
        Queue.Declare(queue=q, durable=True, nowait=nowait),
        Queue.Bind(queue=q, exchange=x, routing_key=k, nowait=nowait),
        Queue.Unbind(queue=q, exchange=x, routing_key=k),
        Exchange.Bind(destination=x, source=y, routing_key=k, nowait=nowait),
        Exchange.Unbind(destination=x, source=y, routing_key=k, nowait=nowait),
        RawClient.message(x, k, mandatory=True),
        Basic.Get(queue=q, no_ack=True),
        Exchange.Delete(exchange=x, if_unused=draw.random() < 0.5, nowait=nowait),
        Exchange.Delete(exchange=f"{x}-other"),
    ]
    return draw.choices(ways, WEIGHTS)[0]


def shown(answer: Any) -> str:
    """An answer without what a queue counts a moment later."""
    fields = {k: v for k, v in vars(answer).items() if not k.endswith("_count")}
    return f"{type(answer).__name__} {fields}"


async def answers(client: RawClient, seed: int, names: str, is_delayed: bool) -> list[list[str]]:
    """What each batch is answered; one that closes the channel ends there."""
    draw, found = random.Random(seed), []
    for size in (draw.choice(SIZES) for _ in range(BATCHES)):
        client.send(*(method(draw, names, is_delayed) for _ in range(size)), Basic.Qos())
        found.append([shown(each) async for each in _batch(client)])
    for name in range(3):
        await client.ask(Exchange.Delete(exchange=f"{names}-x{name}"))
        await client.ask(Queue.Delete(queue=f"{names}-q{name}"))
    return found


async def _batch(client: RawClient) -> AsyncIterator[Any]:
    while True:
        yield (answer := await client.taken())
        if isinstance(answer, Basic.QosOk):
            return
        if isinstance(answer, spec.Channel.Close):
            client.send(spec.Channel.CloseOk())
            assert isinstance(await client.ask(spec.Channel.Open()), spec.Channel.OpenOk)
            return


# In 14 a bind is refused while the next method waits.
FAST = 0, 14
OTHERS = [seed for seed in range(40) if seed not in FAST]
SEEDS = [*FAST, *(pytest.param(seed, marks=pytest.mark.slow) for seed in OTHERS)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_delayed_exchange_answers_as_one_of_its_type(
    rabbitmq_url: str, namespace: str, seed: int
) -> None:
    async with fronts_of(rabbitmq_url) as fronts:
        await compare(fronts, namespace, seed)


async def compare(fronts: Fronts, namespace: str, seed: int) -> None:
    direct, front = f"{namespace}-d", f"{namespace}-f"
    expected = await answers(await fronts.client(fronts.url), seed, direct, False)
    found = await answers(await fronts.client(await fronts.start()), seed, front, True)
    for at, batch in enumerate(found):
        assert [each.replace(front, direct) for each in batch] == expected[at], at

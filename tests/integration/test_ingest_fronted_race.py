"""Intakes are removed while other clients declare the same exchange again, over two fronts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from functools import partial

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.ingest.rabbitmq import fronted_intake
from delaybridge.ingest.routes import Route
from tests.rigs.fronts import Fronting
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_fronted import left, listed, route_of
from tests.rigs.ingest_rabbitmq import Exchanges

DELAY_MS, ROUNDS = 200, 200


def declared(channel: BlockingChannel, exchange: str) -> None:
    about = {"x-delayed-type": "direct"}
    channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments=about)
    channel.queue_bind(exchange, exchange, "k")


def published(channel: BlockingChannel, exchange: str, body: str, delay_ms: int) -> None:
    headers = {"x-delay": delay_ms} if delay_ms else {}
    described = pika.BasicProperties(headers=headers, message_id=body)
    channel.basic_publish(exchange, "k", body.encode(), described)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_an_exchange_deleted_and_declared_again_200_times_loses_nothing_and_none_is_early(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    redis_url: str,
    rabbitmq_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_S", "ROUTED_S"):
        monkeypatch.setattr(fronted_intake, name, 0.02)
    entrance = make_entrance(
        exchanges=[],
        front=True,
        management=["off"],
        retry={"base_ms": 50, "max_ms": 500, "max_attempts": 1000},
    )
    for _ in range(2):
        entrance.ingest("rabbitmq")
    entrance.scan()
    sent, arrived, may_end = dict[str, float](), dict[str, float](), threading.Event()

    def client(urls: list[str]) -> None:
        """Declares, publishes and deletes, each over one of the fronts."""
        rng = random.Random(38)
        connections = [pika.BlockingConnection(pika.URLParameters(url)) for url in urls]
        channels = [each.channel() for each in connections]
        for channel in channels:
            channel.confirm_delivery()
        for n in range(ROUNDS):
            channel = rng.choice(channels)
            declared(channel, namespace)
            for delay_ms in (DELAY_MS, DELAY_MS, 0):
                id = f"{n}.{len(sent)}.{delay_ms}"
                before_s = time.time()
                published(channel, namespace, id, delay_ms)
                sent[id] = before_s + delay_ms / 1000
            channel.connection.process_data_events(rng.choice((0, 0.05, 0.3)))
            rng.choice(channels).exchange_delete(namespace)
            channel.connection.process_data_events(rng.choice((0, 0.05, 0.3)))
        for each in connections:
            each.close()

    def consume(channel: BlockingChannel) -> None:
        channel.queue_declare(namespace, durable=True, arguments={"x-queue-type": "quorum"})
        for method, _, body in channel.consume(namespace, inactivity_timeout=0.1):
            if method is not None:
                channel.basic_ack(method.delivery_tag)
                arrived.setdefault(body.decode(), time.time())
            elif may_end.is_set():
                break

    with (
        Fronting(redis_url, rabbitmq_url, namespace) as first,
        Fronting(redis_url, rabbitmq_url, namespace) as second,
    ):
        consuming = asyncio.create_task(rabbit.do(consume))
        try:
            await asyncio.to_thread(client, [first.url, second.url])
            route = route_of(namespace)
            # What is due goes to no exchange now, and is tried again.
            await entrance.until(partial(left_nothing, rabbit, route), "the last intake is removed")
            assert await listed(entrance) == []
            await Exchanges(first.url).do(partial(declared, exchange=namespace))
            await entrance.until(lambda: arrived.keys() >= sent.keys(), "all arrived")
        finally:
            may_end.set()
            await consuming
    assert [id for id, due_s in sent.items() if arrived[id] < due_s] == [], "early"


async def left_nothing(rabbit: Exchanges, route: Route) -> bool:
    return await left(rabbit, route) == []

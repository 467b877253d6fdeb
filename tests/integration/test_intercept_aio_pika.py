"""aio_pika's drop-in: plain publishes, delayed messages, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import aio_pika
import pytest
from aio_pika import DeliveryMode, Message

from delaybridge import AsyncClient, MessageError, StoreUnavailable
from delaybridge.intercept import aio_pika as delaying
from tests.rigs.rabbitmq_site import NUMBERS_REFUSED, REFUSED, WAYS, Raw, Site
from tests.servers.process import LOOPBACK, free_port

PUBLISHED = [
    pytest.param(b"\x00\xff", {}, id="nothing but a body"),
    pytest.param(
        b"",
        {
            "headers": {
                "text": "é€𐍈",
                "bytes": bytearray(b"\x00\xff"),
                "yes": True,
                "int8": 1,
                "int16": -300,
                "uint16": 65_000,
                "int32": -(2**31),
                "uint32": 2**32 - 1,
                "int64": 2**63 - 1,
                "float": 1.9,
                "none": None,
                "naive": datetime(2030, 1, 2, 3, 4, 5),
                "decimal": Decimal("-1.50"),
                "list": [1, "a", [None, [[[2.5]]]]],
                "dict": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
            }
        },
        id="headers of every type",
    ),
    pytest.param(
        b"{}",
        {
            "content_type": "application/json",
            "content_encoding": "gzip",
            "delivery_mode": DeliveryMode.PERSISTENT,
            "priority": 7,
            "correlation_id": "c",
            "reply_to": "back",
            "expiration": timedelta(seconds=60.5),
            "timestamp": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
            "type": "order",
            "user_id": "guest",
            "app_id": "shop",
        },
        id="every property",
    ),
]


@pytest.fixture
def site(rabbitmq_site: Site) -> Site:
    return rabbitmq_site


@pytest.fixture
async def client(site: Site) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(site.redis_url, namespace=site.namespace) as client:
        yield client


@pytest.fixture(params=["connect", "connect_robust"])
async def channel(
    request: pytest.FixtureRequest, site: Site, client: AsyncClient
) -> AsyncIterator[Any]:
    """For both kinds of connection."""
    async with await getattr(delaying, request.param)(site.url, client=client) as connection:
        yield await connection.channel()


@pytest.fixture
async def robust(site: Site, client: AsyncClient) -> AsyncIterator[Any]:
    async with await delaying.connect_robust(site.url, client=client) as connection:
        yield await connection.channel()


@pytest.fixture
async def plain(site: Site) -> AsyncIterator[Any]:
    async with await aio_pika.connect(site.url) as connection:
        yield (await connection.channel()).default_exchange


async def take(site: Site, queue: str) -> Raw:
    return await asyncio.to_thread(site.take, queue)


@pytest.mark.parametrize(("body", "properties"), PUBLISHED)
async def test_a_message_without_a_delay_is_published_by_aio_pika_itself(
    site: Site, channel: Any, plain: Any, body: bytes, properties: Any
) -> None:
    queue = site.queue()
    message = Message(body, message_id="m", **properties)
    answers = [
        await exchange.publish(message, queue) for exchange in (plain, channel.default_exchange)
    ]
    assert type(answers[0]) is type(answers[1])
    assert (await take(site, queue)).bytes == (await take(site, queue)).bytes


@pytest.mark.parametrize(("body", "properties"), PUBLISHED)
async def test_a_delayed_message_arrives_as_aio_pika_would_have_sent_it(
    site: Site, channel: Any, plain: Any, body: bytes, properties: Any
) -> None:
    queue = site.queue()
    message = Message(body, message_id=f"é-{queue}", **properties)
    before = message.info()
    await plain.publish(message, queue)
    receipt = await channel.default_exchange.publish(message, queue, delay="300ms")
    assert receipt == "created"
    assert receipt.id == message.message_id
    assert message.info() == before
    direct, delayed = await take(site, queue), await take(site, queue)
    site.check_same(direct, delayed, receipt.id, receipt.due_ms)


async def test_a_message_without_an_id_gets_the_id_of_its_receipt(site: Site, robust: Any) -> None:
    queue = site.queue()
    receipt = await robust.default_exchange.publish(Message(b"x"), queue, delay=0)
    arrived = await take(site, queue)
    assert arrived.properties["message_id"] == arrived.headers["delaybridge-id"] == receipt.id


async def test_every_exchange_of_the_channel_delays(site: Site, channel: Any) -> None:
    queue = site.queue()
    name = site.exchange(f"{queue}/a:b", queue)
    declared = await channel.declare_exchange(f"{queue}-new", "topic", durable=True)
    bound = await channel.get_queue(queue)
    await bound.bind(declared, "#")
    exchanges = [
        declared,
        await channel.get_exchange(name),
        await channel.get_exchange(name, ensure=False),
    ]
    for exchange in exchanges:
        await exchange.publish(Message(b"x"), "a.b/c:d", delay=0.05)
        arrived = await take(site, queue)
        assert (arrived.exchange, arrived.routing_key) == (exchange.name, "a.b/c:d")


async def test_an_exchange_delays_while_its_connection_is_down(site: Site, robust: Any) -> None:
    queue = site.queue()
    exchange = await robust.get_exchange(site.exchange(f"{queue}-x", queue))
    underlying = await robust.get_underlay_channel()
    await underlying.connection.close()
    assert underlying.is_closed
    receipt = await exchange.publish(Message(b"while it is down"), "k", delay=0)
    assert (await take(site, queue)).headers["delaybridge-id"] == receipt.id


@pytest.mark.parametrize(("headers", "arguments"), WAYS)
async def test_every_way_to_give_a_time_delays_the_message(
    site: Site, robust: Any, headers: dict[str, Any], arguments: Any
) -> None:
    queue, sent_ms = site.queue(), time.time() * 1000
    message = Message(b"x", headers=headers)
    receipt = await robust.default_exchange.publish(message, queue, **arguments())
    await asyncio.to_thread(site.check_way, queue, headers, receipt, sent_ms)


@pytest.mark.parametrize("by", ["message_id", "header", "receipt"])
async def test_a_delayed_message_is_cancelled_and_rescheduled_by_its_id(
    site: Site, robust: Any, client: AsyncClient, by: str
) -> None:
    queue = site.queue()
    message = Message(b"x", message_id=f"m-{queue}" if by == "message_id" else None)
    if by == "header":
        message.headers["delaybridge-id"] = f"h-{queue}"
    receipt = await robust.default_exchange.publish(message, queue, delay="1h")
    if by != "receipt":
        assert receipt.id == f"{by[0]}-{queue}"
    assert await client.reschedule(receipt.id, delay=0) == "rescheduled"
    assert (await take(site, queue)).headers["delaybridge-id"] == receipt.id
    await asyncio.to_thread(site.await_settled, receipt.id)
    again = await robust.default_exchange.publish(message, queue, delay="1h")
    assert await client.cancel(again.id) == "cancelled"
    await asyncio.to_thread(site.check_nothing_left, queue)


@pytest.mark.parametrize(
    ("properties", "arguments", "code", "field"), [*REFUSED, *NUMBERS_REFUSED], ids=str
)
async def test_a_refused_message_is_neither_published_nor_stored(
    site: Site, robust: Any, properties: Any, arguments: Any, code: str, field: str
) -> None:
    queue = site.queue()
    with pytest.raises(MessageError) as caught:
        await robust.default_exchange.publish(Message(b"x", **properties), queue, **arguments)
    assert (caught.value.code, caught.value.field) == (code, field)
    await asyncio.to_thread(site.check_nothing_left, queue)


async def test_an_internal_exchange_refuses_delayed_messages_too(site: Site, robust: Any) -> None:
    exchange = await robust.declare_exchange(site.queue(), internal=True, auto_delete=True)
    for arguments in ({}, {"delay": 1}):
        with pytest.raises(ValueError, match="internal exchange"):
            await exchange.publish(Message(b"x"), "k", **arguments)


@pytest.mark.parametrize(
    ("timeout_s", "expected"), [(None, StoreUnavailable), (0.01, TimeoutError)]
)
async def test_without_redis_a_delayed_publish_raises_and_publishes_nothing(
    site: Site, timeout_s: float | None, expected: type[Exception]
) -> None:
    queue = site.queue()
    async with AsyncClient(f"redis://{LOOPBACK}:{free_port()}", timeout_s=0.2) as unreachable:
        async with await delaying.connect(site.url, client=unreachable) as connection:
            exchange = (await connection.channel()).default_exchange
            with pytest.raises(expected):
                await exchange.publish(Message(b"x"), queue, timeout=timeout_s, delay=1)
    await asyncio.to_thread(site.check_nothing_left, queue)


@pytest.mark.parametrize("connect", [delaying.connect, delaying.connect_robust])
async def test_the_client_of_the_settings_is_closed_with_the_connection(
    site: Site, connect: Any
) -> None:
    queue = site.queue()
    with site.settings():
        async with await connect(site.url, broker="rabbitmq") as connection:
            exchange = (await connection.channel()).default_exchange
            receipt = await exchange.publish(Message(b"x"), queue, delay=0)
    assert (await take(site, queue)).headers["delaybridge-id"] == receipt.id


async def test_a_client_that_was_passed_stays_open(site: Site, client: AsyncClient) -> None:
    async with await delaying.connect(site.url, client=client) as connection:
        exchange = (await connection.channel()).default_exchange
        receipt = await exchange.publish(Message(b"x"), "q", delay="1h")
    assert await client.cancel(receipt.id) == "cancelled"


def test_the_code_in_the_guide_runs_unchanged(site: Site) -> None:
    orders = site.queue()
    assert site.run_recipe("aio_pika", orders) == "cancelled\n"
    assert [site.take(orders).body for _ in range(2)] == [b"now", b"in a moment"]

"""What operators see of a front: its connections, a broker that is away, clients that wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from delaybridge import AsyncClient, Stats
from delaybridge.front.front import FrontProcess
from delaybridge.operate.metrics import health
from delaybridge.operate.metrics.reader import Reading
from delaybridge.operate.notices.announcements import FrontInfo
from delaybridge.operate.troubles.finding import FAIL, Finding
from delaybridge.operate.troubles.fronts import front_faults, fronts
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import Identity
from tests.rigs.api import api
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import until_async
from tests.servers.process import LOOPBACK, free_port

OFTEN = {"ttl_ms": 5000, "renew_ms": 100}
AWAY = Reading(error="redis: no answer")
PikaConnection = pika.BlockingConnection


class Watched:
    """A front on the test's loop, before a broker behind a proxy, and what is told of it."""

    def __init__(self, redis_url: str, namespace: str, broker_url: str) -> None:
        self.broker = urlsplit(broker_url)
        self.proxy = FaultProxy(free_port(), self.broker.port or 5672)
        self.listen = free_port()
        self.node = f"{LOOPBACK}:{self.proxy.port}"
        given: dict[str, Any] = {
            "redis": {"url": redis_url, "timeout_s": 3},
            "namespace": namespace,
            "brokers": {"rabbitmq": self._url(self.proxy.port)},
            "lease": OFTEN,
            "front": {"listen": f"{LOOPBACK}:{self.listen}", "drain_timeout_s": 0.1},
        }
        self.settings = Settings.load(overrides=given)
        self.service = FrontProcess(self.settings, Identity.of_this_process("front"))
        self._client = AsyncClient(redis_url, namespace=namespace)

    def _url(self, port: int) -> str:
        login = self.broker.netloc.rpartition("@")[0]
        return f"amqp://{login}@{LOOPBACK}:{port}{self.broker.path}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.proxy:
            task = asyncio.create_task(self.service.work())
            try:
                await until_async(self._listens, "the front listens")
                yield
            finally:
                self.service.stopping.set()
                await task
                await self._client.close()

    async def _listens(self) -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(LOOPBACK, self.listen)
            writer.close()
            return True
        return False

    async def connect(self) -> PikaConnection:
        parameters = pika.URLParameters(self._url(self.listen))
        parameters.client_properties = {"connection_name": "orders", "product": "shop 1.2"}
        parameters.blocked_connection_timeout = parameters.socket_timeout = 30
        return await asyncio.to_thread(PikaConnection, parameters)

    async def stats(self) -> Stats:
        return await self._client.stats()

    async def front(self) -> FrontInfo | None:
        return next(iter((await self.stats()).fronts), None)

    async def findings(self) -> list[Finding]:
        found = await self.stats()
        return [*front_faults(found), *fronts(found)]

    def obstacles(self) -> list[str]:
        return health.ready({"f": self.service.report()}, AWAY, patience_s=1).reasons


@pytest.fixture
async def watched(redis_url: str, namespace: str, rabbitmq_url: str) -> AsyncIterator[Watched]:
    place = Watched(redis_url, namespace, rabbitmq_url)
    async with place.running():
        yield place


def declare(connection: PikaConnection, exchange: str) -> None:
    about = {"x-delayed-type": "direct"}
    connection.channel().exchange_declare(exchange, "x-delayed-message", arguments=about)


def delete(connection: PikaConnection, exchange: str) -> None:
    connection.channel().exchange_delete(exchange)
    connection.channel().queue_delete(f"{exchange}.due.intake")


async def test_a_front_and_its_clients_are_seen_while_they_live(
    watched: Watched, redis_url: str, namespace: str
) -> None:
    connection = await watched.connect()
    await asyncio.to_thread(declare, connection, namespace)

    async def is_shown() -> bool:
        front = await watched.front()
        if not (front and front.clients and front.exchanges):
            return False
        return front.clients[0]["held_ms"] is None  # what it was asked at that moment is answered

    await until_async(is_shown, "the front announces its client and its exchange")
    front = await watched.front()
    assert front is not None
    (client,) = front.clients
    login = watched.broker.username or "guest"
    assert (client["user"], client["vhost"], client["state"]) == (login, "/", "running")
    assert (client["product"], client["name"], client["channels"]) == ("shop 1.2", "orders", 1)
    assert client["node"] == watched.node and client["held_ms"] is None
    assert client["received"] > 100 and client["sent"] > 100
    assert (front.nodes, front.exchanges) == ({watched.node: None}, (f"/ {namespace}",))
    assert not [each for each in await watched.findings() if each.level == FAIL]
    said = watched.service.report()
    assert said.totals["front_accepted_connections_total",] > 0
    assert said.front["front_connections"] == 1 and watched.obstacles() == []
    async with api(redis_url, namespace) as http:
        (listed,) = (await http.get("/v1/workers")).json()["fronts"]
        assert listed["clients"][0]["name"] == "orders"
        page = (await http.get("/connections")).text
        assert "shop 1.2" in page and watched.node in page and f"/ {namespace}" in page
    await asyncio.to_thread(delete, connection, namespace)
    await asyncio.to_thread(connection.close)

    async def is_alone() -> bool:
        found = await watched.front()
        return found is not None and found.open == 0 and not found.exchanges

    await until_async(is_alone, "the client and the exchange are gone")


async def test_a_broker_that_is_away_is_red_and_comes_back(watched: Watched) -> None:
    connection = await watched.connect()
    watched.proxy.mode = "refuse"
    watched.proxy.reset()

    async def is_cut_off() -> bool:
        front = await watched.front()
        return front is not None and front.is_cut_off

    await until_async(is_cut_off, "the front says that its broker is away")
    (fault,) = [each for each in await watched.findings() if each.level == FAIL]
    assert "reaches no node of the broker" in fault.what and watched.node in fault.what
    assert watched.node in watched.obstacles()[0]
    with pytest.raises(pika.exceptions.AMQPError):
        await asyncio.to_thread(declare, connection, "any")
    await watched.proxy.__aexit__()
    with pytest.raises(pika.exceptions.AMQPError):
        await watched.connect()

    async def is_told() -> bool:
        front = await watched.front()
        return front is not None and "clients: broker" in front.refused

    await until_async(is_told, "the front says whom it refused")
    watched.proxy.mode = "pass"
    await watched.proxy.__aenter__()

    async def is_well() -> bool:
        return not watched.obstacles() and not await is_cut_off()

    await until_async(is_well, "the broker is back")
    assert watched.service.counts.connections == set()


async def test_a_client_whose_declare_hangs_is_shown_with_what_it_waits_for(
    watched: Watched, namespace: str
) -> None:
    connection = await watched.connect()
    await asyncio.to_thread(declare, connection, namespace)  # the side connection is there now
    channel = await asyncio.to_thread(connection.channel)
    watched.proxy.mode = "hold_down"
    about = {"x-delayed-type": "direct"}
    asked = partial(channel.exchange_declare, f"{namespace}-2", "x-delayed-message")
    held = asyncio.create_task(asyncio.to_thread(asked, arguments=about))

    async def is_held() -> bool:
        front = await watched.front()
        waits = [each["held_for"] for each in front.clients] if front else []
        return waits == [f"declare {namespace}-2"]

    await until_async(is_held, "the front says who waits, and for what")
    assert watched.service.report().front["front_longest_held_seconds"] > 0
    watched.proxy.mode = "pass"
    await held
    assert watched.service.report().front["front_longest_held_seconds"] == 0
    for name in (namespace, f"{namespace}-2"):
        await asyncio.to_thread(delete, connection, name)
    await asyncio.to_thread(connection.close)


async def test_without_redis_clients_are_served_and_the_front_is_ready(
    namespace: str, rabbitmq_url: str
) -> None:
    place = Watched(f"redis://{LOOPBACK}:{free_port()}", namespace, rabbitmq_url)
    async with place.running():
        connection = await place.connect()
        await asyncio.to_thread(declare, connection, namespace)
        assert place.obstacles() == []
        await asyncio.to_thread(delete, connection, namespace)
        await asyncio.to_thread(connection.close)

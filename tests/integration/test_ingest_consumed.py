"""What RabbitMQ consumes at the first publish: each line of that table in docs/ingest.md."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge import Client
from delaybridge.intercept.pika import BlockingConnection
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import Exchanges, described, reading

Queues = dict[str, dict[str, Any] | None]
RECIPIENTS = {"CC": ["cc"], "BCC": ["bcc"]}


@pytest.fixture
def node() -> ManagedNode:
    return managed_node().start()


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


@pytest.fixture
def make_open(make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str) -> Any:
    """Makes an exchange with a queue for each key, read through its delay exchange."""

    async def make(type: str, queues: Queues) -> Entrance:
        def declare(channel: BlockingChannel) -> None:
            channel.exchange_declare(namespace, type, durable=True)
            for name, arguments in queues.items():
                channel.queue_declare(f"{namespace}-{name}", durable=True)
                channel.queue_bind(f"{namespace}-{name}", namespace, name, arguments)

        await rabbit.do(declare)
        entrance = make_entrance(retry={"max_attempts": 1})
        entrance.ingest("rabbitmq")
        entrance.scan()
        await reading(entrance, f"{namespace}.delay")
        return entrance

    return make


def by_client(entrance: Entrance, url: str, namespace: str) -> None:
    with Client.from_settings(entrance.settings) as client:
        to = f"rabbitmq:{namespace}/to"
        client.schedule(to, b"body", delay=0.001, headers=RECIPIENTS)


def by_drop_in(entrance: Entrance, url: str, namespace: str) -> None:
    with (
        Client.from_settings(entrance.settings) as client,
        BlockingConnection(pika.URLParameters(url), client=client) as connection,
    ):
        properties = pika.BasicProperties(headers=RECIPIENTS)
        connection.channel().basic_publish(namespace, "to", b"body", properties, delay="1ms")


def by_exchange(delay: dict[str, Any], entrance: Entrance, url: str, namespace: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        properties = pika.BasicProperties(headers=RECIPIENTS | delay)
        connection.channel().basic_publish(f"{namespace}.delay", "to", b"body", properties)


@pytest.mark.parametrize(
    ("publish", "recipients"),
    [
        pytest.param(by_client, 3, id="client"),
        pytest.param(by_drop_in, 3, id="drop-in"),
        pytest.param(partial(by_exchange, {}), 3, id="delay exchange, no delay"),
        pytest.param(partial(by_exchange, {"x-delay": 1}), 2, id="delay exchange"),
    ],
)
async def test_every_recipient_gets_a_delayed_message_but_bcc_through_the_delay_exchange(
    publish: Any, recipients: int, make_open: Any, rabbit: Exchanges, namespace: str
) -> None:
    entrance = await make_open("direct", {"to": None, "cc": None, "bcc": None, "end": None})
    await asyncio.to_thread(publish, entrance, rabbit.url, namespace)
    for name in ("to", "cc", "bcc")[:recipients]:
        ((_, properties, body),) = await rabbit.take(f"{namespace}-{name}", 1)
        assert (body, properties.headers["CC"]) == (b"body", ["cc"])
        assert "BCC" not in properties.headers
    # No more comes after this one.
    await asyncio.to_thread(by_marker, entrance, namespace)
    await rabbit.take(f"{namespace}-end", 1)
    for name in ("to", "cc", "bcc"):
        assert await rabbit.waiting(f"{namespace}-{name}") == 0


def by_marker(entrance: Entrance, namespace: str) -> None:
    with Client.from_settings(entrance.settings) as client:
        client.schedule(f"rabbitmq:{namespace}/end", b"end", delay=0.001)


async def test_mandatory_asks_for_the_route_of_now_and_the_dead_set_has_that_of_later(
    make_open: Any, rabbit: Exchanges, namespace: str
) -> None:
    entrance = await make_open("direct", {"to": None})
    delay = f"{namespace}.delay"
    await rabbit.send(delay, [("nowhere", b"body", described(1))])  # mandatory, and confirmed
    await entrance.until_dead(1)
    (dead,) = await entrance.dead()
    assert "unroutable" in (dead.reason or "")
    with pytest.raises(pika.exceptions.UnroutableError):
        await rabbit.send(delay, [("nowhere", b"body", described())])


async def test_a_user_id_is_checked_at_once_and_left_out_if_the_worker_is_another_user(
    make_open: Any, rabbit: Exchanges, node: ManagedNode, namespace: str
) -> None:
    await make_open("direct", {"to": None})
    node.put(f"users/{namespace}", {"password": "secret", "tags": ""})
    node.put(f"permissions/%2F/{namespace}", dict.fromkeys(("configure", "write", "read"), ".*"))
    other = Exchanges(node.url.replace("guest:guest", f"{namespace}:secret"))
    delay = f"{namespace}.delay"
    await other.send(delay, [("to", b"other", described(1, user_id=namespace))])
    await rabbit.send(delay, [("to", b"same", described(1, user_id="guest"))])
    found = {body: p.user_id for _, p, body in await rabbit.take(f"{namespace}-to", 2)}
    assert found == {b"other": None, b"same": "guest"}
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="user_id"):
        await rabbit.send(delay, [("to", b"wrong", described(1, user_id=namespace))])


async def test_the_bindings_of_a_headers_exchange_see_what_the_consumer_sees(
    make_open: Any, rabbit: Exchanges, namespace: str
) -> None:
    given = {
        "own": {"x-match": "all", "h": 1},
        "delay": {"x-match": "any-with-x", "x-delay": None},
        "id": {"x-match": "any", "delaybridge-id": "m"},
        "key": {"x-match": "any", "delaybridge-key": "k"},
    }
    await make_open("headers", given)
    properties = described(1, headers={"h": 1, "delaybridge-key": "k"}, message_id="m")
    await rabbit.send(f"{namespace}.delay", [("", b"body", properties)])
    for name in ("own", "delay", "id"):
        assert await rabbit.take(f"{namespace}-{name}", 1)
    assert await rabbit.waiting(f"{namespace}-key") == 0  # routed with the others

"""Conversions of delay exchanges that are refused, and change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delaybridge.ingest.rabbitmq import conversion, emptiness
from delaybridge.ingest.rabbitmq.management import Management
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_conversion import Convert, converter, earlier
from tests.rigs.ingest_rabbitmq import Exchanges, messages, source


@pytest.fixture(scope="module")
def node() -> ManagedNode:
    return managed_node().start()


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


@pytest.fixture
def convert(
    node: ManagedNode,
    redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Convert:
    return converter(node, redis_url, namespace, capsys, monkeypatch)


@pytest.mark.parametrize(("name", "type"), [("", "x-local-random"), (".expired", "topic")])
async def test_what_may_hold_messages_of_others_is_neither_read_nor_converted(
    name: str,
    type: str,
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    convert: Convert,
) -> None:
    """As an exchange of the delayed-message plugin, whose messages would be lost with it."""
    delay = f"{namespace}.delay"
    await rabbit.do(lambda channel: channel.exchange_declare(delay + name, type, durable=True))
    entrance = make_entrance()
    entrance.ingest("rabbitmq")

    async def is_refused() -> bool:
        found = await source(entrance, delay)
        return found is not None and "; delete it" in found.state

    await entrance.until(is_refused, "refused")
    refused = await convert(delay)
    assert (refused.code, refused.error["code"]) == (2, "config")


@pytest.mark.parametrize("more", ["", "n" * 190])  # RabbitMQ cuts its answer off: no type is in it
async def test_an_exchange_that_may_hold_messages_is_kept_whatever_its_queue_is(
    more: str, rabbit: Exchanges, namespace: str, convert: Convert
) -> None:
    delay = f"{namespace}{more}.delay"

    def declare(channel: BlockingChannel) -> None:
        channel.exchange_declare(delay, "x-local-random", durable=True)
        channel.queue_declare(delay, durable=True)

    await rabbit.do(declare)
    refused = await convert(delay)
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert ("'x-local-random'" in refused.error["message"]) == (not more)
    await rabbit.do(declare)  # both are as they were


async def test_nothing_is_converted_without_the_right_to_write_to_the_target(
    rabbit: Exchanges, node: ManagedNode, namespace: str, convert: Convert
) -> None:
    """It is needed once the exchange is gone."""
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    node.put("users/few", {"password": "few", "tags": "management"})
    own = dict.fromkeys(("configure", "write", "read"), f"^{namespace}[.]delay|^{delay}-first")
    node.put("permissions/%2F/few", own)
    refused = await convert(delay, url=node.url.replace("guest:guest", "few:few"))
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert f"write to '{namespace}'" in refused.error["message"]
    await rabbit.send(delay, messages(1))  # the exchange is there


async def test_nothing_is_converted_while_others_read_or_bindings_cannot_be_seen(
    rabbit: Exchanges, namespace: str, convert: Convert
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    await rabbit.send(delay, messages(1))
    refused = await convert(delay, management="http://127.0.0.1:1")
    assert (refused.code, refused.error["code"]) == (2, "config")

    def convert_beside(channel: BlockingChannel) -> Any:
        channel.basic_consume(delay, lambda *_: None)
        return asyncio.run(convert(delay))

    refused = await rabbit.do(convert_beside)
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert await rabbit.waiting(delay) == 1
    done = await convert(delay, management="off")
    assert done.code == 0, done.err
    assert (done.objects[0]["messages"], done.objects[0]["bindings"]) == (1, 0)


async def test_of_two_conversions_at_once_one_is_refused(
    rabbit: Exchanges, namespace: str, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    drain = conversion._drain

    def look(channel: BlockingChannel) -> None:
        channel.queue_declare(f"{delay}.moving", passive=True)

    def convert_beside(channel: BlockingChannel) -> Any:
        channel.queue_declare(f"{delay}.moving", exclusive=True)
        return asyncio.run(convert(delay))

    async def drained(*given: Any, **most: Any) -> int:
        with pytest.raises(ChannelClosedByBroker, match="RESOURCE_LOCKED"):
            await rabbit.do(look)
        return await drain(*given, **most)

    refused = await rabbit.do(convert_beside)
    assert (refused.code, refused.error["code"]) == (2, "config")
    await rabbit.send(delay, messages(1))  # nothing was changed
    monkeypatch.setattr(conversion, "_drain", drained)
    assert (await convert(delay)).objects[0]["messages"] == 1


async def test_a_consumer_that_comes_later_stops_a_conversion(
    rabbit: Exchanges, namespace: str, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)

    def convert_beside(channel: BlockingChannel) -> Any:
        async def none(*_: object) -> None:
            channel.basic_consume(delay, lambda *_: None)

        with monkeypatch.context() as patched:
            patched.setattr(conversion, "_hold_bindings", none)
            return asyncio.run(convert(delay))

    refused = await rabbit.do(convert_beside)
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert "1 consumers" in refused.error["message"]


async def test_a_queue_is_not_empty_because_its_leader_is_silent(
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
    convert: Convert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RabbitMQ says so after 250 ms."""
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    await rabbit.send(delay, messages(3))
    node.ctl("eval", f"sys:suspend('%2F_{delay}').")
    monkeypatch.setattr(emptiness, "_ANSWER_S", 0.3)
    refused = await convert(delay)
    node.ctl("eval", f"sys:resume('%2F_{delay}').")
    assert (refused.code, refused.error["code"]) == (2, "config")
    await rabbit.send(delay, messages(1))  # the exchange is there
    assert await rabbit.waiting(delay) == 4


async def test_nothing_is_converted_by_what_another_cluster_shows(
    rabbit: Exchanges, namespace: str, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)

    async def answer(_: Management, path: str) -> Any:
        return {} if path.endswith("/amq.direct") else None

    with monkeypatch.context() as patched:
        patched.setattr(Management, "_answer", answer)
        refused = await convert(delay)
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert "another cluster" in refused.error["message"]
    assert (await convert(delay)).objects[0]["bindings"] == 1


async def test_a_check_of_rights_takes_no_exchange_of_others(
    rabbit: Exchanges, namespace: str, convert: Convert
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    probe = f"{delay}.probe"
    await rabbit.do(lambda channel: channel.exchange_declare(probe, "topic", durable=True))
    assert (await convert(delay)).code == 0
    await rabbit.do(lambda channel: channel.exchange_declare(probe, passive=True))


async def test_a_limit_of_the_broker_is_told_as_it_is(
    rabbit: Exchanges, namespace: str, node: ManagedNode, convert: Convert
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    limit = "vhost-limits/%2F/max-queues"
    node.put(limit, {"value": 1})
    try:
        refused = await convert(delay)
    finally:
        node.delete(limit)
    assert refused.code == 2
    assert "queue limit" in refused.err and "of another form" not in refused.err

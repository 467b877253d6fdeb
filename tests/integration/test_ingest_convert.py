"""Delay exchanges and intake queues of an earlier form: refused, and converted."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delaybridge.amqp.connection import close_connection, open_connection
from delaybridge.ingest.rabbitmq import conversion, emptiness
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.topology import unbind
from delaybridge.ingest.routes import Route
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_conversion import Convert, converter, earlier
from tests.rigs.ingest_rabbitmq import (
    HOUR_MS,
    Exchanges,
    described,
    drained,
    messages,
    reading,
    source,
)


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


async def refusal(entrance: Entrance, delay: str) -> str:
    async def is_refused() -> str:
        found = await source(entrance, delay)
        return found.state if found and "--convert" in found.state else ""

    return str(await entrance.until(is_refused, "refused"))


@pytest.mark.parametrize(
    ("type", "queue", "arguments"),
    [
        ("topic", True, {}),
        ("topic", False, {}),
        ("headers", False, {}),
        ("headers", False, {"alternate-exchange": "amq.fanout"}),
    ],
)
async def test_an_earlier_form_is_refused_and_stops_no_other(
    type: str,
    queue: bool,
    arguments: dict[str, Any],
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
) -> None:
    bad, good = f"{namespace}-bad.delay", f"{namespace}-good.delay"
    await earlier(rabbit, bad, type, queue=queue, **arguments)
    entrance = make_entrance(exchanges=[f"{bad}=shop", good])
    entrance.ingest("rabbitmq")
    await reading(entrance, good)
    assert f"delaybridge ingest rabbitmq --convert rabbitmq:{bad}=shop " in await refusal(
        entrance, bad
    )
    await rabbit.publish(good, "k", headers={"x-delay": HOUR_MS})
    await entrance.until_delayed(1)


async def test_a_converted_exchange_has_lost_no_message_and_no_binding(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, convert: Convert
) -> None:
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    await rabbit.send(delay, messages(300))
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await refusal(entrance, delay)
    done = await convert(delay)
    assert done.code == 0
    about = {"was_earlier": True, "messages": 300, "bindings": 1, "unbound": []}
    assert done.objects == [{"source": f"rabbitmq:{delay}", **about}]
    # the process that was refused reads it now
    await reading(entrance, delay)
    asked = {"x-delay": HOUR_MS, "h": 1}
    await rabbit.send(f"{delay}-first", [("k", b"", described(headers=asked, message_id="new"))])
    await entrance.until_stored(301)
    again = await convert(delay)
    assert again.objects[0] | {"source": ""} == {
        "source": "", "was_earlier": False, "messages": 0, "bindings": 0, "unbound": [],
    }  # fmt: skip


async def test_a_conversion_that_was_killed_can_be_repeated(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    convert: Convert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the exchange is gone, with its bindings."""
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    await rabbit.send(delay, messages(1))
    drain, calls = conversion._drain, iter(("first", "dies", "dies"))

    async def drained(*given: Any, **most: Any) -> int:
        call = next(calls, "")
        if call == "dies":
            raise OSError("killed")
        return 0 if call else await drain(*given, **most)

    monkeypatch.setattr(conversion, "_drain", drained)
    asked = {"x-delay": HOUR_MS, "h": 1}
    assert (await convert(delay)).code != 0
    await rabbit.send(f"{delay}-first", [("k", b"meanwhile", described(headers=asked))])
    assert (await convert(delay)).code != 0
    with pytest.raises(ChannelClosedByBroker, match="404"):  # with the old queue behind it
        await rabbit.send(delay, messages(1))
    done = await convert(delay)
    assert done.code == 0, done.err
    assert (done.objects[0]["messages"], done.objects[0]["bindings"]) == (1, 1)
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.send(f"{delay}-first", [("k", b"", described(headers=asked))])
    await entrance.until_stored(3)


async def test_what_comes_by_a_bound_exchange_at_any_moment_of_a_conversion_comes_once(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    convert: Convert,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delay, sent = f"{namespace}.delay", 0
    await earlier(rabbit, delay)
    call = IntakeConnection.call

    async def send() -> None:
        nonlocal sent
        about = described(HOUR_MS, headers={"h": 1})
        await rabbit.send(f"{delay}-first", [("k", b"%d" % sent, about)])
        sent += 1

    async def called(connection: IntakeConnection, *given: Any, **arguments: Any) -> Any:
        answer = await call(connection, *given, **arguments)
        if given[1].startswith("exchange_") or given[1] == "queue_bind":
            await send()
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(IntakeConnection, "call", called)
        await convert(delay)
    await send()
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await drained(entrance, delay)
    assert sorted([int(m.body) for m in await entrance.delayed()]) == [*range(sent)]


async def test_a_queue_that_falls_silent_during_a_conversion_is_read(
    rabbit: Exchanges, namespace: str, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its count is 0 until its leader is asked."""
    delay, is_silent = f"{namespace}.delay", False
    await earlier(rabbit, delay)
    await rabbit.send(delay, messages(3))
    hold, count, get = conversion._hold_bindings, emptiness.count, emptiness._get

    async def held(*given: Any) -> None:
        nonlocal is_silent
        await hold(*given)
        is_silent = True

    async def counted(*given: Any) -> tuple[int, int]:
        return (0, 0) if is_silent else await count(*given)

    async def got(*given: Any) -> Any:
        nonlocal is_silent
        is_silent = False
        return await get(*given)

    monkeypatch.setattr(conversion, "_hold_bindings", held)
    monkeypatch.setattr(emptiness, "count", counted)
    monkeypatch.setattr(emptiness, "_get", got)
    assert (await convert(delay)).objects[0]["messages"] == 3


async def test_bindings_of_others_that_cannot_be_kept_are_named(
    rabbit: Exchanges, namespace: str, convert: Convert
) -> None:
    """To the queue: before anything is changed. Of the exchange: once they are gone."""
    delay, other, queue = (f"{namespace}{name}" for name in (".delay", "-other", "-queue"))
    await earlier(rabbit, delay)

    def bind(channel: BlockingChannel) -> None:
        channel.exchange_declare(other, "fanout", durable=True)
        channel.queue_bind(delay, other, "")
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, delay, "#")

    await rabbit.do(bind)
    refused = await convert(delay)
    assert (refused.code, refused.error["code"]) == (2, "config")
    assert repr(other) in refused.error["message"]
    await rabbit.do(lambda channel: channel.queue_unbind(delay, other, ""))
    await rabbit.send(delay, messages(1))
    assert await rabbit.waiting(queue) == 1  # nothing was changed
    done = await convert(delay)
    assert (done.objects[0]["messages"], done.objects[0]["unbound"]) == (1, [queue])


async def test_bindings_that_go_are_logged_before_and_each_result_is_told_at_once(
    rabbit: Exchanges, namespace: str, convert: Convert, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, queue = (f"{namespace}{name}" for name in ("-1.delay", "-2.delay", "-queue"))
    for delay in (first, second):
        await earlier(rabbit, delay)

    def bind(channel: BlockingChannel) -> None:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, second, "#")

    await rabbit.do(bind)
    replaced = conversion._replaced

    async def dies(connection: Any, intake: Any, *given: Any) -> int:
        if intake.route.source == second:
            raise OSError("killed")
        return await replaced(connection, intake, *given)

    monkeypatch.setattr(conversion, "_replaced", dies)
    done = await convert(first, second)
    assert done.code != 0
    assert [each["source"] for each in done.objects] == [f"rabbitmq:{first}"]
    assert repr(queue) in done.err


async def test_nothing_is_unbound_from_an_exchange_of_another_form(
    rabbit: Exchanges, node: ManagedNode, namespace: str
) -> None:
    """It may have no other binding."""
    delay = f"{namespace}.delay"
    await earlier(rabbit, delay)
    parameters = parameters_of("rabbitmq", node.url, PublishOptions())
    connection = await open_connection(parameters, lambda *of: IntakeConnection(*of, 2**20))
    await unbind(connection, Route("rabbitmq", "rabbitmq", delay, namespace), [("#", {})])
    await close_connection(connection)
    await rabbit.send(delay, messages(1))  # fails if it is not routed

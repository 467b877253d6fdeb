"""Delay exchanges and intake queues of an earlier form: refused, and converted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from delaybridge.amqp.connection import close_connection, open_connection
from delaybridge.ingest.rabbitmq import conversion
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.management import Management
from delaybridge.ingest.rabbitmq.topology import unbind
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.parameters import parameters_of
from delaybridge.settings.routes import Route
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.command_line import Result, runner
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import (
    HOUR_MS,
    Exchanges,
    described,
    drained,
    messages,
    reading,
    source,
)

EARLIER_QUEUE = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
Convert = Callable[..., Any]


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
    """`delaybridge ingest rabbitmq --convert` for a namespace of four buckets."""
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    monkeypatch.setattr(conversion, "_ROUTED_S", 0.01)
    monkeypatch.setattr(conversion, "_TRIES", 10)
    flags = ["--json", "--redis", redis_url, "--namespace", namespace]

    async def call(*delays: str, management: str = node.management, url: str = node.url) -> Result:
        monkeypatch.setenv("DELAYBRIDGE_INGEST__MANAGEMENT", management)
        run = runner([*flags, "--broker", f"rabbitmq={url}"], capsys, monkeypatch)
        words = [word for delay in delays for word in ("--convert", delay)]
        return await asyncio.to_thread(run, "ingest", "rabbitmq", *words)

    return call


async def earlier(
    rabbit: Exchanges, delay: str, type: str = "topic", *, queue: bool = True, **arguments: Any
) -> None:
    """An exchange as an earlier version declared it, its queue, and an exchange bound to it."""

    def declare(channel: BlockingChannel) -> None:
        channel.exchange_declare(delay, type, durable=True, arguments=arguments)
        channel.exchange_declare(f"{delay}-first", "headers", durable=True)
        match = {"x-match": "all", "h": 1}
        channel.exchange_bind(delay, f"{delay}-first", "a.key", match)
        if queue:
            channel.queue_declare(delay, durable=True, arguments=EARLIER_QUEUE)
            channel.queue_bind(delay, delay, "#")

    await rabbit.do(declare)


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
    rabbit: Exchanges,
    namespace: str,
    convert: Convert,
    monkeypatch: pytest.MonkeyPatch,
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

    def lock(channel: BlockingChannel) -> None:
        channel.queue_declare(f"{delay}.moving", exclusive=True)

    def convert_beside(channel: BlockingChannel) -> Any:
        lock(channel)
        return asyncio.run(convert(delay))

    async def drained(*given: Any, **most: Any) -> int:
        with pytest.raises(ChannelClosedByBroker, match="RESOURCE_LOCKED"):
            await rabbit.do(lock)
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
    monkeypatch.setattr(conversion, "_ANSWER_S", 0.3)
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

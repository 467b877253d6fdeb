"""Declares, bindings and deletes of delayed exchanges through the front, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock

import pytest
from pika import spec

from delaybridge.amqp.connection import WireConnection
from delaybridge.front import front, vhost
from delaybridge.ingest.rabbitmq import topology
from tests.rigs.front_raw import Basic, Exchange, Fronts, Queue, RawClient, declare, fronts_of
from tests.rigs.waiting import quiet_async, until_async


@pytest.fixture
async def fronts(rabbitmq_url: str) -> AsyncIterator[Fronts]:
    async with fronts_of(rabbitmq_url) as fronts:
        yield fronts


@pytest.fixture
async def client(fronts: Fronts) -> RawClient:
    return await fronts.client(await fronts.start())


# declare


async def test_what_follows_a_declare_without_waiting_is_done_after_it(
    client: RawClient, namespace: str
) -> None:
    client.send(
        declare(namespace, nowait=True),
        Queue.Declare(queue=namespace, exclusive=True, nowait=True),
        Queue.Bind(queue=namespace, exchange=namespace, routing_key="k", nowait=True),
        Basic.Consume(queue=namespace, no_ack=True, nowait=True),
        client.message(namespace, "k"),
        client.message(namespace, "k", **{"x-delay": 60_000}),
        client.message(namespace, "k"),
    )
    for _ in range(2):
        delivered = await client.taken()
        assert isinstance(delivered, Basic.Deliver) and delivered.exchange == namespace
    assert isinstance(await client.ask(Basic.Qos()), Basic.QosOk)


async def test_an_error_before_a_declare_ends_the_channel_and_not_more(
    client: RawClient, namespace: str
) -> None:
    for late in (declare(namespace), Exchange.Delete(exchange=namespace)):
        client.send(client.message(f"{namespace}-missing", "k"), late)
        closed = await client.taken()
        assert isinstance(closed, spec.Channel.Close) and closed.reply_code == 404
        client.send(spec.Channel.CloseOk())
        assert isinstance(await client.ask(spec.Channel.Open()), spec.Channel.OpenOk)
    assert isinstance(await client.ask(declare(namespace, passive=True)), spec.Channel.Close)
    client.send(declare(namespace), Exchange.Delete(exchange=namespace))  # it has not heard yet
    client.send(spec.Channel.CloseOk())
    assert isinstance(await client.ask(spec.Channel.Open()), spec.Channel.OpenOk)
    for _ in range(3):  # refused by both at once: by either
        client.send(client.message(f"{namespace}-missing", "k"), declare(""))
        closed = await client.taken()
        assert isinstance(closed, spec.Channel.Close) and closed.reply_code in (403, 404)
        client.send(spec.Channel.CloseOk())
        assert isinstance(await client.ask(spec.Channel.Open()), spec.Channel.OpenOk)
    assert isinstance(await client.ask(declare(namespace)), Exchange.DeclareOk)


async def test_line_ends_in_a_name_are_no_part_of_it(client: RawClient, namespace: str) -> None:
    odd = f"{namespace[:3]}\r\n{namespace[3:]}"
    assert isinstance(await client.ask(declare(odd)), Exchange.DeclareOk)
    await client.queue(odd)
    client.send(Basic.Consume(queue="", no_ack=True, nowait=True), client.message(namespace, "k"))
    delivered = await client.taken()
    assert isinstance(delivered, Basic.Deliver) and delivered.exchange == namespace
    assert isinstance(await client.ask(Exchange.Delete(exchange=odd)), Exchange.DeleteOk)
    assert isinstance(await client.ask(declare(namespace, passive=True)), spec.Channel.Close)


async def test_a_declare_again_is_answered_as_the_plugin_answers_it(
    client: RawClient, namespace: str
) -> None:
    d = namespace
    assert isinstance(await client.ask(declare(d, "topic")), Exchange.DeclareOk)
    for equal in (
        declare(d, "topic"),
        declare(d, "direct"),
        declare(d, None),
        declare(d, "topic", arguments={"x-other": 1}),
        declare(d, passive=True),
        Exchange.Declare(exchange=d, type="fanout", passive=True),
    ):
        assert isinstance(await client.ask(equal), Exchange.DeclareOk), equal
    for unequal, name in (
        (declare(d, "topic", durable=False), "durable"),
        (declare(d, "topic", auto_delete=True), "auto_delete"),
        (declare(d, "topic", internal=True), "internal"),
        (declare(d, "topic", arguments={"alternate-exchange": "ae"}), "alternate-exchange"),
        (Exchange.Declare(exchange=d, type="direct", durable=True), "type"),
    ):
        code, text = await client.refused(unequal)
        assert code == 406, unequal
        assert text.startswith(
            f"PRECONDITION_FAILED - inequivalent arg '{name}' for exchange '{d}'"
        )
    assert await client.refused(declare(f"{d}-missing", passive=True)) == (
        404,
        f"NOT_FOUND - no exchange '{d}-missing' in vhost '/'",
    )


async def test_what_cannot_be_a_delayed_exchange_is_refused_and_leaves_nothing(
    client: RawClient, namespace: str
) -> None:
    for wrong, code, text in (
        (declare(namespace, None), 406, "'x-delayed-type' must be an existing exchange type"),
        (declare(namespace, "x-delayed-message"), 406, "can't be used for 'x-delayed-type'"),
        (
            declare(namespace, arguments={"x-delayed-type": 5}, type=None),
            406,
            "must be an existing",
        ),
        (declare(namespace, "nope"), 406, "nope"),
        (declare("amq.later"), 403, "ACCESS_REFUSED"),
        (declare(""), 403, "ACCESS_REFUSED"),
        (declare("d" * 250), 406, "236 bytes"),
        (declare("\u00e9" * 100), 406, "100 bytes"),
    ):
        found = await client.refused(wrong)
        assert found[0] == code and text in found[1], found
    for left in (namespace, f"{namespace}.due", f"{namespace}.due.intake.expired"):
        assert (await client.refused(Exchange.Declare(exchange=left, passive=True)))[0] == 404


async def test_an_exchange_that_no_front_made_is_refused_until_it_is_adopted(
    client: RawClient, fronts: Fronts, namespace: str
) -> None:
    plain, behind = f"{namespace}-a", f"{namespace}-b"
    for name in (plain, f"{behind}.due"):
        await client.ask(Exchange.Declare(exchange=name, type="fanout", durable=True))
    assert await client.refused(declare(plain)) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{plain}' in vhost '/': "
        "received ''x-delayed-message'' but current is 'fanout'",
    )
    code, text = await client.refused(declare(behind))
    assert code == 406 and "front.suffix" in text and "--adopt" in text
    other = await fronts.client(await fronts.start(suffix=".later"))
    assert isinstance(await other.ask(declare(behind)), Exchange.DeclareOk)
    assert await other.queue(behind)
    await other.ask(Exchange.Delete(exchange=behind))
    adopting = await fronts.client(await fronts.start(adopt=True))
    assert isinstance(await adopting.ask(declare(behind, "fanout")), Exchange.DeclareOk)


async def test_an_exchange_of_the_plugin_itself_stays_the_plugins(
    plugin_rabbitmq_url: str, namespace: str
) -> None:
    async with fronts_of(plugin_rabbitmq_url) as fronts:
        direct = await fronts.client(plugin_rabbitmq_url)
        await direct.ask(declare(namespace))
        client = await fronts.client(await fronts.start())
        assert isinstance(await client.ask(declare(namespace)), Exchange.DeclareOk)
        assert (await client.refused(declare(namespace, durable=False)))[0] == 406
        assert await client.queue(namespace)
        assert isinstance(await client.ask(declare(f"{namespace}-2")), Exchange.DeclareOk)
        for each in (namespace, f"{namespace}-2"):
            assert isinstance(await client.ask(Exchange.Delete(exchange=each)), Exchange.DeleteOk)


async def test_an_internal_exchange_takes_what_is_bound_to_it_only(
    client: RawClient, namespace: str
) -> None:
    first, second = f"{namespace}-a", f"{namespace}-b"
    await client.ask(declare(second, internal=True))
    code, text = await client.refused(client.message(second, "k"))
    assert code == 403 and "internal" in text
    await client.ask(Exchange.Declare(exchange=first, type="fanout", durable=True))
    await client.ask(Exchange.Bind(destination=second, source=first))
    queue = await client.queue(second)
    await client.ask(Basic.Consume(queue=queue, no_ack=True))
    client.send(client.message(first, "k"))
    assert isinstance(await client.taken(), Basic.Deliver)


async def test_what_has_no_route_is_returned_with_the_name_that_the_client_knows(
    client: RawClient, namespace: str
) -> None:
    await client.ask(declare(namespace, "topic"))
    await client.ask(spec.Confirm.Select())
    client.send(client.message(namespace, "k", mandatory=True))
    returned, confirmed = await client.taken(), await client.taken()
    assert isinstance(returned, Basic.Return) and isinstance(confirmed, Basic.Ack)
    assert (returned.reply_code, returned.exchange) == (312, namespace)
    client.send(client.message(namespace, "k", mandatory=True, **{"x-delay": 60_000}))
    assert isinstance(await client.taken(), Basic.Ack)


async def test_an_alternate_exchange_of_the_clients_gets_what_has_no_route(
    client: RawClient, namespace: str
) -> None:
    other = f"{namespace}-ae"
    await client.ask(Exchange.Declare(exchange=other, type="fanout", durable=True))
    queue = await client.queue(other)
    await client.ask(declare(namespace, arguments={"alternate-exchange": other}))
    await client.ask(Basic.Consume(queue=queue, no_ack=True))
    client.send(client.message(namespace, "k", mandatory=True))
    delivered = await client.taken()
    assert isinstance(delivered, Basic.Deliver) and delivered.exchange == namespace


# bindings, deletes


async def test_bindings_of_queues_and_exchanges_are_those_of_the_second_exchange(
    client: RawClient, namespace: str
) -> None:
    d, further = namespace, f"{namespace}-2"
    await client.ask(declare(d))
    await client.ask(declare(further, "fanout"))
    queue = await client.queue(further)
    await client.ask(Basic.Consume(queue=queue, no_ack=True))
    await client.ask(Exchange.Bind(destination=further, source=d, routing_key="k"))
    client.send(client.message(d, "k"), client.message(d, "other"))
    assert isinstance(delivered := await client.taken(), Basic.Deliver)
    assert delivered.exchange == d
    await client.ask(Exchange.Unbind(destination=further, source=d, routing_key="k"))
    await client.ask(Queue.Bind(queue=queue, exchange=d, routing_key="k"))
    await client.ask(Queue.Unbind(queue=queue, exchange=d, routing_key="k"))
    client.send(client.message(d, "k"), client.message(further, "x"))
    assert (await client.taken()).exchange == further


async def test_a_delete_is_judged_by_the_bindings_and_frees_the_name(
    client: RawClient, namespace: str
) -> None:
    await client.ask(declare(namespace))
    queue = await client.queue(namespace)
    assert await client.refused(Exchange.Delete(exchange=namespace, if_unused=True)) == (
        406,
        f"PRECONDITION_FAILED - exchange '{namespace}' in vhost '/' in use",
    )
    await client.ask(Queue.Unbind(queue=queue, exchange=namespace, routing_key="k"))
    for _ in range(2):
        answer = await client.ask(Exchange.Delete(exchange=namespace, if_unused=True))
        assert isinstance(answer, Exchange.DeleteOk)
    assert (await client.refused(declare(namespace, passive=True)))[0] == 404
    bind = Queue.Bind(queue=queue, exchange=namespace, routing_key="k")
    assert (await client.refused(bind))[0] == 404
    plain = Exchange.Declare(exchange=namespace, type="fanout")
    assert isinstance(await client.ask(plain), Exchange.DeclareOk)
    assert isinstance(await client.ask(bind), Queue.BindOk)
    assert isinstance(await client.ask(Exchange.Delete(exchange=namespace)), Exchange.DeleteOk)


async def test_a_front_that_knows_nothing_binds_and_names_as_the_first(
    client: RawClient, fronts: Fronts, namespace: str
) -> None:
    await client.ask(declare(namespace))
    binding = await fronts.client(await fronts.start())
    reading = await fronts.client(await fronts.start())
    direct = await fronts.client(fronts.url)
    await binding.ask(Queue.Declare(queue=namespace, durable=True))
    await binding.ask(Queue.Bind(queue=namespace, exchange=namespace, routing_key="k"))
    direct.send(direct.message(f"{namespace}.due", "k"))
    await direct.ask(Basic.Qos())
    found = await reading.ask(Basic.Get(queue=namespace, no_ack=True))
    assert isinstance(found, Basic.GetOk) and found.exchange == namespace
    await direct.ask(Queue.Delete(queue=namespace))


async def test_an_exchange_that_the_broker_half_deletes_goes_wholly(
    fronts: Fronts, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "_LOOK_S", 0.05)
    client = await fronts.client(await fronts.start())
    await client.ask(declare(namespace, auto_delete=True))
    queue = await client.queue(namespace)
    assert isinstance(await client.ask(declare(namespace, passive=True)), Exchange.DeclareOk)
    await client.ask(Queue.Unbind(queue=queue, exchange=namespace, routing_key="k"))

    async def is_gone() -> bool:
        answer = await client.ask(declare(namespace, passive=True))
        return isinstance(answer, spec.Channel.Close)

    await until_async(is_gone)


async def test_a_bind_is_never_passed_on_unanswered(
    client: RawClient, fronts: Fronts, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vhost, "ASK_S", 0.2)
    await client.ask(declare(namespace))
    shut_out = fronts.url.replace("guest:guest", "guest:wrong")
    other = await fronts.client(await fronts.start({"rabbitmq": shut_out}))
    await other.ask(Queue.Declare(queue=namespace, exclusive=True))
    bind = Queue.Bind(queue=namespace, exchange=namespace, routing_key="k")
    code, text = await other.refused(bind)
    assert code == 506 and "try again" in text
    await client.ask(Exchange.Delete(exchange=namespace))


async def test_a_client_that_goes_in_the_middle_of_a_declare_leaves_it_to_the_next(
    client: RawClient, fronts: Fronts, namespace: str
) -> None:
    for number in range(5):
        gone = await fronts.client(client.parts.geturl())
        gone.send(declare(f"{namespace}-{number}"))
        await quiet_async(number / 200)  # before it is marked, made, or stands
        await gone.close()
    for number in range(5):
        answer = await client.ask(declare(f"{namespace}-{number}"))
        assert isinstance(answer, Exchange.DeclareOk)
        assert await client.queue(f"{namespace}-{number}")


async def test_several_fronts_make_one_exchange_at_once(
    client: RawClient, fronts: Fronts, namespace: str
) -> None:
    urls = [await fronts.start() for _ in range(2)]
    clients = [await fronts.client(url) for url in urls for _ in range(4)]
    for each in clients:
        each.send(
            declare(namespace),
            Exchange.Bind(destination="amq.fanout", source=namespace, routing_key="k"),
        )
    for each in clients:
        assert isinstance(await each.taken(), Exchange.DeclareOk)


async def test_a_plain_exchange_is_deleted_where_a_delayed_one_was(
    client: RawClient, fronts: Fronts, namespace: str
) -> None:
    other = await fronts.client(await fronts.start())
    await client.ask(declare(namespace))
    await other.ask(Exchange.Delete(exchange=namespace))
    await other.ask(Exchange.Declare(exchange=namespace, type="direct"))
    assert isinstance(await client.ask(Exchange.Delete(exchange=namespace)), Exchange.DeleteOk)
    assert (await other.refused(declare(namespace, passive=True)))[0] == 404


async def test_an_exchange_that_is_deleted_while_it_is_made_is_deleted_after_that(
    client: RawClient, fronts: Fronts, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    halfway, go_on, take_steps = asyncio.Event(), asyncio.Event(), topology.take_steps

    async def slowly(connection: WireConnection, *steps: topology.Step) -> None:
        at = 1 + [about.get("exchange") for _, about in steps].index(namespace)
        await take_steps(connection, *steps[:at])
        halfway.set()
        await go_on.wait()
        await take_steps(connection, *steps[at:])

    monkeypatch.setattr(topology, "take_steps", slowly)
    monkeypatch.setattr(vhost.Vhost, "_is_there", AsyncMock(return_value=False))  # a moment ago
    other = await fronts.client(await fronts.start())
    client.send(declare(namespace))
    await halfway.wait()
    other.send(Exchange.Delete(exchange=namespace))
    await quiet_async(0.2)
    go_on.set()
    assert isinstance(await client.taken(), Exchange.DeclareOk)
    assert isinstance(await other.taken(), Exchange.DeleteOk)
    for name in (namespace, f"{namespace}.due"):
        assert (await client.refused(Exchange.Declare(exchange=name, passive=True)))[0] == 404


# transactions, rights, vhosts


async def test_a_transaction_holds_what_is_published_to_it(
    client: RawClient, namespace: str
) -> None:
    await client.ask(spec.Tx.Select())
    await client.ask(declare(namespace))
    queue = await client.queue(namespace)
    for end, answers in ((spec.Tx.Rollback(), Basic.GetEmpty), (spec.Tx.Commit(), Basic.GetOk)):
        client.send(client.message(namespace, "k"))
        await client.ask(end)
        assert isinstance(await client.ask(Basic.Get(queue=queue, no_ack=True)), answers)


async def test_a_vhost_without_a_broker_passes_all_but_delayed_exchanges(
    fronts: Fronts, namespace: str, rabbitmq_url: str
) -> None:
    url = await fronts.start({"rabbitmq": rabbitmq_url.replace("%2F", "elsewhere")})
    client = await fronts.client(url)
    code, text = await client.refused(declare(namespace))
    assert code == 406 and "[brokers]" in text
    plain = Exchange.Declare(exchange=namespace, type="direct", auto_delete=True)
    assert isinstance(await client.ask(plain), Exchange.DeclareOk)
    assert await client.queue(namespace)
    assert isinstance(await client.ask(Exchange.Delete(exchange=namespace)), Exchange.DeleteOk)

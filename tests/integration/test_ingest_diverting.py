"""A delay exchange diverts what has a delay header, and passes all else on at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.amqp.encoding import encode_table
from delaybridge.ingest.instructions import INSTRUCTIONS
from delaybridge.ingest.rabbitmq import intake, topology
from delaybridge.ingest.routes import Route
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, AsBytes, Exchanges, described, reading, source

SOON = {"x-delay": 1}
HOUR = {"x-delay": HOUR_MS}


async def declared(make_entrance: MakeEntrance, delay: str, **ingest: Any) -> Entrance:
    """An entrance whose process has declared everything, and has ended."""
    entrance = make_entrance(**ingest)
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await entrance.stop_all()
    return entrance


# which messages


async def test_without_a_delay_header_the_broker_alone_passes_a_message_on_untouched(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    await declared(make_entrance, delay)
    with pytest.raises(pika.exceptions.UnroutableError):
        await rabbit.publish(delay, "a.b")
    await rabbit.target(namespace)
    await rabbit.publish(delay, "a.b", headers={"h": 1, "X-Delay": 5})
    ((method, properties, _),) = await rabbit.take(namespace, 1)
    assert (method.exchange, method.routing_key) == (delay, "a.b")
    assert properties == pika.BasicProperties(headers={"h": 1, "X-Delay": 5})
    assert await rabbit.waiting(delay) == 0


async def test_each_header_that_is_read_diverts_a_message_whatever_its_value(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    await declared(make_entrance, delay)
    values = [5, 0, -1, 1.5, True, None, "text", b"\xff", [1], {"a": 1}]
    sent = [{name: values[at % len(values)]} for at, name in enumerate(sorted(INSTRUCTIONS))]
    sent += [{"x-delay": value} for value in values]
    tables = [encode_table(headers.items()) for headers in sent]
    await rabbit.send(delay, [("k", b"", AsBytes(table)) for table in tables])
    assert (await rabbit.waiting(delay), await rabbit.waiting(namespace)) == (len(sent), 0)


async def test_a_later_header_is_bound_before_the_earlier_binding_goes(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delay, earlier = await rabbit.target(namespace) + ".delay", ("x-earlier", "x-delay")
    with monkeypatch.context() as only_now:
        only_now.setattr(topology, "BOUND_HEADERS", earlier)
        await declared(make_entrance, delay)
    monkeypatch.setattr(topology, "FORMER_HEADERS", (earlier,))
    methods = [m for m, _ in topology.declarations(Route("rabbitmq", "rabbitmq", "x", "y"))]
    assert methods[-2:] == ["queue_bind", "queue_unbind"]
    await declared(make_entrance, delay)
    await rabbit.send(
        delay, [("k", b"", described(headers={name: 1})) for name in (*earlier, "delaybridge-id")]
    )
    assert (await rabbit.waiting(namespace), await rabbit.waiting(delay)) == (1, 2)


# other ways into the exchange


async def test_a_message_from_a_bound_exchange_is_delayed(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    delay, first = f"{namespace}.delay", f"{namespace}-first"

    def bind(channel: BlockingChannel) -> None:
        channel.exchange_declare(first, "fanout", durable=True)
        channel.exchange_bind(delay, first)

    await rabbit.do(bind)
    await rabbit.send(first, [("a.b", b"1", described(headers=SOON)), ("c", b"2", described())])
    found = {raw.body: raw for raw in await rabbit.take_raw(namespace, 2)}
    assert found[b"1"].routing_key == "a.b"
    assert "delaybridge-due-ms" in found[b"1"].headers
    assert (found[b"2"].routing_key, found[b"2"].headers) == ("c", {})


async def test_a_dead_lettered_message_is_delayed_and_keeps_its_deaths(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    delay, tried = f"{namespace}.delay", f"{namespace}-tried"
    dead = {"x-dead-letter-exchange": delay, "x-message-ttl": 1, "x-queue-type": "quorum"}
    await rabbit.do(lambda channel: channel.queue_declare(tried, durable=True, arguments=dead))
    await rabbit.send("", [(tried, b"1", described(headers=SOON, message_id="m"))])
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.routing_key, raw.headers["delaybridge-id"]) == (tried, "m")
    (death,) = raw.headers["x-death"]
    assert (death["queue"], death["reason"]) == (tried, "expired")


# what expires in the intake queue


async def test_a_message_that_expires_while_ingest_is_away_is_delayed_with_its_expiration(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = await rabbit.target(namespace) + ".delay"
    entrance = await declared(make_entrance, delay)
    given = {"message_id": "m", "priority": 3, "headers": SOON | {"CC": ["c"], "h": 1}}
    await rabbit.send(delay, [("k", b"1", described(expiration="60000", **given))] * 2)
    await rabbit.send(
        delay, [("k", b"2", described(expiration="1", **given | {"message_id": "n"}))]
    )

    async def has_expired() -> bool:
        return await rabbit.waiting(f"{delay}.expired") == 1

    # it is at the head of its queue once those before it are read
    await rabbit.do(lambda channel: [channel.basic_get(delay, auto_ack=True) for _ in range(2)])
    await entrance.until(has_expired, "it has expired")
    entrance.ingest("rabbitmq")
    (stored,) = await entrance.until(entrance.delayed, "stored")
    assert dict(stored.headers) == given["headers"]
    assert stored.properties["expiration"] == "1"
    assert stored.destination == f"rabbitmq:{namespace}/k"


# looked at again, for ever


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ingest declares and binds again ten times a second."""
    monkeypatch.setattr(intake, "_DECLARE_S", 0.1)


@pytest.mark.parametrize("lost", ["binding", "exchange", "late", "late binding"])
async def test_what_is_removed_by_hand_is_declared_and_bound_again(
    lost: str, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, restless: None
) -> None:
    delay = f"{namespace}.delay"
    late, bound = f"{delay}.expired", topology.binding_arguments()
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.do(
        {
            "binding": lambda channel: channel.queue_unbind(delay, delay, "", bound),
            "exchange": lambda channel: channel.exchange_delete(delay),
            "late": lambda channel: channel.exchange_delete(late),
            "late binding": lambda channel: channel.queue_unbind(late, late, ""),
        }[lost]
    )

    await entrance.until(lambda: is_routed(rabbit, delay, lost), "it is there again")
    await entrance.until_delayed(1)


@pytest.mark.parametrize("lost", ["exchange", "late"])
async def test_a_binding_made_while_the_exchange_is_deleted_is_followed_by_the_next(
    lost: str, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, restless: None
) -> None:
    delay = f"{namespace}.delay"
    name = f"{delay}.expired" if lost == "late" else delay
    arguments = {} if lost == "late" else topology.binding_arguments()
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)

    def bind_until(is_gone: threading.Event) -> Callable[[BlockingChannel], None]:
        def bind(channel: BlockingChannel) -> None:
            with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
                while not is_gone.is_set():
                    channel.queue_bind(name, name, "", arguments)

        return bind

    # In most rounds RabbitMQ 4.3 stores a binding of what it has deleted.
    for count in range(8):
        is_gone = threading.Event()
        binding = asyncio.create_task(rabbit.do(bind_until(is_gone)))
        await rabbit.do(lambda channel: channel.exchange_delete(name))
        is_gone.set()  # by now it may be there again
        await binding
        await entrance.until(lambda: is_routed(rabbit, delay, lost), "it is there again")
        await entrance.until_delayed(count + 1)


async def is_routed(rabbit: Exchanges, delay: str, lost: str) -> bool:
    """Whether a queue gets a message, which only the intake queues can be here; by the exchange of
    expired messages if `lost` says so."""
    try:
        if lost.startswith("late"):
            to_late = {"exchange": f"{delay}.expired", "routing_key": "k", "mandatory": True}
            await rabbit.do(lambda channel: publish_internally(channel, **to_late))
        else:
            await rabbit.publish(delay, "k", headers=HOUR)
    except (pika.exceptions.UnroutableError, pika.exceptions.ChannelClosedByBroker):
        return False
    return True


def publish_internally(channel: BlockingChannel, exchange: str, **given: Any) -> None:
    """Publish to an internal exchange: over another one, bound to it meanwhile."""
    name = f"{exchange}.probe"
    channel.exchange_declare(name, "fanout", auto_delete=True)
    channel.exchange_bind(exchange, name)
    channel.confirm_delivery()
    try:
        channel.basic_publish(name, body=b"", properties=described(HOUR_MS), **given)
    finally:
        channel.exchange_unbind(exchange, name)


async def test_a_changed_alternate_exchange_is_shown_while_delayed_messages_are_read(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, restless: None
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)

    def change(channel: BlockingChannel) -> None:
        other = {"alternate-exchange": "amq.fanout"}
        channel.exchange_delete(delay)
        channel.exchange_declare(delay, "headers", durable=True, arguments=other)

    await rabbit.do(change)

    async def is_shown() -> str:
        found = await source(entrance, delay)
        return found.condition if found and "amq.fanout" in found.condition else ""

    state = await entrance.until(is_shown, "the other alternate exchange")
    assert f"delaybridge ingest rabbitmq --convert rabbitmq:{delay}=" in state
    await rabbit.publish(delay, "k", headers=HOUR)
    await entrance.until_delayed(1)
    await rabbit.do(lambda channel: channel.exchange_delete(delay))
    await reading(entrance, delay)

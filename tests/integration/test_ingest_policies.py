"""No policy of an operator takes a message away that a delay exchange has confirmed."""

from __future__ import annotations

import re
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.ingest import MakeEntrance
from tests.rigs.ingest_rabbitmq import Exchanges, messages, reading

COUNT = 20


@pytest.fixture(scope="module")
def node() -> ManagedNode:
    return managed_node().start()


@pytest.fixture
def entrance_url(node: ManagedNode) -> str:
    return node.url


async def confirmed(rabbit: Exchanges, exchange: str) -> set[str]:
    """The ids of the messages that the broker has confirmed; the others it has refused."""

    def send(channel: BlockingChannel) -> set[str]:
        channel.confirm_delivery()
        taken = set()
        for key, body, properties in messages(COUNT):
            try:
                channel.basic_publish(exchange, key, body, properties, mandatory=True)
            except pika.exceptions.NackError:
                continue
            taken.add(properties.message_id)
        return taken

    found: set[str] = await rabbit.do(send)
    return found


@pytest.mark.parametrize(
    ("definition", "is_refused"),
    [
        ({"alternate-exchange": "amq.fanout", "dead-letter-exchange": "amq.fanout"}, False),
        ({"dead-letter-routing-key": "dead", "message-ttl": 1}, False),
        ({"max-length": 3}, True),
        ({"max-length-bytes": 5}, True),
        ({"max-length": 3, "overflow": "drop-head"}, False),  # the others are in the second queue
        ({"dead-letter-strategy": "at-most-once", "delivery-limit": 0}, False),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
async def test_each_confirmed_message_is_stored_whatever_a_policy_says(
    definition: dict[str, Any],
    is_refused: bool,
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    node: ManagedNode,
    namespace: str,
) -> None:
    """It is published while ingest is away, which then comes back."""
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    with node.policy(f"^{re.escape(delay)}$", **definition):
        task = entrance.ingest("rabbitmq")
        await reading(entrance, delay)
        await entrance.stop(task)
        taken = await confirmed(rabbit, delay)
        assert (len(taken) < COUNT) is is_refused
        entrance.ingest("rabbitmq")
        await entrance.until_stored(len(taken))
    stored = await entrance.delayed()
    assert {message.id for message in stored} == taken
    assert {(message.destination, len(message.headers)) for message in stored} == {
        (f"rabbitmq:{namespace}/k", 1)
    }


async def test_a_policy_that_comes_while_ingest_reads_changes_nothing(
    make_entrance: MakeEntrance, rabbit: Exchanges, node: ManagedNode, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    with node.policy(".*", **{"alternate-exchange": "amq.fanout", "message-ttl": 60_000}):
        assert len(await confirmed(rabbit, delay)) == COUNT
        await entrance.until_stored(COUNT)

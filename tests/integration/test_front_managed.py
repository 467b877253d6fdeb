"""The front and a RabbitMQ with the management API: refusals for want of rights say what to set;
converted definitions are imported, and are what a front makes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from delaybridge.amqp.connection import close_connection, open_connection
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.topology import declare as declared
from delaybridge.ingest.routes import fronted
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.command_line import spawn
from tests.rigs.front_raw import Exchange, Fronts, Queue, declare, fronts_of
from tests.rigs.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def node() -> ManagedNode:
    return managed_node().start()


@pytest.fixture
async def fronts(node: ManagedNode) -> AsyncIterator[Fronts]:
    async with fronts_of(node.url) as fronts:
        yield fronts


def user_with(node: ManagedNode, name: str, pattern: str) -> str:
    """The URL of a user who may do everything to what the pattern matches, and to own queues."""
    node.put(f"users/{name}", {"password": name, "tags": ""})
    own = f"{pattern}|^(amq[.]gen.*|own)$"
    node.put(f"permissions/%2F/{name}", dict.fromkeys(("configure", "write", "read"), own))
    return node.url.replace("guest:guest", f"{name}:{name}")


def needed(text: str) -> str:
    """The pattern in quotes at the end of a refusal."""
    found = re.search("needs '([^']*)'$", text)
    return found[1] if found else text


async def test_a_client_with_rights_on_its_exchange_alone_is_told_which_it_needs(
    fronts: Fronts, node: ManagedNode, namespace: str
) -> None:
    name = f"{namespace}.orders"
    url, few = await fronts.start(), f"{namespace}-few"
    user_with(node, few, f"^{re.escape(name)}$")
    at_front = url.replace("guest:guest", f"{few}:{few}")
    client = await fronts.client(at_front)
    code, text = await client.refused(declare(name))
    pattern = needed(text)
    assert code == 403 and text.startswith("ACCESS_REFUSED - configure access to exchange")
    assert re.fullmatch(pattern, name) and re.fullmatch(pattern, f"{name}.due")
    assert not re.fullmatch(pattern, f"{namespace}-orders")
    assert fronts.refused == {name: f"403: {text}"}
    assert (await client.refused(declare(name, passive=True)))[0] == 404
    whole = await fronts.client(url)
    assert isinstance(await whole.ask(declare(name)), Exchange.DeclareOk)
    await client.ask(Queue.Declare(queue="own", exclusive=True))
    bind = Queue.Bind(queue="own", exchange=name, routing_key="k")
    code, text = await client.refused(bind)
    assert code == 403 and needed(text) == pattern
    code, text = await client.refused(Exchange.Delete(exchange=name))
    assert code == 403 and needed(text) == pattern
    user_with(node, few, pattern)
    client = await fronts.client(at_front)
    assert isinstance(await client.ask(declare(name)), Exchange.DeclareOk)
    assert await client.queue(name)


async def test_a_front_without_rights_of_its_own_says_which_it_needs(
    fronts: Fronts, node: ManagedNode, namespace: str
) -> None:
    name = f"{namespace}.orders"
    own = user_with(node, f"{namespace}-front", f"^{re.escape(namespace)}-other")
    client = await fronts.client(await fronts.start({"rabbitmq": own}))
    code, text = await client.refused(declare(name))
    assert (code, text.startswith("ACCESS_REFUSED - ")) == (403, True)
    pattern = re.search("'([^']*)'$", text)
    assert pattern is not None and "configure, write and read" in text
    assert re.match(pattern[1], f"{name}.due.intake.expired")
    user_with(node, f"{namespace}-front", pattern[1])
    client = await fronts.client(await fronts.start({"rabbitmq": own}))
    assert isinstance(await client.ask(declare(name)), Exchange.DeclareOk)


def exported(name: str) -> dict[str, Any]:
    """What RabbitMQ 4.0 with the plugin exports of one exchange, one queue and one user."""
    last = {"vhost": "/", "durable": True, "auto_delete": False}
    arguments = {"x-delayed-type": "topic", "x-other": 5}
    rights = {"configure": f"^{name}$", "write": f"^{name}$", "read": f"^{name}$"}
    to = {"destination": f"{name}.queue", "destination_type": "queue", "vhost": "/"}
    return {
        "rabbit_version": "4.0.5",
        "rabbitmq_version": "4.0.5",
        "exchanges": [{"name": name, "type": "x-delayed-message", "arguments": arguments, **last}],
        "queues": [
            {
                "name": f"{name}.queue",
                "arguments": {"x-queue-type": "classic"},
                "type": "classic",
                **last,
            }
        ],
        "bindings": [{"source": name, "routing_key": "t.#", "arguments": {}, **to}],
        "users": [{"name": name, "password_hash": "", "tags": [], "limits": {}}],
        "permissions": [{"user": name, "vhost": "/", **rights}],
    }


async def declare_as_ingest(node: ManagedNode, name: str) -> None:
    parameters = parameters_of("rabbitmq", node.url, PublishOptions())
    connection = await open_connection(parameters, lambda *of: IntakeConnection(*of, 2**20))
    await declared(connection, fronted("rabbitmq", name, ".due"))
    await close_connection(connection)


def test_a_converted_file_is_imported_and_is_what_a_front_makes(
    node: ManagedNode, namespace: str, tmp_path: Path
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(exported(namespace)))
    command = ["plugin", "convert", str(before), "-o", str(after)]
    done = spawn(*command)
    assert done.code == 0, done.err
    assert f"right of {namespace} of vhost /: configure" in done.err
    intake, behind = f"{namespace}.due.intake", f"{namespace}.queue"
    with (
        httpx.Client(base_url=f"{node.management}/api", auth=("guest", "guest")) as api,
        pika.BlockingConnection(pika.URLParameters(node.url)) as connection,
    ):
        api.timeout = DEADLINE_S
        assert api.post("definitions", json=json.loads(before.read_text())).status_code == 400
        for _ in range(2):
            api.post("definitions", json=json.loads(after.read_text())).raise_for_status()
        channel = connection.channel()
        channel.confirm_delivery()

        def counts_after_both() -> tuple[int, int]:
            for headers in ({}, {"x-delay": 60_000}):
                about = pika.BasicProperties(headers=headers)
                channel.basic_publish(namespace, "t.1", b"", about, mandatory=True)
            found = (channel.queue_declare(name, passive=True) for name in (intake, behind))
            first, second = (answer.method.message_count for answer in found)
            return first, second

        assert counts_after_both() == (2, 0), "nothing is early before ingest has bound it"
        asyncio.run(declare_as_ingest(node, namespace))
        assert counts_after_both() == (3, 1)
        (binding,) = api.get(f"bindings/%2F/e/{namespace}/q/{intake}").json()
        assert "x-delay" in binding["arguments"]
        # An export of what is there now is again one that can be imported.
        before.write_text(api.get("definitions").text)
        assert spawn(*command).code in (0, 6), "other tests' exchanges are there, too"
        api.post("definitions", json=json.loads(after.read_text())).raise_for_status()
        api.delete(f"users/{namespace}").raise_for_status()
        for name in (intake, behind):
            channel.queue_delete(name)

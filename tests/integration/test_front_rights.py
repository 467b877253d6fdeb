"""Rights that a client of the front, or the front itself, lacks: each refusal says what to set."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from tests.rigs.broker_rabbitmq import ManagedNode, managed_node
from tests.rigs.front_raw import Exchange, Fronts, Queue, declare, fronts_of


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

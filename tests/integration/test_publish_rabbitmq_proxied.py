"""A RabbitMQ that expects the header of the PROXY protocol gets it, before TLS as well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from delaybridge.amqp.connection import WireConnection, close_connection, open_connection
from delaybridge.errors import PublishUnavailable
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
from tests.rigs import raw_amqp as amqp
from tests.rigs.broker_rabbitmq import TlsNode
from tests.rigs.fronts import Fronting
from tests.servers.process import LOOPBACK, accepts


class ProxiedNode(TlsNode):
    """A RabbitMQ that takes connections by a proxy only."""

    def __init__(self) -> None:
        super().__init__()
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write("proxy_protocol = true\n")

    def is_ready(self) -> bool:
        return accepts(self.port) and accepts(int(self.tls.url.rpartition(":")[2].split("/")[0]))


@pytest.fixture(scope="module")
def node() -> Iterator[ProxiedNode]:
    """The node, running."""
    with ProxiedNode() as node:
        yield node


async def opened(url: str) -> None:
    """Return once a connection was open."""
    parameters = parameters_of("rabbitmq", url, PublishOptions())
    await close_connection(await open_connection(parameters, WireConnection))


@pytest.mark.parametrize(("scheme", "next"), [("amqp", b"AMQP"), ("amqps", b"\x16")])
async def test_the_header_comes_before_anything_else(scheme: str, next: bytes) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not heard.done():  # else it is asked what it is
            heard.set_result(await reader.readexactly(16 + len(next)))
        writer.close()

    async with await asyncio.start_server(listen, LOOPBACK) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PublishUnavailable):
            await opened(f"{scheme}://{LOOPBACK}:{port}/?proxy_protocol=true")
    assert await heard == b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0" + next


@pytest.mark.slow
async def test_the_broker_takes_the_header_before_tls_as_well(node: ProxiedNode) -> None:
    tls = f"{node.tls.trusting}&proxy_protocol=true"
    await asyncio.gather(opened(f"{node.url}?proxy_protocol=true"), opened(tls))


@pytest.mark.slow
async def test_without_the_option_the_broker_refuses(node: ProxiedNode) -> None:
    with pytest.raises(PublishUnavailable):
        await opened(node.url)


@pytest.mark.slow
def test_behind_a_front_the_broker_sees_each_client_and_the_front_makes_exchanges(
    node: ProxiedNode,
) -> None:
    url = f"{node.url}?proxy_protocol=true"
    with (
        Fronting("redis://127.0.0.1:1/0", url, "front", proxy_protocol=True) as front,
        amqp.opened(front.port) as client,
    ):
        delayed = amqp.declare("D", "x-delayed-message", amqp.table(x_delayed_type="topic"))
        assert client.call(1, amqp.DECLARE, delayed).id == amqp.DECLARE_OK
        ports = node.ctl("list_connections", "peer_port").split()
        assert str(client.sock.getsockname()[1]) in ports

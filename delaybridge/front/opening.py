"""A client that has just connected: whether it may, what it speaks, and the node for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from delaybridge.errors import DecodeError
from delaybridge.front.counts import FrontCounts
from delaybridge.front.handshake import PROTOCOL, proxy_header
from delaybridge.front.relay import Front, Relay

_SPEAK_S = 10.0  # that a client has to say which protocol it speaks, as with RabbitMQ
_CONNECT_S = 5.0  # that a node has to accept a connection


class Unreachable(Exception):
    """No node of the broker takes a connection; the text says why."""


class Node(NamedTuple):
    """A node of the broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Nodes:
    """The nodes of the broker. The one that was reached last is tried first."""

    def __init__(
        self,
        nodes: Sequence[Node],
        tls: ssl.SSLContext | None,
        name: str | None,
        counts: FrontCounts,
    ) -> None:
        """name: which a certificate must have; None: the node's."""
        self._nodes, self._tls, self._name, self._counts = list(nodes), tls, name, counts

    async def connect(self, protocol: asyncio.Protocol) -> Node:
        """Connect the protocol to a node; Unreachable if none can be reached."""
        why = ""
        for node in list(self._nodes):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await asyncio.get_running_loop().create_connection(
                        lambda: protocol, *node, **self._secured(node)
                    )
            except (OSError, TimeoutError) as exc:
                why = f"{node}: {str(exc) or 'no answer'}"
                self._counts.unreachable(str(node), str(exc) or "no answer")
                continue
            self._counts.reached(str(node))
            if node != self._nodes[0]:
                self._nodes = [node, *(each for each in self._nodes if each != node)]
            return node
        raise Unreachable(why)

    def _secured(self, node: Node) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {"ssl": self._tls, "server_hostname": self._name or node.host}


class Doorkeeper(Protocol):
    """What an opening is given by the service, besides what its relay gets."""

    nodes: Nodes

    def is_full(self) -> bool:
        """Whether as many clients are connected as may be."""


class Door(Front, Doorkeeper, Protocol):
    """The service, as an opening sees it."""


class Opening(asyncio.Protocol):
    """The client's socket until the broker's is there, too; then it is a side of a relay."""

    def __init__(self, front: Door) -> None:
        self._front, self._head = front, b""
        self._transport: Any = None
        self._silent: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._relay: Relay | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._front.is_full():
            most = self._front.settings.connections
            self._front.counts.client_refused(
                "limit", f"{most} clients are connected: see front.connections"
            )
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._silent = loop.call_later(_SPEAK_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._speaks()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if len(self._head) < len(PROTOCOL) or self._task is not None:
            return
        self._speaks()
        is_ours = self._head.startswith(PROTOCOL)
        if is_ours or self._front.settings.other_protocols == "pass":
            self._transport.pause_reading()
            self._task = self._front.begin(self._connect(is_blind=not is_ours))
            return
        began = self._head[: len(PROTOCOL)]
        self._front.counts.client_refused(
            "protocol", f"a client begins with {began!r}, which is not AMQP 0-9-1"
        )
        self._transport.write(PROTOCOL)  # as RabbitMQ answers
        self._transport.close()

    def _speaks(self) -> None:
        if self._silent is not None:
            self._silent.cancel()

    async def _connect(self, *, is_blind: bool) -> None:
        front, transport = self._front, self._transport
        relay = Relay(front, transport.get_extra_info("peername") or ("", 0))
        if is_blind:
            relay.client.walker.is_blind = relay.broker.walker.is_blind = True
        try:
            node = await front.nodes.connect(relay.broker)
        except Unreachable as exc:
            front.counts.client_refused("broker", f"no node of the broker is reached: {exc}")
            transport.abort()
            return
        except BaseException:  # the client has gone meanwhile
            relay.abort()
            raise
        if front.settings.proxy_protocol:
            self._say_who(relay)
        transport.set_write_buffer_limits(front.settings.buffer_bytes)
        relay.broker.transport.set_write_buffer_limits(front.settings.buffer_bytes)
        relay.begin(transport, str(node), self._head)

    def _say_who(self, relay: Relay) -> None:
        ends = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        try:
            relay.broker.write(proxy_header(*ends))
        except (DecodeError, ValueError, TypeError):  # a socket that has no address
            relay.broker.write(proxy_header(("127.0.0.1", 0), ("127.0.0.1", 0)))


def nodes_of(texts: Iterable[str], host: str, port: int) -> list[Node]:
    """The nodes that the settings name, as HOST:PORT; else the one of the broker's URL."""
    found = [text.rpartition(":") for text in texts]
    return [Node(host.strip("[]"), int(port)) for host, _, port in found] or [Node(host, port)]

"""A client that has just connected: whether it may, what it speaks, and the node for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pika.connection import Parameters

from delaybridge.front.counts import FrontCounts
from delaybridge.front.handshake import PROTOCOL, proxy_header
from delaybridge.front.relay import Relay

if TYPE_CHECKING:
    from delaybridge.front.front import FrontProcess

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
    """The nodes of the broker. listed: all, the one that was reached last is tried first."""

    def __init__(self, broker: Parameters, named: Sequence[str], counts: FrontCounts) -> None:
        """named: as `nodes_of` takes them."""
        self.listed, self._counts = nodes_of(named, broker.host, broker.port), counts
        tls = broker.ssl_options
        self._tls = tls and tls.context
        self._name = tls and not named and tls.server_hostname  # else that of the node

    async def connect(self, protocol: asyncio.Protocol, header: bytes) -> Node:
        """Connect the protocol to a node; Unreachable if none can be reached.

        header: sent before all else, even before TLS.
        """
        why = ""
        for node in list(self.listed):
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._connect(protocol, node, header)
            except (OSError, TimeoutError) as exc:
                why = f"{node}: {str(exc) or 'no answer'}"
                self._counts.unreachable(str(node), str(exc) or "no answer")
                continue
            self._counts.reached(str(node))
            if node != self.listed[0]:
                self.listed = [node, *(each for each in self.listed if each != node)]
            return node
        raise Unreachable(why)

    async def _connect(self, protocol: asyncio.Protocol, node: Node, header: bytes) -> None:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {"ssl": self._tls}
        tls["server_hostname"] = self._tls and (self._name or node.host)
        if not header:
            await loop.create_connection(lambda: protocol, *node, **tls)
            return
        sock = await asyncio.to_thread(socket.create_connection, node, _CONNECT_S)
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            sock.setblocking(False)
            await loop.sock_sendall(sock, header)
            await loop.create_connection(lambda: protocol, sock=sock, **tls)
            undo.pop_all()


class Opening(asyncio.Protocol):
    """The client's socket until the broker's is there, too; then it is a side of a relay."""

    def __init__(self, front: FrontProcess) -> None:
        self._front, self._head = front, b""
        self._transport: Any = None
        self._relay: Relay | None = None
        self._silent: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        front = self._front
        if front.is_full():
            text = f"{len(front.counts.connections)} are connected: front.connections, or ulimit -n"
            front.counts.client_refused("limit", text)
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        if peer is None:  # it has left already
            self._transport.abort()
            return
        self._relay = Relay(front, peer)
        self._silent = asyncio.get_running_loop().call_later(_SPEAK_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for each in (self._silent, self._task):
            if each is not None:
                each.cancel()
        if self._relay is not None:
            self._relay.abort()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._relay is None or self._task is not None or len(self._head) < len(PROTOCOL):
            return
        if self._silent is not None:
            self._silent.cancel()
        is_ours = self._head.startswith(PROTOCOL)
        passes = self._front.settings.other_protocols == "pass" and self._relay.is_trusted
        if is_ours or passes:
            self._transport.pause_reading()
            for side in (self._relay.client, self._relay.broker):
                side.walker.is_blind = not is_ours
            self._task = self._front.begin(self._connect(self._relay))
            return
        began = self._head[: len(PROTOCOL)]
        who = self._relay.shown.client
        self._front.counts.client_refused(
            "protocol", f"{who} begins with {began!r}, not AMQP 0-9-1"
        )
        self._transport.write(PROTOCOL)  # as RabbitMQ answers
        self._transport.close()

    async def _connect(self, relay: Relay) -> None:
        front, transport, header = self._front, self._transport, b""
        if front.settings.proxy_protocol:
            header = proxy_header(*map(transport.get_extra_info, ("peername", "sockname")))
        try:
            node = await front.nodes.connect(relay.broker, header)
        except Unreachable as exc:
            front.counts.client_refused("broker", f"no node is reached: {exc}")
            transport.abort()
            return
        for each in (transport, relay.broker.transport):
            each.set_write_buffer_limits(front.settings.buffer_bytes)
        relay.open(transport, str(node), self._head)


def nodes_of(texts: Iterable[str], host: str, port: int) -> list[Node]:
    """The nodes that the settings name, as HOST:PORT; else the one of the broker's URL."""
    found = [text.rpartition(":") for text in texts]
    return [Node(host.strip("[]"), int(port)) for host, _, port in found] or [Node(host, port)]

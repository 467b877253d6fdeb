"""A front: in this process, on a loop of its own thread, or as `delaybridge front`; a fake broker.

`Fronting` starts in milliseconds. A `FrontProcess` can be killed, and its signals are real.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from delaybridge.front.front import FrontProcess as Service
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import Identity, loop_factory
from tests.rigs.bridge import ROOT
from tests.rigs.raw_amqp import PROTOCOL
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, ServerProcess, accepts, free_port


class Fronting:
    """A front in this process. settings: of the section `front`. No ingest, no workers."""

    def __init__(
        self, redis_url: str, brokers: str | dict[str, str], namespace: str, **settings: Any
    ) -> None:
        self.port = free_port()
        given = {"listen": f"{LOOPBACK}:{self.port}", "drain_timeout_s": 0, **settings}
        urls = {"rabbitmq": brokers} if isinstance(brokers, str) else brokers
        self.settings = Settings.load(
            None,
            {
                "redis": {"url": redis_url},
                "namespace": namespace,
                "brokers": urls,
                "front": given,
            },
            environ={},
        )
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None
        self._is_stopped = False

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: accepts(self.port) or self.error, "the front listens")
        if self.error is not None:
            raise self.error
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._thread.join(DEADLINE_S)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    @property
    def connections(self) -> int:
        """Clients that are connected now."""
        return len(self.service.counts.connections)

    def received(self) -> list[int]:
        """The bytes that came from the broker, of each connection."""
        return [each.sides[1].received for each in self.service.counts.connections]

    @property
    def has_accepted(self) -> bool:
        """Whether any client was accepted; with TLS, after its handshake."""
        return ("front_accepted_connections_total",) in self.service.report().totals

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop it as SIGTERM does; returns at once. Once: a second SIGTERM ends this process."""
        if not self._is_stopped and self.error is None:
            self._is_stopped = True
            self.loop.call_soon_threadsafe(self.service.stop)

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as exc:
            self.error = exc
        finally:
            self.loop.close()

    async def _serve(self) -> None:
        self.service = Service(self.settings, Identity.of_this_process(None))
        await self.service.work()


class FrontProcess(ServerProcess):
    """`delaybridge front`. settings: environment variables without DELAYBRIDGE_.

    environment: all others, if they are not those of this process.
    """

    name = "front"

    def __init__(
        self,
        redis_url: str,
        brokers: Mapping[str, str],
        namespace: str,
        *options: str,
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        super().__init__()
        self._environment = environment or {**os.environ, "PYTHONPATH": str(ROOT)}
        self._options = ["--redis", redis_url, "--namespace", namespace]
        self._options += [f"--broker={name}={url}" for name, url in brokers.items()]
        self._options += ["front", "--listen", f"{LOOPBACK}:{self.port}", *options]
        self._settings = {f"DELAYBRIDGE_{name}": value for name, value in settings.items()}

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "delaybridge", *self._options]

    def environment(self) -> Mapping[str, str]:
        return {**self._environment, **self._settings}

    def is_ready(self) -> bool:
        return accepts(self.port)

    def stop(self) -> None:
        """Stop it, as an init system does: the first process gets the signal."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            until(lambda: not self.running, "the front ends")
        self.kill()


class FakeBroker:
    """What a front connects to: the test is the broker. tls: its side of TLS."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._tls = tls
        self._listener = socket.create_server((LOOPBACK, port))
        self._listener.settimeout(DEADLINE_S)
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (*self._open, self._listener):
            each.close()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}/%2F"

    def accept(self) -> socket.socket:
        """The next connection of the front, but for those with which it only looks for a broker."""
        while True:
            sock, _ = self._listener.accept()
            sock.settimeout(DEADLINE_S)
            if sock.recv(1, socket.MSG_PEEK):
                break
            sock.close()
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True)
        self._open.append(sock)
        return sock


class Pair:
    """The two ends of a connection that a front relays: the test is client and broker."""

    def __init__(self, front: Fronting, broker: FakeBroker) -> None:
        self.client = socket.create_connection((LOOPBACK, front.port), timeout=DEADLINE_S)
        self.client.sendall(PROTOCOL)
        self.broker = broker.accept()
        assert read(self.broker, len(PROTOCOL)) == PROTOCOL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()
        self.broker.close()


def read(sock: socket.socket, count: int) -> bytes:
    """This many bytes; fewer if the stream ends before."""
    found = bytearray()
    while len(found) < count and (data := sock.recv(min(count - len(found), 1 << 20))):
        found += data
    return bytes(found)


def read_all(sock: socket.socket) -> bytes:
    """All that comes until the stream ends."""
    return read(sock, sys.maxsize)

"""A network between servers, and from clients to them, that can be cut between any two.

All are on this machine, so each server's connections come from a loopback address of its own, and
each server is known by a port on which this network forwards to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import LOOPBACK, free_port

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Place:
    """Where a server is: the address its connections come from, and the ports that lead to it."""

    source: str
    ports: set[int] = field(default_factory=set)


CLIENTS = Place(LOOPBACK)  # everything that is no server: workers, clients, the test


class Network(contextlib.AbstractContextManager):
    """Forwards on a thread of its own. What passes while a path is cut is lost, without a sign.

    `heal` resets the connections of which anything was lost, as the end of a partition does when
    it has lasted.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._cuts: set[tuple[str, int]] = set()  # where from, the port they connect to
        self._lossy: set[asyncio.StreamWriter] = set()
        self._thread.start()

    def place(self) -> Place:
        return Place(f"127.0.1.{next(self._numbers)}")

    def lead_to(self, port: int, place: Place) -> int:
        """A new port of the place; what connects to it reaches the server's own."""
        known = free_port()
        accept = lambda reader, writer: self._accept(reader, writer, known, port)  # noqa: E731
        self._servers.append(self._run(asyncio.start_server(accept, LOOPBACK, known)))
        place.ports.add(known)
        return known

    def cut(self, one: Place, others: Iterable[Place]) -> None:
        """Nothing passes any more between the place and each of the others, either way."""
        for other in others:
            self._cuts |= {(one.source, port) for port in other.ports}
            self._cuts |= {(other.source, port) for port in one.ports}

    def heal(self) -> None:
        self._cuts = set()
        self._loop.call_soon_threadsafe(self._reset_lossy)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _end(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, known: int, port: int
    ) -> None:
        if not self._servers:
            writer.transport.abort()  # it arrived while the network was closing
            return
        path = (writer.get_extra_info("peername")[0], known)
        pump = self._loop.create_task(self._forward(reader, writer, path, port))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        # A pump that is cancelled before its first step closes nothing.
        pump.add_done_callback(lambda _: writer.transport.abort())

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        path: tuple[str, int],
        port: int,
    ) -> None:
        open_ends = [writer]
        is_cut = lambda: path in self._cuts  # noqa: E731
        try:
            up_reader, up_writer = await asyncio.open_connection(LOOPBACK, port)
            open_ends.append(up_writer)
            both = (
                self._pump(reader, up_writer, writer, is_cut),
                self._pump(up_reader, writer, writer, is_cut),
            )
            await asyncio.gather(*both)
        except OSError:
            if is_cut():  # a server that is down behind a cut does not answer, either
                self._lossy.add(writer)
                await reader.read(-1)
        finally:
            self._lossy.discard(writer)
            for end in open_ends:
                end.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        is_cut: Callable[[], bool],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if is_cut():
                    self._lossy.add(client)
                    continue
                writer.write(data)
                await writer.drain()
            if is_cut() or client in self._lossy:  # nor does the end of a connection pass
                self._lossy.add(client)
                return
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()

    def _reset_lossy(self) -> None:
        for writer in list(self._lossy):
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

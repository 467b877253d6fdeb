"""A TCP proxy on the test's own loop that swallows bytes, resets connections, refuses new ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

LOOPBACK = "127.0.0.1"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class FaultProxy:
    """Forwards `port` to `target` until it is told otherwise.

    mode: "pass"; "blackhole" swallows both ways, "blackhole_up" what clients send,
    "blackhole_down" what the server answers; "hold_down" keeps what the server answers until the
    mode changes; "refuse" takes no new connection. `swallow_subscriptions` has those that exist
    now go dead without a sign, `swallow_connections` all.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self.mode = "pass"
        self.delay_s = 0.0  # of whatever passes, in each direction
        self.bytes_per_s = 0.0  # towards the server; 0: without a limit
        self.swallowed = 0  # bytes so far
        self._writers: set[asyncio.StreamWriter] = set()
        self._subscribers: set[asyncio.StreamWriter] = set()  # towards the clients
        self._swallowed: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def swallow_subscriptions(self) -> int:
        """Pass on nothing more of the connections that subscribed; how many they are."""
        self._swallowed |= self._subscribers
        return len(self._subscribers)

    def swallow_connections(self) -> None:
        """Pass on nothing more of all that are open, as a firewall that has forgotten them."""
        self._swallowed |= self._writers

    def reset(self) -> None:
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._server.is_serving():
            writer.transport.abort()  # it arrived while the proxy was closing
            return
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step closes nothing.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.mode == "refuse":
                return
            up_reader, up_writer = await asyncio.open_connection(LOOPBACK, self.target)
            self._writers.add(up_writer)
            try:
                await asyncio.gather(
                    self._pump(reader, up_writer, writer, "blackhole_up"),
                    self._pump(up_reader, writer, writer, "blackhole_down"),
                )
            finally:
                self._close(up_writer)
        except OSError:
            pass
        finally:
            self._close(writer)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        swallow: str,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1024 if self.bytes_per_s else 65536):
                while self.mode == "hold_down" == swallow.replace("blackhole", "hold"):
                    await asyncio.sleep(0.01)
                # The rights are tried with both in one go.
                stays = b"SUBSCRIBE" in data and b"UNSUBSCRIBE" not in data
                if writer is not client and stays:
                    self._subscribers.add(client)
                is_paced = self.bytes_per_s and client is not writer
                if wait_s := self.delay_s + (len(data) / self.bytes_per_s if is_paced else 0):
                    await asyncio.sleep(wait_s)
                if self.mode in ("blackhole", swallow) or client in self._swallowed:
                    self.swallowed += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        self._subscribers.discard(writer)
        writer.transport.abort()

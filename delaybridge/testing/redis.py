"""A Redis in this process whose clock is set: fakeredis behind a socket, with what it lacks.

That is INFO, and in scripts the libraries `struct` and `cmsgpack`, as far as ours use them.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from fakeredis import FakeRedis, FakeServer
from fakeredis._clients._tcp_server import encode_reply
from fakeredis._commands import command
from fakeredis._core._database import Database
from fakeredis._socket._fakesocket import FakeSocket

from delaybridge.message import destination_text
from delaybridge.store.protocol.scripts import scripts

_INFO = b"redis_version:8.0.0\r\nrun_id:%b\r\nrole:master\r\nused_memory:1000000\r\n" % (b"0" * 40)
_INFO += b"maxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
_SIZES = {"I1": "B", "I2": "H", "I4": "I", "I8": "Q", "c4": "4s"}  # as Lua and Python write them
_PIECE_BYTES = 4096  # its parser copies what is left of a piece after each word
_IN_FLIGHT = 5  # an answer
_STRANGER = [-1]  # the answer of a bucket that is new: the call is made again


class MemoryRedis(FakeServer):
    """Its keys, its clock and its scripts.

    now_ms: what TIME says, until it is set again. on_publish: called with each text published.
    on_wait: called when a call has to wait for a message of its key, which is due.
    transports: of its connections.
    """

    def __init__(self, now_ms: int) -> None:
        super().__init__(version=(8,))
        self.now_ms = now_ms
        self.on_publish: Callable[[str], None] = lambda text: None
        self.on_wait: Callable[[], None] = lambda: None
        self.transports: set[asyncio.Transport] = set()
        self.dbs = defaultdict(lambda: _Database(self))
        self.script_cache |= {sha.encode(): text.encode() for text, sha in scripts().values()}
        self._lua_expected_globals: set[bytes] = set()
        lua = _Connection(self)._get_server_runtime(self)
        libraries: dict[bytes, dict[bytes, Callable[..., Any]]] = {
            b"struct": {b"pack": lambda form, *v: _layout(form).pack(*v), b"unpack": _unpack},
            b"cmsgpack": {b"unpack_limit": _first_text},
        }
        for name, functions in libraries.items():
            lua.globals()[name] = lua.table_from(functions)
            self._lua_expected_globals.add(name)
        lua.globals()[b"collectgarbage"] = lambda: None  # else all of it after each script

    async def listen(self) -> str:
        """The URL at which it listens from now on, on the running loop."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End every connection; the loop has to turn once more."""
        self._listener.close()
        for transport in [*self.transports]:
            transport.abort()


class _Database(Database):
    """Keys that expire by the set clock; fakeredis sets `time` before each command."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        super().__init__(redis.lock)

    time = property(lambda self: self._redis.now_ms / 1000, lambda self, _now: None)


class _Connection(FakeSocket, asyncio.Protocol):
    """The server's side of one connection."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        super().__init__(redis, 0, client_class=FakeRedis)

    def connection_made(self, transport: Any) -> None:
        self._transport, self._unsent = transport, bytearray()
        self._redis.transports.add(transport)

    def data_received(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE_BYTES):
            self.sendall(data[at : at + _PIECE_BYTES])

    def connection_lost(self, error: Exception | None) -> None:
        self._redis.transports.discard(self._transport)
        self.close()

    def put_response(self, msg: Any) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += encode_reply(msg, self._client_info.protocol_version)

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(bytes(self._unsent))
        self._unsent.clear()

    @command((), (bytes,))
    def info(self, *_sections: bytes) -> bytes:
        return _INFO

    def _auth(self, *_login: bytes) -> bytes:
        return b"OK"

    def time(self) -> list[bytes]:
        seconds, ms = divmod(self._redis.now_ms, 1000)
        return [b"%d" % seconds, b"%d" % (ms * 1000)]

    def publish(self, channel: bytes, message: bytes) -> Any:
        self._redis.on_publish(message.decode(errors="replace"))
        return super().publish(channel, message)

    def evalsha(self, sha1: bytes, numkeys: int, *words: bytes) -> Any:
        """Run a script. Each call that schedules has a millisecond of its own."""
        reply = super().evalsha(sha1, numkeys, *words)
        known = scripts()
        is_schedule = sha1.decode() == known["schedule"][1] and reply != _STRANGER
        if is_schedule or (sha1.decode() == known["schedule_one"][1] and reply):
            self._redis.now_ms += 1
        if is_schedule and _IN_FLIGHT in reply[::3]:
            self._redis.on_wait()
        return reply


# what scripts call


def _first_text(record: bytes, _limit: int, at: int) -> tuple[int, bytes]:
    """`cmsgpack.unpack_limit` of a record behind its head: the destination."""
    return at, destination_text(record[at - 1 :]).encode()


def _layout(text: bytes) -> struct.Struct:
    return struct.Struct(re.sub("[Ic][1-8]", lambda found: _SIZES[found[0]], text.decode()))


def _unpack(layout: bytes, data: bytes, at: int = 1) -> tuple[Any, ...]:
    found = _layout(layout)
    return (*found.unpack_from(data, at - 1), at + found.size)

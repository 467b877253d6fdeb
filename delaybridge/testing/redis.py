"""A Redis in this process whose clock is set: fakeredis behind a socket, with what it lacks.

That is INFO, and in scripts the libraries `struct` and `cmsgpack`, as far as ours use them.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import lupa.lua51
from fakeredis import FakeRedis, FakeServer
from fakeredis._clients._tcp_server import encode_reply
from fakeredis._commands import Signature
from fakeredis._core._database import Database
from fakeredis._helpers import SimpleError
from fakeredis._socket._fakesocket import FakeSocket

from delaybridge.message import destination_text
from delaybridge.store.protocol.scripts import scripts

_INFO = f"""redis_version:8.0.0\r
run_id:{"0" * 40}\r
role:master\r
loading:0\r
used_memory:1000000\r
maxmemory:0\r
maxmemory_policy:noeviction\r
""".encode()
_INFO_SIGNATURE = Signature("info", "info", (), (bytes,))  # type: ignore[arg-type]
_STRANGER = -1  # the answer of a bucket that is new: the call is made again


class MemoryRedis:
    """Its keys, its clock and its scripts.

    now_ms: what TIME says, until it is set again. on_publish: called with each text published.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.on_publish: Callable[[str], None] = lambda text: None
        self.server = FakeServer(version=(8,))
        self.server.dbs = defaultdict(lambda: _Database(self))
        self._schedule = scripts()["schedule"][1].encode()
        self._compiled: dict[bytes, Any] = {}
        self._socket: Any = None  # of the client whose script runs
        self._open: set[asyncio.BaseTransport] = set()
        self._lua = lua = lupa.lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        libraries: dict[bytes, dict[bytes, Any]] = {
            b"redis": {
                b"call": self._call,
                b"pcall": self._pcall,
                b"error_reply": lambda text: lua.table_from({b"err": text}),
            },
            b"cjson": {b"decode": lambda text: lua.table_from(_from_json(text), recursive=True)},
            b"struct": {b"pack": _pack, b"unpack": _unpack},
            b"cmsgpack": {b"unpack_limit": _first_text},
        }
        for name, functions in libraries.items():
            lua.globals()[name] = lua.table_from(functions)
        for text, sha in scripts().values():
            self.server.script_cache[sha.encode()] = text.encode()

    async def listen(self) -> str:
        """The URL at which it listens from now on, on the running loop."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """End every connection; the loop has to turn once more."""
        self._listener.close()
        for transport in [*self._open]:
            transport.abort()  # type: ignore[attr-defined]

    def connected(self, transport: Any) -> _Socket:
        """The server's side of a connection that a client has opened."""
        self._open.add(transport)
        return _Socket(self, transport)

    def disconnected(self, transport: Any) -> None:
        """A client has closed its connection."""
        self._open.discard(transport)

    def run(self, socket: _Socket, sha: bytes, keys: Any, words: Any) -> Any:
        """Run a script for a client. Each call that schedules has a millisecond of its own."""
        self._socket, table = socket, self._lua.table_from
        if sha not in self._compiled:  # on the line of the first one: errors name the right line
            source = b"local KEYS, ARGV = ... " + self.server.script_cache[sha]
            self._compiled[sha] = self._lua.compile(source)
        try:
            reply = self._compiled[sha](table(keys), table(words))
        except lupa.lua51.LuaError as error:
            raise SimpleError(f"ERR {error}") from None
        if sha == self._schedule and reply[1] != _STRANGER:
            self.now_ms += 1
        return reply

    def _call(self, name: bytes, *words: Any) -> Any:
        function, signature = self._socket._name_to_func(name.decode().lower())
        arguments = [w if isinstance(w, bytes) else b"%.17g" % w for w in words]
        result = self._socket._run_command(function, signature, arguments, True)
        return self._socket._convert_redis_result(self._lua, result)

    def _pcall(self, name: bytes, *words: Any) -> Any:
        try:
            return self._call(name, *words)
        except SimpleError as error:
            return self._lua.table_from({b"err": error.value.encode()})


class _Database(Database):
    """Keys that expire by the set clock; fakeredis sets `time` before each command."""

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        super().__init__(redis.server.lock)

    time = property(lambda self: self._redis.now_ms / 1000, lambda self, _now: None)


class _Socket(FakeSocket):
    """The server's side of one connection."""

    def __init__(self, redis: MemoryRedis, transport: asyncio.Transport) -> None:
        self._redis, self._transport = redis, transport
        super().__init__(redis.server, 0, client_class=FakeRedis)

    def _name_to_func(self, cmd_name: str) -> Any:
        known = super()._name_to_func
        return (self.info, _INFO_SIGNATURE) if cmd_name == "info" else known(cmd_name)

    def _decode_result(self, result: Any) -> Any:
        return result if isinstance(result, SimpleError) else super()._decode_result(result)

    def put_response(self, msg: Any) -> None:
        if isinstance(msg, SimpleError):
            self._transport.write(b"-%b\r\n" % " ".join(msg.value.split()).encode())
        else:
            self._transport.write(encode_reply(msg, self._client_info.protocol_version))

    def info(self, *_sections: bytes) -> bytes:
        return _INFO

    def time(self) -> list[bytes]:
        seconds, ms = divmod(self._redis.now_ms, 1000)
        return [b"%d" % seconds, b"%d" % (ms * 1000)]

    def publish(self, channel: bytes, message: bytes) -> Any:
        self._redis.on_publish(message.decode(errors="replace"))
        return super().publish(channel, message)

    def evalsha(self, sha1: bytes, numkeys: int, *words: bytes) -> Any:
        if sha1 not in self._server.script_cache:
            raise SimpleError("NOSCRIPT No matching script. Please use EVAL.")
        result = self._redis.run(self, sha1, words[:numkeys], words[numkeys:])
        return self._convert_lua_result(result, nested=False)


class _Connection(asyncio.Protocol):
    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis

    def connection_made(self, transport: Any) -> None:
        self._transport, self._socket = transport, self._redis.connected(transport)

    def data_received(self, data: bytes) -> None:
        self._socket.sendall(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._redis.disconnected(self._transport)
        self._socket.close()


# what scripts call


def _from_json(value: Any) -> Any:
    """Lists of texts, as `cjson` reads them: the texts are bytes."""
    if isinstance(value, bytes):
        value = json.loads(value)
    return [_from_json(each) for each in value] if isinstance(value, list) else value.encode()


def _first_text(record: bytes, _limit: int, at: int) -> tuple[int, bytes]:
    """`cmsgpack.unpack_limit` of a record behind its head: the destination."""
    return at, destination_text(record[at - 1 :]).encode()


def _layout(text: bytes) -> str:
    """`>Bdc4` as Python writes it."""
    layout = text.decode()
    for theirs, ours in {"I1": "B", "I2": "H", "I4": "I", "I8": "Q", "c4": "4s"}.items():
        layout = layout.replace(theirs, ours)
    return layout


def _pack(layout: bytes, *values: Any) -> bytes:
    return struct.pack(_layout(layout), *values)


def _unpack(layout: bytes, data: bytes, at: int = 1) -> tuple[Any, ...]:
    found = _layout(layout)
    return (*struct.unpack_from(found, data, at - 1), at + struct.calcsize(found))

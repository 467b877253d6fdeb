"""A connection to Redis on uvloop: a write after its end is a lost connection, nothing worse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from delaybridge.store.connection import StreamConnection


class ClosedWriter:
    """uvloop's, once the transport is closed; asyncio's would drop the bytes."""

    def write(self, data: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")


async def test_a_write_to_a_closed_connection_is_a_lost_connection() -> None:
    made: Any = redis.asyncio.Connection()
    made._reader, made._writer = asyncio.StreamReader(), ClosedWriter()
    with pytest.raises(redis.ConnectionError):
        await StreamConnection(made, 1.0, 0).call([b"*1\r\n$4\r\nPING\r\n"])

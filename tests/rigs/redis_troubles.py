"""Troubles of a Redis: it moves to another server, is busy, or cannot write."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import redis

from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import until, until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer

Pair = tuple[RedisServer, RedisServer]


@contextlib.asynccontextmanager
async def moving(pair: Sequence[RedisServer]) -> AsyncIterator[tuple[FaultProxy, Any]]:
    """An address that leads to the first server; `move` makes the second one the master.

    Connections through the address stay open, to a server that from then on only reads.
    """
    old, new = pair
    with (
        redis.Redis(host=LOOPBACK, port=old.port) as was,
        redis.Redis(host=LOOPBACK, port=new.port) as will_be,
    ):
        will_be.replicaof(LOOPBACK, old.port)

        async def move() -> None:
            await until_async(
                # Written each time, since it stands behind what workers have written meanwhile.
                lambda: was.set("the last thing written", 1) and was.wait(1, 100) == 1,
                "the replica has it all",
            )
            will_be.replicaof("NO", "ONE")
            was.replicaof(LOOPBACK, new.port)
            proxy.target = new.port

        async with FaultProxy(free_port(), old.port) as proxy:
            yield proxy, move


def endless_script(connection: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        connection.eval("while true do end", 0)


def is_busy(connection: redis.Redis) -> bool:
    try:
        return not connection.ping()
    except redis.ResponseError as exc:
        return "BUSY" in str(exc)


def refuse_writes(server: RedisServer, admin: redis.Redis) -> None:
    """Make a snapshot fail, after which Redis refuses writes: MISCONF."""
    (server.folder / "dump.rdb").mkdir()  # which cannot be replaced by a file
    admin.config_set("save", "3600 1")
    admin.bgsave()
    until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(redis.ResponseError, match="MISCONF"):
        admin.set("any", 1)

"""B4: how fast messages are accepted, beside the same script calls without delaybridge's client.

    python -m bench.schedule [MESSAGES] [RUNS]

`raw` packs the very same calls beforehand and sends them pipelined on one connection; `SET` is one
plain round trip after the other.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import hiredis

from bench.rig import BODY, Bench, Table, bench, median
from delaybridge import AsyncClient, Message
from delaybridge.accept.accept import Accepted
from delaybridge.message import OnConflict
from delaybridge.store import keys
from delaybridge.store.calls import Calls
from delaybridge.store.scripts import scripts
from delaybridge.store.verbs import new_stamp
from tests.servers.redis import RedisServer

CALL = 1000
CALLERS = 100
DESTINATION = "kafka:orders"
BROKERS = {"kafka": "kafka://127.0.0.1:1"}  # only its name is looked at


def messages(count: int) -> list[Message]:
    """So many, due tomorrow."""
    return [Message(DESTINATION, BODY, delay="1d") for _ in range(count)]


def raw(mine: Bench, count: int) -> float:
    """Calls that were packed before, two pipelines on their way at a time."""
    buckets = mine.client.run(Calls.open)
    pipelines = []
    for _ in range(0, count, CALL):
        by_bucket: dict[int, list[tuple[bytes, Accepted]]] = {}
        for one in map(mine.client.accept, messages(CALL)):
            number = keys.bucket_of(one.shard_key, len(buckets))
            by_bucket.setdefault(number, []).append((new_stamp(), one))
        packed = b""
        for number, part in by_bucket.items():
            command = buckets[number].schedule(part, OnConflict.FAIL, first=True)
            sha = scripts()[command.name][1]
            words = ("EVALSHA", sha, len(command.keys), *command.keys, *command.args)
            packed += hiredis.pack_command(words)
        pipelines.append((packed, len(by_bucket)))
    url = urlsplit(mine.redis_url)
    with socket.create_connection((url.hostname or "", url.port or 6379)) as connection:
        reader = hiredis.Reader()
        began_s = time.monotonic()
        connection.sendall(pipelines[0][0])
        for (_, replies), behind in zip(pipelines, [*pipelines[1:], (b"", 0)], strict=True):
            connection.sendall(behind[0])
            for _ in range(replies):
                while (reply := reader.gets()) is False:
                    reader.feed(connection.recv(65536))
                if not isinstance(reply, list) or reply[0] != 1:
                    raise RuntimeError(reply)
        return count / (time.monotonic() - began_s)


def many(mine: Bench, count: int) -> float:
    """`schedule_many` in batches of a thousand; the same messages, each time with new ids."""
    batch = messages(CALL)
    began_s = time.monotonic()
    for _ in range(0, count, CALL):
        mine.client.schedule_many(batch)
    return count / (time.monotonic() - began_s)


def callers(mine: Bench, count: int) -> float:
    """`AsyncClient.schedule` from a hundred tasks."""

    async def run() -> float:
        async with AsyncClient(mine.redis_url, namespace=mine.namespace, brokers=BROKERS) as client:
            await client.schedule(DESTINATION, BODY, delay="1d")

            async def call() -> None:
                for _ in range(count // CALLERS):
                    await client.schedule(DESTINATION, BODY, delay="1d")

            began_s = time.monotonic()
            await asyncio.gather(*(call() for _ in range(CALLERS)))
            return count / (time.monotonic() - began_s)

    return asyncio.run(run())


def one_by_one(mine: Bench, count: int) -> float:
    """`Client.schedule`, one call after the other."""
    began_s = time.monotonic()
    for _ in range(count):
        mine.client.schedule(DESTINATION, BODY, delay="1d")
    return count / (time.monotonic() - began_s)


def sets(mine: Bench, count: int) -> float:
    """SET of as many bytes, one round trip after the other."""
    redis, value = mine.redis, os.urandom(200)
    began_s = time.monotonic()
    for number in range(count):
        redis.set(f"{{{mine.namespace}:0}}:{number % 100}", value)
    return count / (time.monotonic() - began_s)


Ways = tuple[tuple[str, Callable[[Bench, int], float], str], ...]
BATCHED: Ways = (
    ("raw pipelined script calls", raw, ""),
    ("schedule_many, batches of 1,000", many, "must: 0.8"),
    (f"AsyncClient, {CALLERS} callers", callers, "must: 0.5"),
)
SINGLE: Ways = (
    ("plain SET round trips", sets, ""),
    ("Client.schedule, one by one", one_by_one, "must: 0.7"),
)


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table. In each run a limit is measured right beside what is held against it."""
    with RedisServer() as redis:

        def rate(measured: Callable[[Bench, int], float], calls: int) -> float:
            with bench(redis.url, **BROKERS) as mine:
                return measured(mine, calls)

        out = Table(f"B4 schedule: {count:,} messages of 100 bytes")
        for ways, calls, limit in ((BATCHED, count, "raw"), (SINGLE, count // 10, "SET")):
            rates = [[rate(measured, calls) for _, measured, _ in ways] for _ in range(runs)]
            for i, (name, _, must) in enumerate(ways):
                shares = [run[i] / run[0] for run in rates]
                figures = [f"{median([run[i] for run in rates]):,.0f}/s"]
                if i:
                    figures += [f"{median(shares):.2f} of {limit}", must]
                out.line(name, *figures)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

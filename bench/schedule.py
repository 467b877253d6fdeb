"""B4: how fast messages are scheduled, compared with the same script calls without the client.

    python -m bench.schedule [MESSAGES] [RUNS]

`raw` packs the same calls before the clock starts and sends them pipelined on one connection. `SET`
is a plain SET of 200 bytes, one round trip after the other. CPU is this process', per message. The
least script does HSETNX and ZADD of the same record, one EVALSHA after the other; what Redis spends
on it and on `Client.schedule` is its own time of the script calls (`commandstats`) and its CPU, all
threads (`INFO cpu`), if nothing else calls it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from operator import sub
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import hiredis

from bench.rig import BODY, Bench, Table, open_bench, open_redis, redis_cpu_s
from delaybridge import AsyncClient, Message
from delaybridge.accept.accept import Accepted
from delaybridge.message import OnConflict, Record, encode_record, new_id
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.record import HEAD_SIZE
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.protocol.verbs import new_stamp

CALL = 1000
CALLERS = 100
DESTINATION = "kafka:orders"
BROKERS = {"kafka": "kafka://127.0.0.1:1"}  # never connected
LEAST = """redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])"""
BUCKETS = 16


def messages(count: int) -> list[Message]:
    """Make `count` messages due tomorrow."""
    return [Message(DESTINATION, BODY, delay="1d") for _ in range(count)]


def raw_rate(bench: Bench, count: int) -> float:
    """Messages per second of script calls packed beforehand, two pipelines in flight at a time."""
    buckets = bench.client.run(Calls.open)
    pipelines = []
    for _ in range(0, count, CALL):
        by_bucket: dict[int, list[tuple[bytes, Accepted]]] = {}
        for one in map(bench.client.accept, messages(CALL)):
            number = verbs.bucket_of(one.shard_key, len(buckets))
            by_bucket.setdefault(number, []).append((new_stamp(), one))
        packed = b""
        for number, part in by_bucket.items():
            command = buckets[number].schedule(part, OnConflict.FAIL, first=True)
            sha = scripts()[command.name][1]
            words: Any = ("EVALSHA", sha, len(command.keys), *command.keys, *command.args)
            packed += hiredis.pack_command(words)
        pipelines.append((packed, len(by_bucket)))
    url = urlsplit(bench.redis_url)
    with socket.create_connection((url.hostname or "", url.port or 6379)) as connection:
        reader = hiredis.Reader()
        began_s = time.monotonic()
        connection.sendall(pipelines[0][0])
        for (_, replies), following in zip(pipelines, [*pipelines[1:], (b"", 0)], strict=True):
            connection.sendall(following[0])
            for _ in range(replies):
                while (reply := reader.gets()) is False:
                    reader.feed(connection.recv(65536))
                if not isinstance(reply, list) or reply[0] != 1:
                    raise RuntimeError(reply)
        return count / (time.monotonic() - began_s)


def schedule_many_rate(bench: Bench, count: int) -> float:
    """Messages per second of `schedule_many`, in batches of a thousand with new ids each time."""
    batch = messages(CALL)
    began_s = time.monotonic()
    for _ in range(0, count, CALL):
        bench.client.schedule_many(batch)
    return count / (time.monotonic() - began_s)


def async_client_rate(bench: Bench, count: int) -> float:
    """Messages per second of `AsyncClient.schedule`, called by a hundred tasks."""

    async def run() -> float:
        name = bench.namespace
        async with AsyncClient(bench.redis_url, namespace=name, brokers=BROKERS) as client:
            await client.schedule(DESTINATION, BODY, delay="1d")

            async def call() -> None:
                for _ in range(count // CALLERS):
                    await client.schedule(DESTINATION, BODY, delay="1d")

            began_s = time.monotonic()
            await asyncio.gather(*(call() for _ in range(CALLERS)))
            return count / (time.monotonic() - began_s)

    return asyncio.run(run())


def asyncio_rate(bench: Bench, count: int) -> float:
    """Calls per second of a hundred tasks that await futures, all resolved each tick: the floor."""

    async def run() -> float:
        waiting: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()

        def answer() -> None:
            answered = waiting.copy()
            waiting.clear()
            for future in answered:
                future.set_result(None)

        async def call() -> None:
            for _ in range(count // CALLERS):
                if not waiting:
                    loop.call_soon(answer)
                waiting.append(future := loop.create_future())
                await future

        began_s = time.monotonic()
        await asyncio.gather(*(call() for _ in range(CALLERS)))
        return count / (time.monotonic() - began_s)

    return asyncio.run(run())


def schedule_rate(bench: Bench, count: int) -> float:
    """Messages per second of `Client.schedule`, one call after the other."""
    began_s = time.monotonic()
    for _ in range(count):
        bench.client.schedule(DESTINATION, BODY, delay="1d")
    return count / (time.monotonic() - began_s)


def set_rate(bench: Bench, count: int) -> float:
    """SETs of 200 bytes per second, one round trip after the other."""
    redis, value = bench.redis, os.urandom(200)
    began_s = time.monotonic()
    for number in range(count):
        redis.set(f"{{{bench.namespace}:0}}:{number % 100}", value)
    return count / (time.monotonic() - began_s)


def least_script_rate(bench: Bench, count: int) -> float:
    """Calls per second of a script that only stores a record and its due time, one by one."""
    sha, record = bench.redis.script_load(LEAST), encode_record(Record(DESTINATION, BODY))
    record, due = b"." * HEAD_SIZE + record, time.time_ns() // 1_000_000 + 86_400_000 + 255 / 256
    url, packed = urlsplit(bench.redis_url), []
    for number in range(count):
        bucket = f"{{{bench.namespace}:{number % BUCKETS}}}:least-"
        words: Any = ("EVALSHA", sha, 2, f"{bucket}messages", f"{bucket}due", new_id(), record, due)
        packed.append(hiredis.pack_command(words))
    with socket.create_connection((url.hostname or "", url.port or 6379)) as connection:
        reader = hiredis.Reader()
        began_s = time.monotonic()
        for call in packed:
            connection.sendall(call)
            while (reply := reader.gets()) is False:
                reader.feed(connection.recv(65536))
            if reply != 1:
                raise RuntimeError(reply)
        return count / (time.monotonic() - began_s)


def redis_costs(bench: Bench) -> tuple[float, float]:
    """Seconds of script calls, and of CPU, that Redis has spent so far."""
    calls = bench.redis.info("commandstats").get("cmdstat_evalsha", {"usec": 0})
    return calls["usec"] / 1e6, redis_cpu_s(bench)


Ways = tuple[tuple[str, Callable[[Bench, int], float], str], ...]
BATCHED: Ways = (
    ("raw pipelined script calls", raw_rate, ""),
    ("schedule_many, batches of 1,000", schedule_many_rate, "target 0.8"),
    (f"AsyncClient, {CALLERS} callers", async_client_rate, "target 0.5, 5 us"),
    (f"asyncio alone, {CALLERS} callers", asyncio_rate, ""),
)
SINGLE: Ways = (
    ("plain SET round trips", set_rate, ""),
    ("Client.schedule, one by one", schedule_rate, "target 0.8"),
)
SCRIPTS: Ways = (
    ("least script, one by one", least_script_rate, ""),
    ("script of Client.schedule", schedule_rate, "targets 1.5, 1.3"),
)


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table. Each run measures a limit and right after it the rates compared with it."""
    with open_redis() as redis:

        def rate(measure: Callable[[Bench, int], float], calls: int) -> tuple[float, float]:
            with open_bench(redis.url, **BROKERS) as bench:
                began_s = time.process_time()
                found = measure(bench, calls)
                return found, (time.process_time() - began_s) / calls * 1e6

        out = Table(f"B4 schedule: {count:,} messages of 100 bytes")
        for ways, calls, limit in ((BATCHED, count, "raw"), (SINGLE, count // 10, "SET")):
            rates = [[rate(measure, calls) for _, measure, _ in ways] for _ in range(runs)]
            for i, (name, _, target) in enumerate(ways):
                shares = [run[i][0] / run[0][0] for run in rates]
                figures = [f"{median([run[i][0] for run in rates]):,.0f}/s"]
                if i:
                    cpu_us = median([run[i][1] for run in rates])
                    figures += [f"{median(shares):.2f} of {limit}", f"{cpu_us:.1f} us CPU", target]
                out.line(name, *figures)
        compare_scripts(out, redis.url, count // 10, runs)


def compare_scripts(out: Table, redis_url: str, count: int, runs: int) -> None:
    """Print what Redis spends on a single `schedule`, and on the least script for its writes."""
    found: list[list[tuple[float, float]]] = []
    for _ in range(runs):
        found.append([])
        for _, measure, _ in SCRIPTS:
            with open_bench(redis_url, **BROKERS) as bench:
                measure(bench, max(1, count // 100))  # connected, scripts loaded
                before = redis_costs(bench)
                measure(bench, count)
                call_s, cpu_s = map(sub, redis_costs(bench), before)
                found[-1].append((call_s / count * 1e6, cpu_s / count * 1e6))
    for i, (name, _, target) in enumerate(SCRIPTS):
        call_us, cpu_us = (median([run[i][j] for run in found]) for j in (0, 1))
        shares = [
            median([run[i][j] / run[0][j] if run[0][j] else 0.0 for run in found]) for j in (0, 1)
        ]
        figures = [f"{call_us:.1f} us a call", f"{cpu_us:.1f} us of Redis' CPU"]
        if i:
            figures += [f"{shares[0]:.2f}, {shares[1]:.2f} of the least", target]
        out.line(name, *figures)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

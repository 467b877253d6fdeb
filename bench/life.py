"""How many microseconds of Redis' CPU a message's whole life takes.

    python -m bench.life [MESSAGES] [RUNS]

A life: scheduled (`schedule_many`, a thousand a call), claimed, fired and settled by one worker
that publishes to memory; 100 bytes, 16 buckets. `INFO cpu` of a Redis that does nothing else, all
its threads. The limit is what storing and deleting the same ids and records takes Redis without
scripts: `HSET` and `ZADD`, then `HDEL` and `ZREM`, as many messages in a command as a call has for
one bucket. *Single calls*: the same life, scheduled by `Client.schedule`, one by one, a tenth as
many, all due at about the same time. *Of a crowd*: the same calls, and nothing else, sent by fifty
connections at once, so that Redis has always some to read: what counts for how many it can take.
Each figure is the median of the runs.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import hiredis

from bench.rig import BODY, Bench, Table, open_bench, open_redis, redis_cpu_s
from delaybridge import Message
from delaybridge.message import Record, encode_record, new_id
from delaybridge.store.calls import Calls
from delaybridge.store.namespace.namespace import DEFAULT_BUCKETS
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.record import HEAD_SIZE
from delaybridge.store.protocol.scripts import scripts

DESTINATION = "memory:orders"
CALL = 1000  # messages in a call of schedule_many
COMMAND = 64  # messages in a command of the limit: what a call has for a bucket
IDLE_S = 3.0  # longer than a worker claims ahead
PER_S = 20_000  # messages are scheduled faster than this
ALONE_PER_S = 1_000  # the same, one by one
CROWD = 50
POLL_S = 0.25


def limit_us(bench: Bench, count: int, at_once: int = COMMAND) -> tuple[float, float]:
    """Microseconds of Redis' CPU per message: to store it, and to delete it.

    at_once: messages in a command; the commands of `COMMAND` messages are pipelined.
    """
    record = b"." * HEAD_SIZE + encode_record(Record(DESTINATION, BODY))
    score = time.time_ns() // 1_000_000 + 255 / 256
    ids = [new_id() for _ in range(count)]
    began_s = redis_cpu_s(bench)
    for messages, due, some in commands(bench, ids):
        with bench.redis.pipeline(transaction=False) as pipeline:
            for first in range(0, len(some), at_once):
                few = some[first : first + at_once]
                pipeline.hset(messages, mapping=dict.fromkeys(few, record))
                pipeline.zadd(due, dict.fromkeys(few, score))
            pipeline.execute()
    stored_s = redis_cpu_s(bench)
    for messages, due, some in commands(bench, ids):
        with bench.redis.pipeline(transaction=False) as pipeline:
            pipeline.hdel(messages, *some)
            pipeline.zrem(due, *some)
            pipeline.execute()
    done_s = redis_cpu_s(bench)
    return (stored_s - began_s) / count * 1e6, (done_s - stored_s) / count * 1e6


def commands(bench: Bench, ids: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """The keys of a hash and a zset, one bucket after the other, and the ids of a command."""
    for turn, first in enumerate(range(0, len(ids), COMMAND)):
        bucket = f"{{{bench.namespace}:{turn % DEFAULT_BUCKETS}}}:raw-"
        yield f"{bucket}messages", f"{bucket}due", ids[first : first + COMMAND]


def life_us(bench: Bench, count: int) -> tuple[float, float]:
    """The same of a real life: scheduled, then claimed, fired and settled."""

    def schedule(delay_s: float) -> None:
        for first in range(0, count, CALL):
            size = min(CALL, count - first)
            some = [Message(DESTINATION, BODY, delay=delay_s) for _ in range(size)]
            bench.client.schedule_many(some)

    return _life_us(bench, count, IDLE_S + count / PER_S, schedule)


def single_life_us(bench: Bench, count: int) -> tuple[float, float]:
    """The same, each message scheduled by a call of its own."""

    def schedule(delay_s: float) -> None:
        due_s = time.monotonic() + delay_s
        for _ in range(count):
            left_s = max(0.0, due_s - time.monotonic())
            bench.client.schedule(DESTINATION, BODY, delay=left_s)

    return _life_us(bench, count, IDLE_S + count / ALONE_PER_S, schedule)


def crowd_us(bench: Bench, count: int) -> tuple[float, float]:
    """Microseconds of Redis' CPU per `schedule` of a crowd, and of them its time in the script."""
    buckets, url, packed = bench.client.run(Calls.open), urlsplit(bench.redis_url), []
    # Scripts are loaded, and a bucket that is new would ask for the general one.
    while not all(bench.redis.exists(bucket.key("due")) for bucket in buckets):
        bench.client.schedule(DESTINATION, BODY, delay="1d")
    for one in map(bench.client.accept, [Message(DESTINATION, BODY, delay="1d")] * count):
        bucket = buckets[verbs.bucket_of(one.shard_key, len(buckets))]
        command = bucket.schedule_one((verbs.new_stamp(), one), is_drawn=True)
        sha = scripts()[command.name][1]
        words: Any = ("EVALSHA", sha, len(command.keys), *command.keys, *command.args)
        packed.append(hiredis.pack_command(words))
    with ExitStack() as stack:
        address = url.hostname or "", url.port or 6379
        crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(CROWD)]
        bench.redis.config_resetstat()
        began_s = redis_cpu_s(bench)
        for first in range(0, count, CROWD):
            for each, call in zip(crowd, packed[first : first + CROWD], strict=False):
                each.sendall(call)
            for each, _ in zip(crowd, packed[first : first + CROWD], strict=False):
                if not (reply := each.recv(64)).startswith(b":1"):
                    raise RuntimeError(reply)
        cpu_s = redis_cpu_s(bench) - began_s
    called: Any = bench.redis.info("commandstats")
    return cpu_s / count * 1e6, float(called["cmdstat_evalsha"]["usec_per_call"])


def _life_us(
    bench: Bench, count: int, delay_s: float, schedule: Callable[[float], None]
) -> tuple[float, float]:
    bench.start_worker()
    bench.wait_until_owned()
    began_s, now_s = redis_cpu_s(bench), time.monotonic()
    schedule(delay_s)
    scheduled_s = redis_cpu_s(bench)
    time.sleep(max(0.0, now_s + delay_s - time.monotonic()))
    while bench.count_in("due", "mirror"):
        time.sleep(POLL_S)
    done_s = redis_cpu_s(bench)
    return (scheduled_s - began_s) / count * 1e6, (done_s - scheduled_s) / count * 1e6


def main(count: int = 40_000, runs: int = 3) -> None:
    """Print the table."""
    found: list[tuple[float, ...]] = []
    with open_redis() as redis:
        for _ in range(runs):
            for measure, size in (
                (limit_us, count),
                (life_us, count),
                (single_life_us, count // 10),
                (partial(limit_us, at_once=1), count),
                (crowd_us, count),
            ):
                with open_bench(redis.url, memory="memory://") as bench:
                    found.append(measure(bench, size))
    out = Table(f"Redis' CPU for a message's life: {count:,} of 100 bytes; target <= 6 us")
    stored, deleted = (median(each) for each in zip(*found[::5], strict=True))
    scheduled, drained = (median(each) for each in zip(*found[1::5], strict=True))
    out.line("limit: store, delete, no script", f"{stored:.1f} us", f"{deleted:.1f} us")
    out.line("schedule", f"{scheduled:.1f} us", f"{scheduled / stored:.1f} of the limit")
    out.line("claim, fire, settle", f"{drained:.1f} us", f"{drained / deleted:.1f} of the limit")
    life, limit = scheduled + drained, stored + deleted
    alone = median(each for each, _ in found[3::5])
    ratios = f"{life / limit:.1f} of the limit", f"{life / alone:.1f} of HSET + ZADD"
    out.line("a whole life", f"{life:.1f} us", *ratios)
    out.line("HSET + ZADD of one message, pipelined", f"{alone:.1f} us")
    scheduled, drained = (median(each) for each in zip(*found[2::5], strict=True))
    parts = f"{scheduled:.1f} + {drained:.1f} us"
    out.line("single calls", f"{scheduled + drained:.1f} us", parts, "target 17.5")
    called, in_script = (median(each) for each in zip(*found[4::5], strict=True))
    script = f"{in_script:.1f} us in the script"
    out.line("schedule, of a crowd", f"{called:.1f} us", script, f"{called + drained:.1f} a life")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

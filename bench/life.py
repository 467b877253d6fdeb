"""How many microseconds of Redis' CPU a message's whole life takes.

    python -m bench.life [MESSAGES] [RUNS]

A life: scheduled (`schedule_many`, a thousand a call), claimed, fired and settled by one worker
that publishes to memory; 100 bytes, 16 buckets. `INFO cpu` of a Redis that does nothing else, all
its threads. The limit is what storing and deleting the same ids and records takes Redis without
scripts: `HSET` and `ZADD`, then `HDEL` and `ZREM`, as many messages in a command as a call has for
one bucket. Each figure is the median of the runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from statistics import median

from bench.rig import BODY, Bench, Table, open_bench, open_redis
from delaybridge import Message
from delaybridge.message import Record, encode_record, new_id
from delaybridge.store.namespace.namespace import DEFAULT_BUCKETS
from delaybridge.store.protocol.record import HEAD_SIZE

DESTINATION = "memory:orders"
CALL = 1000  # messages in a call of schedule_many
COMMAND = 64  # messages in a command of the limit: what a call has for a bucket
IDLE_S = 3.0  # longer than a worker claims ahead
PER_S = 20_000  # messages are scheduled faster than this
POLL_S = 0.25


def redis_cpu_s(bench: Bench) -> float:
    """Seconds of user and system time that Redis has used."""
    used = bench.redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def limit_us(bench: Bench, count: int) -> tuple[float, float]:
    """Microseconds of Redis' CPU per message: to store it, and to delete it."""
    record = b"." * HEAD_SIZE + encode_record(Record(DESTINATION, BODY))
    score = time.time_ns() // 1_000_000 + 255 / 256
    ids = [new_id() for _ in range(count)]
    began_s = redis_cpu_s(bench)
    for messages, due, some in commands(bench, ids):
        with bench.redis.pipeline(transaction=False) as pipeline:
            pipeline.hset(messages, mapping=dict.fromkeys(some, record))
            pipeline.zadd(due, dict.fromkeys(some, score))
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
    bench.start_worker()
    bench.wait_until_owned()
    delay_s = IDLE_S + count / PER_S
    began_s, now_s = redis_cpu_s(bench), time.monotonic()
    for first in range(0, count, CALL):
        some = [Message(DESTINATION, BODY, delay=delay_s) for _ in range(min(CALL, count - first))]
        bench.client.schedule_many(some)
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
            for measure in (limit_us, life_us):
                with open_bench(redis.url, memory="memory://") as bench:
                    found.append(measure(bench, count))
    out = Table(f"Redis' CPU for a message's life: {count:,} of 100 bytes; target <= 8 us")
    stored, deleted = (median(each) for each in zip(*found[::2], strict=True))
    scheduled, drained = (median(each) for each in zip(*found[1::2], strict=True))
    out.line("limit: store, delete, no script", f"{stored:.1f} us", f"{deleted:.1f} us")
    out.line("schedule", f"{scheduled:.1f} us", f"{scheduled / stored:.1f} of the limit")
    out.line("claim, fire, settle", f"{drained:.1f} us", f"{drained / deleted:.1f} of the limit")
    life, limit = scheduled + drained, stored + deleted
    out.line("a whole life", f"{life:.1f} us", f"{life / limit:.1f} of the limit")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

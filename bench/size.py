"""B26: the figures that `delaybridge size` counts with, measured here, beside those of its file.

    python -m bench.size [MESSAGES] [PENDING] [RATE]

Bytes a pending message of several forms (MESSAGES of each). Then Redis saves while messages come
and go at RATE and PENDING wait, each for PENDING / RATE on average, so that those that go are
anywhere in memory: pages that it had twice for each message, seconds of the save, fragmentation.
Then MESSAGES go through PostgreSQL, and to a quorum queue. `x`: of the figure, with what the file
has as low and high. What other programs measure is named in delaybridge/operate/sizing.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from math import log
from typing import Any

from sqlalchemy import create_engine, text

from bench.drain import drain
from bench.ledger import in_state
from bench.life import crowd_us, life_us
from bench.rig import (
    POLL_S,
    Bench,
    Table,
    open_bench,
    open_rabbitmq,
    open_redis,
    resident_bytes,
)
from delaybridge import Message
from delaybridge.ledger.sql.database import upgrade
from delaybridge.operate.sizing.sizing import SIDES, TABLES, Demand, needs
from delaybridge.settings.settings import Settings
from tests.servers.postgres import PostgresServer

FORMS = ((100, 0), (500, 0), (500, 4), (1500, 0), (10_000, 0))  # bytes of a body, headers
TO, UNUSED = "rabbitmq:orders/created", {"rabbitmq": "amqp://127.0.0.1:1"}  # never connected
HEADER = "x" * 10, "v" * 16
NEWEST_S = 2.0
SETTLE_S = 3.0
PAGE = 4096


def message_of(body: int, headers: int, **fields: Any) -> Message:
    """A message of this form, with headers as `size` assumes them."""
    pairs = {f"{HEADER[0]}{number:02}": HEADER[1] for number in range(headers)}
    return Message(TO, b"x" * body, headers=pairs, **fields)


def used(bench: Bench, name: str = "used_memory") -> int:
    """Bytes that Redis uses."""
    return int(bench.redis.info("memory")[name])


def bytes_each(redis_url: str, body: int, headers: int, count: int) -> float:
    """Bytes of Redis for each of so many pending messages of this form."""
    with open_bench(redis_url, **UNUSED) as bench:
        message = message_of(body, headers, delay="1d")
        bench.client.schedule_many([message])
        before = used(bench)
        bench.fill_with(message, count)
        return (used(bench) - before) / count


class Traffic:
    """Messages that are scheduled at a rate, each for a random time, until something has happened.

    `done` are those so far.
    """

    def __init__(self, bench: Bench, rate: int, longest_s: float) -> None:
        self._bench, self._rate, self._longest_s = bench, rate, longest_s
        self.done, self._began_s = 0, time.monotonic()

    def fill(self, count: int) -> None:
        """Schedule so many at once."""
        for first in range(0, count, 1000):
            some = [self._message() for _ in range(min(1000, count - first))]
            self._bench.client.schedule_many(some)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Schedule at the rate."""
        while not is_over():
            wanted = int((time.monotonic() - self._began_s) * self._rate) - self.done
            self.fill(wanted)
            self.done += wanted
            time.sleep(POLL_S)

    def _message(self) -> Message:
        delay_s = random.uniform(NEWEST_S, self._longest_s)
        return Message("memory:orders", b"x" * 500, delay=round(delay_s, 3))


def saving(redis_url: str, pending: int, rate: int) -> dict[str, float]:
    """What a save costs while messages come and go."""
    with open_bench(redis_url, memory="memory://") as bench:
        traffic = Traffic(bench, rate, 2 * pending / rate)
        traffic.fill(pending)
        bench.start_worker()
        bench.wait_until_owned()
        traffic = Traffic(bench, rate, 2 * pending / rate)
        until_s = time.monotonic() + SETTLE_S
        traffic.run(lambda: time.monotonic() > until_s)
        began_s, before, size = time.monotonic(), traffic.done, used(bench)
        bench.redis.bgsave()
        traffic.run(lambda: not bench.redis.info("persistence")["rdb_bgsave_in_progress"])
        took_s, count = time.monotonic() - began_s, max(traffic.done - before, 1)
        copied = bench.redis.info("persistence")["rdb_last_cow_size"]
        share = min(copied / size, 0.99)
        return {
            "fork_pages": -log(1 - share) * size / PAGE / count,
            "save_s_per_gb": took_s / size * 1e9,
            "redis_fragmentation": used(bench, "used_memory_rss") / used(bench),
        }


def transition_bytes(redis_url: str, count: int) -> float:
    """Bytes of a row of `transition` with its index, in PostgreSQL."""
    with PostgresServer() as server:
        upgrade(server.url, 20)
        with open_bench(redis_url, ledger=server.url, memory="memory://") as bench:
            bench.fill("memory:orders", count)
            bench.start_worker()
            while in_state(server.url, "published") < count:
                time.sleep(POLL_S)
        engine = create_engine(server.url)
        with engine.connect() as connection:
            asked = "SELECT pg_total_relation_size('transition')"
            total = int(connection.scalar(text(asked)) or 0)
        engine.dispose()
    return total / count


def workers(redis_url: str, count: int) -> dict[str, float]:
    """What a worker takes at rest and for a message in a large batch; what Redis takes for one that
    many callers schedule one by one."""
    with open_bench(redis_url, memory="memory://") as bench:
        pid = bench.start_worker()
        bench.wait_until_owned()
        idle = resident_bytes(pid)
    with open_bench(redis_url, memory="memory://") as bench:
        _, drained_us = life_us(bench, count)
    with open_bench(redis_url, memory="memory://") as bench:
        scheduled_us, _ = crowd_us(bench, count)
    with open_rabbitmq() as broker:
        rate, cpu_us = drain(redis_url, broker.url, count)
    return {
        "worker_idle_bytes": idle,
        "redis_us": scheduled_us + drained_us,
        "worker_us": cpu_us,
        "worker_gap_us": 1e6 / rate,
    }


def main(count: int = 20_000, pending: int = 400_000, rate: int = 1000) -> None:
    """Print the tables."""
    out = Table(f"B26 size: bytes of Redis for a pending message, {count:,} of each form")
    out.line("form", "counted", "measured", "x")
    for body, headers in FORMS:
        load = Demand(count, 1, body, headers)
        counted = needs(load, Settings())["redis_message_bytes"]["about"]
        with open_redis() as redis:
            found = bytes_each(redis.url, body, headers, count)
        form = f"{body:,} B, {headers} headers"
        out.line(form, f"{counted:,.0f} B", f"{found:,.0f} B", f"{found / counted:.2f}")
    with open_redis() as redis:
        measured = saving(redis.url, pending, rate)
        measured["transition_bytes"] = transition_bytes(redis.url, count)
        measured |= workers(redis.url, count)
    out = Table(f"B26 size: its figures; a save beside {rate:,}/s and {pending:,} pending")
    out.line("figure", "about (low to high)", "measured", "x")
    for name, found in measured.items():
        about, low, high = (TABLES["figures"][name][side] for side in SIDES)
        ratio = f"{found / about:.2f} ({low / about:.2f} to {high / about:.2f})"
        out.line(name, f"{about:,.4g}", f"{found:,.4g}", ratio)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""The structures that published designs use instead: a heap, and a database that is scanned.

    python -m bench.baselines [MOST_PENDING] [SECONDS] [TABLES]

First table: the worker's timing wheel, and a binary heap with the same methods. 1,000 messages
wait, then ten times as many, and so on up to MOST_PENDING; whatever comes due is replaced by a
message with a random due time. CPU per message, put in and handed out; in brackets how long
messages wait while `advance` finds them (p99 / longest).

Second table: RATE messages a second for SECONDS, with random delays up to DELAY_MS. The database is
SQLite, DATABASES files of TABLES tables, with an index, without waiting for the disk. Every SCAN_MS
all tables are scanned for what is due; or for what will be due before the next scan, which then is
held in memory. Its clock jumps over the waits, and delivery costs nothing. delaybridge runs in real
time: a client schedules the messages one by one, a consumer of RabbitMQ measures lateness. CPU is
that of the database's program, and of client, worker and Redis.
"""

from __future__ import annotations

import heapq
import random
import sqlite3
import sys
import time
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lateness import SPARE_S, Lateness, paced, percentiles, receiving
from bench.rig import (
    BODY,
    Table,
    cpu_seconds,
    open_bench,
    open_rabbitmq,
    open_redis,
    pid_at,
    quorum_queue,
)
from delaybridge.scan.wheel.wheel import Wheel

AHEADS_MS = {"2 s": 2000, "10 min": 600_000}  # what a worker holds; the published designs' minutes
HELD = 200_000  # messages that are handed out in one measurement
RATE, DATABASES = 1000, 8
SCAN_MS, LEAST_DELAY_MS, DELAY_MS = 10_000, 500, 20_000
PRAGMAS = "PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;"
CREATE = """
CREATE TABLE task_{0} (id INTEGER PRIMARY KEY, created_ms INT, due_ms INT, status INT, body BLOB);
CREATE INDEX due_{0} ON task_{0} (status, due_ms);
"""


class Heap:
    """A binary heap with the methods of `Wheel`; a cancelled message stays in it until its time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._items: dict[int, tuple[int, int]] = {}
        self._number = 0

    def insert(self, due_ms: int, key: int, item: int) -> None:
        """Put the item in. Raises KeyError if the key is there."""
        if key in self._items:
            raise KeyError(key)
        self._number += 1
        self._items[key] = self._number, item
        heapq.heappush(self._heap, (due_ms, self._number, key))

    def cancel(self, key: int) -> int | None:
        """Take the item out. None: it is not there."""
        _, item = self._items.pop(key, (0, None))
        return item

    def advance(self, now_ms: int) -> list[int]:
        """Return all that is due by then, in due order."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, key = heapq.heappop(self._heap)
            if self._items.get(key, (0, 0))[0] == number:
                due.append(self._items.pop(key)[1])
        return due

    def next_due_ms(self) -> int | None:
        """When to `advance` next."""
        return self._heap[0][0] if self._heap else None


def hold(queue: Wheel[int, int] | Heap, pending: int, ahead_ms: int) -> str:
    """Hand messages out and put others in, while `pending` are waiting; the cell of the table."""
    drawn = random.Random(7)
    for key in range(pending):
        queue.insert(drawn.randrange(ahead_ms), key, key)
    delays_ms = cycle([drawn.randrange(1, ahead_ms) for _ in range(100_000)])
    count, handled, steps_us = min(HELD, 10 * pending), 0, list[float]()
    began_s = time.process_time()
    while handled < count and (now_ms := queue.next_due_ms()) is not None:
        step_ns = time.process_time_ns()
        keys = queue.advance(now_ms)
        steps_us.append((time.process_time_ns() - step_ns) / 1000)
        for key in keys:
            queue.insert(now_ms + next(delays_ms), key, key)
        handled += len(keys)
    took_us = (time.process_time() - began_s) / handled * 1e6
    steps_us.sort()
    p99_ms, most_ms = steps_us[len(steps_us) * 99 // 100] / 1000, steps_us[-1] / 1000
    return f"{took_us:.2f} us ({p99_ms:.2f} / {most_ms:.1f} ms)"


def structures(most: int) -> None:
    """Measure and print the first table."""
    out = Table("timing wheel and heap: CPU a message (p99 / longest step)")
    out.line("waiting, due within", "wheel", "heap")
    sizes = [size for size in (1000, 10_000, 100_000, 1_000_000) if size < most]
    for (name, ahead_ms), size in product(AHEADS_MS.items(), [*sizes, most]):
        cells = hold(Wheel(0), size, ahead_ms), hold(Heap(), size, ahead_ms)
        out.line(f"{size:,}, {name}", *(f"{cell:>32}" for cell in cells))


class Database:
    """Tasks in many tables. Its clock: milliseconds, which jump from one scan to the next."""

    def __init__(self, folder: str, tables: int) -> None:
        paths = [str(Path(folder, str(number))) for number in range(DATABASES)]
        self._files = [sqlite3.connect(path, cached_statements=4 * tables) for path in paths]
        for file in self._files:
            file.isolation_level = None  # transactions are begun below
            create = "".join(map(CREATE.format, range(tables)))
            file.executescript(f"{PRAGMAS} BEGIN; {create} COMMIT;")
        self._tables = list(product(self._files, range(tables)))

    def add(self, number: int, created_ms: int, due_ms: int) -> None:
        """Store one task, in a transaction of its own."""
        file, table = self._tables[number % len(self._tables)]
        values = number, created_ms, due_ms, BODY
        file.execute(f"INSERT INTO task_{table} VALUES (?, ?, ?, 0, ?)", values)

    def scan(self, now_ms: int, until_ms: int) -> list[int]:
        """Finish all tasks due until then; how late each is, in microseconds, 0 if it is early."""
        late_us, began_s = list[int](), time.perf_counter()
        for file, table in self._tables:
            due = f"SELECT id, due_ms FROM task_{table} WHERE status = 0 AND due_ms <= ?"
            rows = file.execute(f"{due} AND created_ms <= ?", (until_ms, now_ms)).fetchall()
            if rows:
                at_ms = now_ms + (time.perf_counter() - began_s) * 1000
                late_us += [max(0, round((at_ms - due_ms) * 1000)) for _, due_ms in rows]
                done = [(number,) for number, _ in rows]
                file.execute("BEGIN")
                file.executemany(f"UPDATE task_{table} SET status = 2 WHERE id = ?", done)
                file.execute("COMMIT")
        return late_us

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def scanned(seconds: float, tables: int, ahead_ms: int) -> tuple[Lateness, float]:
    """Lateness, and microseconds of CPU a message, of the database."""
    drawn, count = random.Random(7), int(RATE * seconds)
    with TemporaryDirectory() as folder:
        database = Database(folder, tables)
        began_s, late_us = time.process_time(), list[int]()
        for number in range(count):
            created_ms = number * 1000 // RATE
            delay_ms = drawn.randrange(LEAST_DELAY_MS, DELAY_MS)
            database.add(number, created_ms, created_ms + delay_ms)
        now_ms = 0
        while len(late_us) < count:
            late_us += database.scan(now_ms, now_ms + ahead_ms)
            now_ms += SCAN_MS
        took_us = (time.process_time() - began_s) / count * 1e6
        database.close()
    return percentiles(late_us), took_us


def delayed(redis_url: str, url: str, seconds: float) -> tuple[Lateness, float]:
    """The same of delaybridge."""
    drawn, count = random.Random(7), int(RATE * seconds)
    with open_bench(redis_url, rabbitmq=url) as bench, quorum_queue(url) as queue:
        pids = [bench.start_worker(), pid_at(redis_url)]
        bench.wait_until_owned()

        def schedule() -> None:
            delay_s = drawn.randrange(LEAST_DELAY_MS, DELAY_MS) / 1000
            bench.client.schedule(f"rabbitmq:{queue}/key", BODY, delay=delay_s)

        with receiving("receive_rabbitmq.py", url, queue, count) as receiver:
            used_s = time.process_time() + sum(map(cpu_seconds, pids))
            paced(RATE, seconds, schedule)
            late = receiver.lateness(DELAY_MS / 1000 + SPARE_S)
            used_s = time.process_time() + sum(map(cpu_seconds, pids)) - used_s
    return late, used_s / count * 1e6


def main(most: int = 1_000_000, seconds: float = 20, tables: int = 1024) -> None:
    """Print both tables."""
    structures(most)
    every = f"every {SCAN_MS // 1000} s"
    out = Table(f"database and delaybridge at {RATE:,}/s: late, p50 / p99 / max; CPU a message")
    for name, ahead_ms in ((f"SQLite, scanned {every}", 0), ("the same, one scan ahead", SCAN_MS)):
        late, cpu_us = scanned(seconds, tables, ahead_ms)
        out.line(name, f"{late!s:>30}", f"{cpu_us:.0f} us CPU")
    with open_redis() as redis, open_rabbitmq() as broker:
        late, cpu_us = delayed(redis.url, broker.url, seconds)
        out.line("delaybridge, to RabbitMQ", f"{late!s:>30}", f"{cpu_us:.0f} us CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""B22: what the ledger costs: schedule, drain, promotion, and how fast a wiped Redis is rebuilt.

    python -m bench.ledger [MESSAGES] [RUNS] [PROMOTED] [late]

Schedule is compared with plain INSERTs into the same table of the same database, a thousand rows in
a commit. Both take turns, two commits each, so that what else this machine does meets both alike;
the ratio is the median of the turns. Drain is compared with the same drain without a ledger, in
turn, and so is how late messages are at 1,000/s while a worker promotes others. `told` is how
long after the last message had left Redis the ledger had all of them as published. `cold`: messages
that stay in the database alone; one worker promotes them, from the first to the last: at its
leisure, and `in a hurry`, where they are due within a minute. With `late`
only how late messages are is measured.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from sqlalchemy import (
    ColumnElement,
    Engine,
    create_engine,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from bench.lateness import SPARE_S, Lateness, RabbitMQ, receiving
from bench.rig import BODY, POLL_S, Table, open_bench, open_rabbitmq, open_redis, quorum_queue
from delaybridge import Message
from delaybridge.ledger.sql.database import upgrade
from delaybridge.ledger.sql.tables import message
from delaybridge.times import format_time
from tests.servers.postgres import PostgresServer

CALL, TURN = 1000, 2000
RATE, LATE_S = 1000, 5
SOON_S = 45
AHEAD_S = 5.0  # for the worker to start, and begin to promote
TO = "kafka:orders"
UNUSED = {"kafka": "kafka://127.0.0.1:1"}  # never connected


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """A PostgreSQL and an SQLite with the ledger's tables: name -> URL."""
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        found = {"PostgreSQL": server.url, "SQLite": f"sqlite:///{Path(folder) / 'ledger.db'}"}
        for url in found.values():
            upgrade(url, 20)
        yield found


def plain_inserts(engine: Engine, began: int, count: int) -> float:
    """Seconds that so many INSERTs take, a thousand in a commit. began: rows inserted before."""
    columns = {
        "namespace": "plain", "bucket": 1, "state": "delayed", "tier": 1, "due_ms": 2**40,
        "priority": 0, "destination": TO, "payload": BODY, "created_ms": 0, "updated_ms": 0,
    }  # fmt: skip
    rows = [{**columns, "id": f"{n:026}", "stamp": n} for n in range(began, began + count)]
    began_s = time.monotonic()
    for first in range(0, count, CALL):
        with engine.begin() as connection:
            connection.execute(insert(message), rows[first : first + CALL])
    return time.monotonic() - began_s


def empty(url: str) -> None:
    """Delete all messages, and leave PostgreSQL nothing to clean up during the next turn."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("TRUNCATE message, transition"))
            connection.execute(text("CHECKPOINT"))
        else:
            connection.execute(delete(message))
    engine.dispose()


def change(url: str, due_ms: ColumnElement[int]) -> None:
    """Give all messages this due time."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(update(message).values(due_ms=due_ms))
    engine.dispose()


def scheduled(redis_url: str, url: str, count: int, delay: str) -> tuple[float, float, float]:
    """Messages per second of `schedule_many`, a thousand in a call; of INSERTs; the ratio."""
    turns = list[tuple[float, float]]()
    engine = create_engine(url)
    with open_bench(redis_url, ledger=url, **UNUSED) as bench:
        messages = [Message(TO, BODY, delay=delay)] * min(CALL, count)
        bench.client.schedule_many(messages[:10])
        plain_inserts(engine, 0, 10)
        for first in range(10, count + 10, TURN):
            plain_s = plain_inserts(engine, first, min(TURN, count))
            began_s = time.monotonic()
            for _ in range(0, min(TURN, count), CALL):
                bench.client.schedule_many(messages)
            turns.append((plain_s, time.monotonic() - began_s))
    engine.dispose()
    empty(url)
    plain, own = (min(TURN, count) / median(each) for each in zip(*turns, strict=True))
    return own, plain, median(plain_s / own_s for plain_s, own_s in turns)


def promoted(redis_url: str, url: str, count: int, soon_s: int = 0) -> tuple[float, float]:
    """Cold messages per second that a worker promotes; bytes of Redis for each before that.

    soon_s: they are due by then. 0: in two hours.
    """
    with open_bench(redis_url, ledger=url, **UNUSED) as bench:
        bench.client.stats()  # makes the namespace
        before = int(bench.redis.info("memory")["used_memory"])
        bench.fill(TO, count, delay="2h")
        each = (int(bench.redis.info("memory")["used_memory"]) - before) / count
        if soon_s:
            change(url, message.c.due_ms - 7_200_000 + soon_s * 1000)
        bench.start_worker(LEDGER__HOT_WINDOW_S="86400")
        while not bench.count_in("due"):
            time.sleep(POLL_S)
        began_s, first = time.monotonic(), bench.count_in("due")
        while (found := bench.count_in("due")) < count:
            time.sleep(POLL_S)
        rate = (found - first) / (time.monotonic() - began_s)
    empty(url)
    return rate, each


def drained(redis_url: str, broker: str, url: str | None, count: int) -> tuple[float, float, float]:
    """Messages per second and microseconds of CPU of one worker; seconds until all was told."""
    with open_bench(redis_url, ledger=url, rabbitmq=broker) as bench, quorum_queue(broker) as queue:
        bench.fill(f"rabbitmq:{queue}/key", count)
        rate, cpu_us = bench.measure_drain(count, [bench.start_worker()])
        if url is None:
            return rate, cpu_us, 0.0
        began_s = time.monotonic()
        while in_state(url, "published") < count:
            time.sleep(POLL_S)
        told_s = time.monotonic() - began_s
    empty(url)
    return rate, cpu_us, told_s


def late(redis_url: str, broker: RabbitMQ, url: str, cold: int) -> tuple[Lateness, int]:
    """How late messages are at 1,000/s, while a new worker promotes so many others.

    And how many of these it promoted meanwhile.
    """
    count = round(RATE * LATE_S)
    with (
        open_bench(redis_url, ledger=url, **broker.brokers) as bench,
        broker.new_target(broker.address) as queue,
        receiving(broker.script, broker.address, queue, count) as receiver,
    ):
        bench.fill(broker.destination(queue), cold, delay="2h")
        first_ms = (time.time() + AHEAD_S) * 1000
        dues = [format_time(round(first_ms + n * 1000 / RATE)) for n in range(count)]
        messages = [Message(broker.destination(queue), BODY, at=due) for due in dues]
        bench.client.schedule_many(messages)
        bench.start_worker(LEDGER__HOT_WINDOW_S="86400")
        time.sleep(max(0.0, first_ms / 1000 - time.time()))
        before = bench.count_in("due", "mirror")
        found = receiver.lateness(AHEAD_S + LATE_S + SPARE_S)
        promoted = bench.count_in("due") - before + count
    empty(url)
    return found, promoted


def in_state(url: str, state: str) -> int:
    """How many rows are in a state."""
    engine = create_engine(url)
    with engine.begin() as connection:
        asked = select(func.count()).select_from(message).where(message.c.state == state)
        found = int(connection.scalar(asked) or 0)
    engine.dispose()
    return found


def rebuilt(redis_url: str, url: str, count: int) -> float:
    """Seconds from a FLUSHALL until one worker has restored all messages."""
    with open_bench(redis_url, ledger=url, **UNUSED) as bench:
        bench.fill(TO, count, delay="30m")
        bench.start_worker()
        bench.wait_until_owned()
        began_s = time.monotonic()
        bench.redis.flushall()
        while sum(bench.redis.zcard(name) for name in bench.redis.scan_iter("*:due")) < count:
            time.sleep(POLL_S)
        took_s = time.monotonic() - began_s
    empty(url)
    return took_s


def table(
    redis_url: str, broker: str, urls: dict[str, str], count: int, runs: int, cold: int
) -> None:
    """Measure and print B22."""
    out = Table(f"B22 ledger: {count:,} messages of 100 bytes, {runs} runs")
    for name, url in urls.items():
        for what, delay in (("schedule", "30m"), ("schedule, cold", "1d")):
            turns = [scheduled(redis_url, url, count, delay) for _ in range(runs)]
            rate, limit, ratio = (median(each) for each in zip(*turns, strict=True))
            of = f"of {limit:,.0f} INSERTs"
            out.line(f"{what}, {name}", f"{rate:,.0f}/s", of, f"{ratio:.2f}")
    for name, url in urls.items():
        for what, soon_s in (("promotion", 0), ("promotion in a hurry", SOON_S)):
            rates = [promoted(redis_url, url, count, soon_s) for _ in range(runs)]
            rate, each = (median(one[i] for one in rates) for i in range(2))
            out.line(f"{what}, {name}", f"{rate:,.0f}/s", f"{each:.1f} bytes of Redis before")
    for name, url in urls.items():
        found = [
            (drained(redis_url, broker, None, count), drained(redis_url, broker, url, count))
            for _ in range(runs)
        ]
        rate, cpu_us, told_s = (median(own[i] for _, own in found) for i in range(3))
        ratio = median(own[0] / without[0] for without, own in found)
        limit = median(without[0] for without, _ in found)
        figures = f"{rate:,.0f}/s", f"of {limit:,.0f}/s", f"{ratio:.2f}", f"{cpu_us:.1f} us CPU"
        out.line(f"drain, {name}", *figures, f"told in {told_s:.1f} s")
    late_table(redis_url, broker, urls, cold, runs)
    seconds = median(rebuilt(redis_url, urls["PostgreSQL"], count) for _ in range(runs))
    out.line("rebuild after FLUSHALL, PostgreSQL", f"{seconds:.1f} s")


def late_table(redis_url: str, broker: str, urls: dict[str, str], cold: int, runs: int) -> None:
    """Lateness with and without a promotion, in turn."""
    out = Table(f"B22 lateness at {RATE:,}/s beside a promotion, p50 / p99 / max, {runs} runs")
    for name, url in urls.items():
        measured = partial(late, redis_url, RabbitMQ(broker), url)
        pairs = [(measured(0), measured(cold)) for _ in range(runs)]
        without, own = (
            Lateness(*(median(each) for each in zip(*(pair[i][0] for pair in pairs), strict=True)))
            for i in range(2)
        )
        ratio = median(own[0].p99 / without[0].p99 for without, own in pairs)
        meanwhile = median(own[1] for _, own in pairs)
        figures = str(own), f"of {without}", f"{ratio:.2f}, target 1.5"
        out.line(name, *figures, f"{meanwhile:,.0f} promoted")


def main(
    count: int = 40_000, runs: int = 3, cold: int = 150_000, *, only_late: bool = False
) -> None:
    """Print the table."""
    with open_redis() as redis, open_rabbitmq() as broker, databases() as urls:
        if only_late:
            late_table(redis.url, broker.url, urls, cold, runs)
        else:
            table(redis.url, broker.url, urls, count, runs, cold)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word != "late"]
    main(*numbers, only_late="late" in sys.argv)

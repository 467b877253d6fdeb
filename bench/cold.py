"""B24: very many cold messages: what they take, and how long stats, horizon and promotion need.

    python -m bench.cold [MESSAGES] [HOURS]

The rows are those of messages of 100 bytes, due evenly throughout so many hours, in calls of a
thousand; PostgreSQL makes them by itself from one that the product has written. `stats` and
`horizon` are asked by a client that has not counted before, as a command line does. Then a worker
promotes the share of one hour.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text

from bench.ledger import TO, UNUSED
from bench.rig import BODY, POLL_S, Bench, Table, open_bench, open_redis
from delaybridge import Client, Message
from delaybridge.ledger.sql.database import upgrade
from tests.servers.postgres import PostgresServer

HOUR_MS = 3_600_000
CALL, RUN = 1000, 64  # messages in a call, ids with one beginning
AT_ONCE = 500_000  # rows in one statement
ASKS = 3
SPANS = {"horizon, 6h by 1h": ("6h", "1h"), "horizon, 1h by 1m": ("1h", "1m")}

_COPIES = """
INSERT INTO message (namespace, bucket, id, stamp, state, tier, due_ms, priority, destination,
                     payload, error, created_ms, updated_ms)
SELECT namespace, n / :call % :buckets,
  lpad(upper(to_hex(1700000000000 + n / :call)), 10, '0')
    || upper(substr(md5((n / :run)::text), 1, 14)) || lpad((n % :run)::text, 2, '0'),
  hashint8(n)::bigint + 2147483648, state, tier, :first_ms + floor(random() * :span_ms)::bigint,
  priority, destination, payload, error, created_ms, updated_ms
FROM message, generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) AS n
WHERE namespace = :namespace AND id = 'template'
"""


def fill(bench: Bench, engine: Engine, count: int, first_ms: int, span_ms: int) -> None:
    """Add `count` cold messages due from then on."""
    bench.client.schedule_many([Message(TO, BODY, id="template", delay="1d")])
    given = {
        "namespace": bench.namespace, "buckets": len(bench.client.stats().buckets),
        "first_ms": first_ms, "span_ms": span_ms, "call": CALL, "run": RUN,
    }  # fmt: skip
    for low in range(0, count, AT_ONCE):
        high = min(low + AT_ONCE, count) - 1
        with engine.begin() as connection:
            connection.execute(text(_COPIES), {**given, "low": low, "high": high})


def size(on: Connection) -> tuple[int, int]:
    """Bytes of the table, and of its indexes."""
    asked = "SELECT pg_table_size('message'), pg_indexes_size('message')"
    table, indexes = on.execute(text(asked)).one()
    return int(table), int(indexes)


@contextmanager
def asking(bench: Bench, url: str) -> Iterator[Client]:
    """A client that has not counted before."""
    about: dict[str, Any] = {"durability": "ledger", "ledger": url, "brokers": UNUSED}
    with Client(bench.redis_url, namespace=bench.namespace, timeout_s=20, **about) as client:
        yield client


def first_answer_s(bench: Bench, url: str, ask: Callable[[Client], object]) -> float:
    """Seconds until a client that has not counted before has the answer."""
    found = []
    for _ in range(ASKS):
        with asking(bench, url) as client:
            client.get("template")  # connected
            began_s = time.monotonic()
            ask(client)
            found.append(time.monotonic() - began_s)
    return median(found)


def horizon(span: tuple[str, str], client: Client) -> object:
    """Ask for it."""
    return client.horizon(*span)


def promoted(bench: Bench, engine: Engine, until_ms: int) -> tuple[int, float]:
    """How many messages a worker promotes that are due by then, and how many a second."""
    asked = text("SELECT count(*) FROM message WHERE tier = 2 AND due_ms <= :until_ms")
    with engine.begin() as connection:
        count = int(connection.scalar(asked, {"until_ms": until_ms}) or 0)
    window_s = (until_ms - time.time() * 1000) / 1000
    bench.start_worker(LEDGER__HOT_WINDOW_S=str(round(window_s)))
    while not bench.count_in("due"):
        time.sleep(POLL_S)
    began_s, first = time.monotonic(), bench.count_in("due")
    while (found := bench.count_in("due")) < count * 0.99:  # its window moves on
        time.sleep(POLL_S)
    return count, (found - first) / (time.monotonic() - began_s)


def memory(bench: Bench) -> int:
    """Bytes that Redis uses."""
    return int(bench.redis.info("memory")["used_memory"])


def table(redis_url: str, url: str, count: int, hours: int) -> None:
    """Measure and print B24."""
    out = Table(f"B24 cold: {count:,} messages of 100 bytes in PostgreSQL, due within {hours} h")
    engine = create_engine(url)
    with open_bench(redis_url, ledger=url, **UNUSED) as bench:
        before = memory(bench)
        first_ms = int(time.time() * 1000) + HOUR_MS
        began_s = time.monotonic()
        fill(bench, engine, count, first_ms, hours * HOUR_MS)
        out.line("rows made", f"{count / (time.monotonic() - began_s):,.0f}/s")
        with engine.connect() as connection:
            rows, indexes = size(connection)
        each = f"{rows / count:.0f} bytes a row", f"{indexes / count:.0f} of indexes"
        out.line("size", *each, f"{(memory(bench) - before) / count:.2f} of Redis")
        for vacuumed in (False, True):
            how = "vacuumed" if vacuumed else "as written"
            if vacuumed:
                with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(text("VACUUM ANALYZE message"))
            out.line(f"stats, {how}", f"{first_answer_s(bench, url, Client.stats):.2f} s")
            for name, span in SPANS.items():
                took_s = first_answer_s(bench, url, partial(horizon, span))
                out.line(f"{name}, {how}", f"{took_s:.2f} s")
        hour, rate = promoted(bench, engine, first_ms + HOUR_MS)
        used = (memory(bench) - before) / hour
        out.line("promotion of an hour's share", f"{hour:,}", f"{rate:,.0f}/s", f"{used:.0f} bytes")
    engine.dispose()


def main(count: int = 1_000_000, hours: int = 72) -> None:
    """Print the table."""
    with open_redis() as redis, PostgresServer() as server:
        upgrade(server.url, 20)
        table(redis.url, server.url, count, hours)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

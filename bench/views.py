"""B28: what operators ask of much: a search by header, and `stats` and `health` of definitions.

    python -m bench.views [MESSAGES] [BUCKETS] [DEFINITIONS] [RUNS]

A search for a header that one message has goes through all messages, page by page. Definitions are
a third each by `every`, by one cron expression, and by expressions of their own; workers have
looked at each. CPU is that of the client and of Redis, without the start of a process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from bench.rig import BODY, CALL, Bench, Table, open_bench, open_redis, redis_cpu_s
from delaybridge import Client, Message, State
from delaybridge.operate.cli.messages.stored import page_of
from delaybridge.operate.views.facts import fullest
from delaybridge.recurring.runs import AT_ONCE, RunMaking
from delaybridge.recurring.stored import recur
from delaybridge.recurring.summary import count_definitions

HEADERS = {"trace": "trace-{:07d}", "kind": "order"}


def fill(client: Client, count: int) -> None:
    """Messages of the next day, each with its trace."""
    for first in range(0, count, CALL):
        client.schedule_many(
            Message(
                "memory:orders",
                BODY,
                delay=3600 + n,
                id=f"order-{n}",
                headers={name: text.format(n) for name, text in HEADERS.items()},
            )
            for n in range(first, min(first + CALL, count))
        )


def search(client: Client, header: str) -> tuple[int, int]:
    """How many messages have it, and the pages that it took."""
    found, pages, cursor = 0, 0, None
    while True:
        ask = partial(page_of, state=State.DELAYED, limit=50, cursor=cursor, header=header)
        page = client.run(ask)
        found, pages, cursor = found + len(page.items), pages + 1, page.cursor
        if cursor is None:
            return found, pages


def define(client: Client, count: int) -> None:
    """Definitions, looked at as a worker does."""
    times: tuple[Callable[[int], dict[str, Any]], ...] = (
        lambda n: {"every": "1h"},
        lambda n: {"cron": "0 9 * * MON-FRI", "tz": "Europe/Berlin"},
        lambda n: {"cron": f"{n % 60} {n // 60 % 24} {n // 1440 % 28 + 1} * *"},
    )
    for n in range(count):
        client.recurring.add(f"report-{n}", "memory:orders", BODY, **times[n % 3](n))

    def look(calls: Any) -> Any:
        while True:
            (taken,) = yield [recur(calls.namespace, AT_ONCE)]
            if not taken[1]:
                return
            yield from RunMaking(calls).make_taken(*taken)

    client.run(look)


def costs_ms(bench: Bench, ask: Callable[[], Any], runs: int) -> tuple[float, float, float]:
    """Milliseconds until the answer, of the client's CPU, and of Redis' CPU; medians."""
    found = []
    for _ in range(runs):
        used_s, own_s, began_s = redis_cpu_s(bench), time.process_time(), time.perf_counter()
        ask()
        own = time.process_time() - own_s
        waited = time.perf_counter() - began_s
        found.append((waited * 1e3, own * 1e3, (redis_cpu_s(bench) - used_s) * 1e3))
    return tuple(median(each) for each in zip(*found, strict=True))


def show(out: Table, name: str, costs: tuple[float, float, float]) -> None:
    """A line: until the answer, and the CPU of both."""
    waited, own, redis = costs
    out.line(name, f"{waited:,.0f} ms", f"CPU {own:,.0f} + {redis:,.0f} = {own + redis:,.0f} ms")


def main(
    count: int = 100_000, buckets: int = 1024, definitions: int = 10_000, runs: int = 3
) -> None:
    """Print the table."""
    with open_redis() as redis, open_bench(redis.url, memory="memory://") as bench:
        title = f"a header in {buckets:,} buckets and {count:,} messages, target 500 ms"
        out = Table(f"B28 search for {title}; waited; CPU of client and Redis")
        given: dict[str, Any] = {"namespace": f"{bench.namespace}-wide", "brokers": bench.brokers}
        with Client(redis.url, buckets=buckets, timeout_s=20, **given) as client:
            fill(client, count)
            for name in ("trace=trace-0000077", "absent", "kind=other"):
                _, pages = search(client, name)
                costs = costs_ms(bench, partial(search, client, name), runs)
                show(out, f"{name}, {pages} pages", costs)
            costs = costs_ms(bench, client.stats, runs)
            show(out, "stats", costs)
        out = Table(f"B28 {definitions:,} definitions, target 100 ms; CPU of client and Redis")
        with Client(redis.url, **given | {"namespace": bench.namespace}) as client:
            define(client, definitions)
            show(out, "stats without them", costs_ms(bench, client.stats, runs))

            def stats() -> None:
                client.stats(), client.rates()
                client.run(count_definitions)

            def health() -> None:
                client.stats(), client.run(lambda calls: fullest(calls.placement))
                client.run(count_definitions)

            show(out, "stats", costs_ms(bench, stats, runs))
            show(out, "health", costs_ms(bench, health, runs))
            show(out, "list", costs_ms(bench, client.recurring.list, runs))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""B21: how exactly a fleet keeps to a rate, and what its backlog does to another destination.

    python -m bench.limit [SECONDS] [RATE ...]

A backlog for one RabbitMQ queue is due at once and has a rate; a plain consumer counts how many
messages it gets each second. Meanwhile 200 messages a second fall due for another queue; their
lateness is compared with the same fleet without a backlog. In the last line of each rate a worker
is killed in the middle, and its buckets wait for their leases to expire. The last line has a
backlog of 100,000 messages, of which hardly any can go: it must cost next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.lateness import SPARE_S, Lateness, Receiver, receiving
from bench.rig import (
    BODY,
    Bench,
    Table,
    cpu_seconds,
    open_bench,
    open_rabbitmq,
    open_redis,
    quorum_queue,
)
from delaybridge import Message
from delaybridge.times import format_time

WORKERS = (1, 2, 4)
OTHERS = 200  # messages per second for the other queue
FILL_RATE = 8000  # messages per second that a client stores at least
AHEAD_S = 2.0
LARGE = 100_000
# A killed worker's buckets are soon taken over.
LEASE = {"LEASE__TTL_MS": "3000", "LEASE__RENEW_MS": "700", "REDIS__TIMEOUT_S": "1.5"}


class Measured(NamedTuple):
    """One run. times: when each limited message arrived, in seconds. cpu: shares of a core."""

    times: Sequence[float]
    late: Lateness
    cpu: float

    @property
    def rate(self) -> float:
        """Messages per second, from the first to the last."""
        return (len(self.times) - 1) / max(1e-3, self.times[-1] - self.times[0])

    @property
    def seconds(self) -> tuple[int, int]:
        """The fewest and the most messages in a second, beginning with the first."""
        counts = [0] * (int(self.times[-1] - self.times[0]) + 1)
        for at_s in self.times:
            counts[int(at_s - self.times[0])] += 1
        whole = counts[:-1] or counts
        return min(whole), max(whole)


def measure(
    redis_url: str,
    url: str,
    rate: int,
    workers: int,
    seconds: int,
    *,
    kill: bool = False,
    backlog: int = 0,
) -> Measured:
    """Deliver `rate * seconds` messages of a larger backlog. rate 0: only the other queue."""
    backlog = backlog or rate * seconds * 5 // 4
    with ExitStack() as stack:
        bench = stack.enter_context(open_bench(redis_url, rabbitmq=url))
        limited, other = (stack.enter_context(quorum_queue(url)) for _ in "ab")
        pids = [bench.start_worker(**LEASE) for _ in range(workers)]
        bench.wait_until_owned(workers)
        counts = max(1, rate * seconds), OTHERS * seconds
        receivers = [
            stack.enter_context(receiving("receive_rabbitmq.py", url, queue, count))
            for queue, count in zip((limited, other), counts, strict=True)
        ]
        first_s = fill(bench, limited, other, rate, seconds, backlog)
        time.sleep(max(0.0, first_s - time.time()))
        used_s = -sum(map(cpu_seconds, pids[kill:]))
        if kill:
            time.sleep(seconds / 3)
            os.kill(pids[0], signal.SIGKILL)
        late = receivers[1].lateness(seconds + SPARE_S)
        took_s = time.time() - first_s
        used_s += sum(map(cpu_seconds, pids[kill:]))
        times = arrivals(receivers[0], seconds) if rate else [0.0]
        return Measured(times, late, used_s / took_s)


def fill(bench: Bench, limited: str, other: str, rate: int, seconds: int, backlog: int) -> float:
    """Schedule for both queues; returns when the first messages are due."""
    if rate:
        bench.client.destinations.limit(f"rabbitmq:{limited}", rate)
    first_s = time.time() + AHEAD_S + backlog / FILL_RATE
    at = format_time(round(first_s * 1000))
    bench.fill_with(Message(f"rabbitmq:{limited}/key", BODY, at=at), backlog)
    times = [format_time(round((first_s + n / OTHERS) * 1000)) for n in range(OTHERS * seconds)]
    bench.client.schedule_many([Message(f"rabbitmq:{other}/key", BODY, at=at) for at in times])
    return first_s


def arrivals(receiver: Receiver, seconds: int) -> list[float]:
    """When each message arrived, in seconds since all of them were due."""
    receiver.lateness(seconds + SPARE_S)
    return sorted(int(line) / 1e6 for line in Path(receiver.path).read_text().split())


def main(seconds: int = 10, *rates: int) -> None:
    """Print the table."""
    out = Table(f"B21 limits on RabbitMQ; target: 5 %, others as late as without; {seconds} s")
    with open_redis() as redis, open_rabbitmq() as broker:
        for workers in WORKERS:
            run = measure(redis.url, broker.url, 0, workers, seconds)
            out.line(f"no backlog, {workers} workers", "", "", str(run.late), f"{run.cpu:.0%} CPU")
        for rate in rates or (100, 5000):
            for workers in WORKERS:
                run = measure(redis.url, broker.url, rate, workers, seconds)
                line(out, f"{rate}/s, {workers} workers", rate, run)
            run = measure(redis.url, broker.url, rate, WORKERS[-1], seconds, kill=True)
            line(out, f"{rate}/s, one of {WORKERS[-1]} workers killed", rate, run)
        run = measure(redis.url, broker.url, 100, 1, seconds, backlog=LARGE)
        line(out, f"100/s, 1 worker, {LARGE} wait", 100, run)


def line(out: Table, name: str, rate: int, run: Measured) -> None:
    """Print one run."""
    fewest, most = run.seconds
    exact = f"{run.rate:.1f}/s {run.rate / rate - 1:+.1%}"
    out.line(name, exact, f"{fewest} to {most} in 1 s", str(run.late), f"{run.cpu:.0%} CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

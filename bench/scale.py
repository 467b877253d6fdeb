"""What a message costs each component as workers are added, and from that what one core can carry.

    python -m bench.scale [MESSAGES] [MOST_WORKERS] [ROUNDS]

1, 2, 4, ... worker processes, up to MOST_WORKERS, share the buckets; then MESSAGES come due at once
and are drained: with a publisher that only confirms (memory), to RabbitMQ (quorum queue, confirms,
mandatory), to Kafka (acks=all). A component's cost is the CPU time of its process with all its
threads, until the last is settled. Waiting for a core is not in it, but what processes on one core
do to each other's caches is. `all` is their sum: where they share all cores, its ratio says how
much longer a drain takes, whatever else runs there. `calls` are script calls for 1,000 messages: if
it grows, claims, fires or settles get smaller. Each figure is the median of the rounds.

The second table repeats this at a rate for which two cores suffice. Batches are small there, so a
message costs much more than in a drain, whatever the number of workers. The third has a broker that
confirms after CONFIRM_MS, so that workers wait and two cores suffice: there more are faster.

The last table is the model: the costs with the most workers (Redis and client: with the dearest
publisher) beside those of `delaybridge size`, how many messages a second one core can carry at that
cost, and how many cores 100,000 and a million a second need.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.rig import (
    BODY,
    CALL,
    Bench,
    Table,
    cpu_seconds,
    kafka_topic,
    open_bench,
    open_kafka,
    open_rabbitmq,
    open_redis,
    pid_at,
    quorum_queue,
)
from delaybridge import Message
from delaybridge.operate.sizing.sizing import TABLES
from delaybridge.times import format_time
from tests.rigs import recorder

FILL_RATE = 15_000  # messages per second that are scheduled at least, on a slow day
SPARE_S = 1.0  # between the last `schedule` and the due time
WARM = 5000  # messages of a first drain, which is not measured
FREE_RATE, FREE_S = 2000, 3  # a load for a quarter of a core
RATES = (100_000, 1_000_000)
SCHEDULED = ("client: schedule_many", "Redis: schedule")
TARGET = 1.05  # of one worker's
FIGURES = {  # of `delaybridge size`
    "client: schedule_many": "client_us",
    "Redis: all": "redis_us",
    "worker, to RabbitMQ": "worker_us",
    "RabbitMQ": "rabbitmq_us",
    "worker, to Kafka": "worker_us",
    "Kafka": "kafka_us",
}
# Claimed when due, as a backlog is, so that the measured time has all of a message's costs in it.
AT_ONCE = {"SCAN__CLAIM_AHEAD_MS": "0", "SCAN__FIRE_LEAD_MS": "0"}
CONFIRM_MS = 20
FEW = {"PUBLISH__WINDOW_MESSAGES": "100"}  # of which one destination has half


class Broker(NamedTuple):
    """Where messages go. pid: of its process, None without one."""

    name: str
    url: str
    pid: int | None

    @contextmanager
    def target(self) -> Iterator[str]:
        """A destination with a fresh queue or topic."""
        kind = self.name.lower()
        made: AbstractContextManager[str] = nullcontext("x")
        if kind == "rabbitmq":
            made = quorum_queue(self.url)
        elif kind == "kafka":
            made = kafka_topic(self.url.removeprefix("kafka://"))
        with made as name:
            yield f"rabbitmq:{name}/key" if kind == "rabbitmq" else f"{kind}:{name}"


class Run(NamedTuple):
    """Messages per second of one drain, microseconds of CPU a message by component, and calls."""

    rate: float
    costs_us: dict[str, float]
    calls: float

    @property
    def all_us(self) -> float:
        """What all components that drain spend on a message."""
        return sum(us for name, us in self.costs_us.items() if name not in SCHEDULED)


def prepare(bench: Bench, destination: str, count: int, rate: int) -> None:
    """Schedule messages that come due at this rate, 0: all at once, in some seconds."""
    due_s = time.time() + count / FILL_RATE + SPARE_S
    dues_s = [due_s + number / rate if rate else due_s for number in range(count)]
    times = [format_time(round(each_s * 1000)) for each_s in dues_s]
    for first in range(0, count, CALL):
        some = times[first : first + CALL]
        bench.client.schedule_many([Message(destination, BODY, at=at) for at in some])
    if time.time() > due_s:
        raise RuntimeError("scheduling took too long: the drain had begun")


def schedule(bench: Bench, redis_pid: int, destination: str, count: int) -> dict[str, float]:
    """What scheduling a message costs client and Redis."""
    used_s = time.process_time(), cpu_seconds(redis_pid)
    bench.fill(destination, count, delay="1d")
    now_s = time.process_time(), cpu_seconds(redis_pid)
    return {name: (now_s[i] - used_s[i]) / count * 1e6 for i, name in enumerate(SCHEDULED)}


def script_calls(bench: Bench) -> int:
    """Script calls since Redis was started."""
    stats = bench.redis.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


def drain(
    redis_url: str, broker: Broker, workers: int, count: int, rate: int = 0, **settings: str
) -> Run:
    """Measure messages that come due at this rate, 0: all at once, when all workers own buckets."""
    settings |= {} if rate else AT_ONCE
    redis_pid = pid_at(redis_url)
    with (
        open_bench(redis_url, **{broker.name.lower(): broker.url}) as bench,
        broker.target() as destination,
    ):
        pids = [bench.start_worker(**settings) for _ in range(workers)]
        bench.wait_until_owned(workers)
        prepare(bench, destination, count, rate)
        components = {f"worker, to {broker.name}": pids, "Redis: drain": [redis_pid]}
        if broker.pid is not None:
            components[broker.name] = [broker.pid]
        calls = script_calls(bench)
        drained, costs_us = bench.drain_costs(count, components)
        calls = script_calls(bench) - calls
        scheduled_us = schedule(bench, redis_pid, destination, count)
    return Run(drained, {**scheduled_us, **costs_us}, calls / count * 1000)


def middle(runs: Sequence[Run]) -> Run:
    """The median of each figure."""
    costs_us = {name: median([run.costs_us[name] for run in runs]) for name in runs[0].costs_us}
    rate, calls = (median(each) for each in ([r.rate for r in runs], [r.calls for r in runs]))
    return Run(rate, costs_us, calls)


def scale(
    out: Table, redis_url: str, broker: Broker, most: int, count: int, rounds: int, rate: int = 0
) -> dict[str, float]:
    """Print a line for each number of workers; returns the costs with the most."""
    if count > WARM:
        drain(redis_url, broker, 1, WARM)
    numbers = [2**power for power in range(most.bit_length())]
    found = [[drain(redis_url, broker, n, count, rate) for n in numbers] for _ in range(rounds)]
    runs = [middle(column) for column in zip(*found, strict=True)]
    for workers, run in zip(numbers, runs, strict=True):
        figures = []
        for name in (f"worker, to {broker.name}", "Redis: drain", broker.name):
            if (cost_us := run.costs_us.get(name)) is None:
                figures.append("-")
            else:
                figures.append(f"{cost_us:.1f} us  x{cost_us / runs[0].costs_us[name]:.2f}")
        target = "" if rate else f", <= {TARGET}"
        figures.append(f"x{run.all_us / runs[0].all_us:.2f}{target}")
        title = f"{broker.name}, {workers} worker{'s' * (workers > 1)}"
        out.line(title, f"{run.rate:,.0f}/s", *figures, f"{run.calls:.1f} calls")
    return runs[-1].costs_us


def wait_for_confirms(redis_url: str, most: int, count: int, rounds: int) -> None:
    """Print the rate for each number of workers, of a linear one, to a broker that takes long."""
    out = Table(f"a broker that confirms after {CONFIRM_MS} ms, few in flight; target >= 0.9")
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, recorder.register(Path(folder, "site")))
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        broker = Broker("recorder", f"recorder:///dev/null?confirm_ms={CONFIRM_MS}", None)
        one: float | None = None
        for workers in [2**power for power in range(most.bit_length())]:
            runs = [drain(redis_url, broker, workers, count, 0, **FEW) for _ in range(rounds)]
            rate = middle(runs).rate
            one = one or rate
            share = f"{rate / one / workers:.2f} of linear"
            out.line(f"{workers} worker{'s' * (workers > 1)}", f"{rate:,.0f}/s", share)


def main(count: int = 40_000, most: int = 4, rounds: int = 1) -> None:
    """Print both tables."""
    cores = len(os.sched_getaffinity(0))
    with open_redis() as redis, open_rabbitmq() as rabbitmq, open_kafka() as kafka:
        out = Table(f"scale out: {count:,} messages due at once; {cores} cores for everything")
        out.line("publisher", "drained", "workers", "Redis", "broker", "all", "per 1,000")
        memory = Broker("memory", "memory://", None)
        costs_us: dict[str, float] = {}
        for broker in (
            memory,
            Broker("RabbitMQ", rabbitmq.url, pid_at(rabbitmq.url)),
            Broker("Kafka", kafka.url, pid_at(kafka.url)),
        ):
            for name, cost_us in scale(out, redis.url, broker, most, count, rounds).items():
                costs_us[name] = max(cost_us, costs_us.get(name, 0.0))
        out = Table(f"the same with free cores: {FREE_RATE:,} messages due each second")
        scale(out, redis.url, memory, most, min(count, FREE_S * FREE_RATE), rounds, FREE_RATE)
        wait_for_confirms(redis.url, most, count, rounds)
    out = Table(f"model, at the costs with {most} workers")
    heads = [f"cores for {rate // 1000:,}k/s" for rate in RATES]
    out.line("component", "CPU a message", "`size` counts with", "one core carries", *heads)
    costs_us["Redis: all"] = costs_us["Redis: schedule"] + costs_us["Redis: drain"]
    for name, cost_us in costs_us.items():
        needed = [f"{rate * cost_us / 1e6:,.1f}" for rate in RATES]
        figure = TABLES["figures"].get(FIGURES.get(name, ""))
        counted = f"{figure['about']} ({figure['low']}-{figure['high']})" if figure else ""
        out.line(name, f"{cost_us:.1f} us", counted, f"{1e6 / cost_us:,.0f}/s", *needed)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""B8: whether drain, lateness and `schedule` get slower as more messages are pending.

    python -m bench.growth [MOST_PENDING] [SECONDS] [MESSAGES] [RUNS] [COMMAND [/ COMMAND]...]

Repeats B1 and B4 with MESSAGES, and B3 (at 1,000/s for SECONDS): with 10,000 other messages due
tomorrow, then with ten times as many, and so on up to MOST_PENDING. The namespace only grows. Each
figure is the median of the runs. A step that would not fit into memory is skipped. `Redis`: its CPU
to claim, fire and settle a message of the drain. `x`: how many times slower each figure is than
with 10,000.

With commands, as `bucket resize 64 --wait / bucket resize 16 --wait`, B3 is repeated while they
run: a line below each step, its lateness compared with that of a run without just before (target:
p99 + 2 ms), and how many commands ended. SECONDS should be as long as these take.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec.structs import replace

from bench.beside import Beside, Command, commands_of
from bench.lateness import AHEAD_S, SPARE_S, Lateness, RabbitMQ, receiving
from bench.rig import BODY, Bench, Table, open_rabbitmq, open_redis, quorum_queue, redis_cpu_s
from delaybridge import Message, Receipt
from delaybridge.message import new_id
from delaybridge.store.protocol.verbs import new_stamp
from delaybridge.times import format_time

FIRST, FACTOR, MOST = 10_000, 10, 10_000_000
AMID = "36h"  # a delay in the middle of the pending messages' delays
CALL = 1000
RATE = 1000
WARM = 3000
DAY_MS = 86_400_000
MESSAGE_BYTES = 400  # that a message takes in Redis; see bench.memory
USABLE = 0.7  # the share of free memory that may be filled


class Plan(NamedTuple):
    """seconds, messages, runs: of each measurement. commands: that run beside one, if any do."""

    seconds: float
    messages: int
    runs: int
    commands: Sequence[Command]


class Growing(Bench):
    """A namespace whose pending messages stay; each worker runs only during a block."""

    pending = 0

    def count_in(self, *names: str) -> int:
        """Count messages as in `Bench`, without those that `grow` scheduled."""
        return super().count_in(*names) - self.pending

    def grow(self, destination: str, pending: int) -> None:
        """Schedule messages for random times tomorrow, until `pending` are pending.

        One message is accepted and copied, so that the time is spent in Redis only.
        """
        message = Message(destination, BODY, delay="1d")
        template = self.client.accept(message)
        while self.pending < pending:
            ids = [new_id() for _ in range(min(CALL, pending - self.pending))]
            fresh = [
                replace(template, id=id, shard_key=id.encode(), when=f"+{random_delay_ms()}")
                for id in ids
            ]
            stamped = [(new_stamp(), accepted) for accepted in fresh]
            self.client.schedule_accepted(stamped)
            self.pending += len(ids)

    def forget(self, receipts: Sequence[Receipt]) -> None:
        """Delete these messages without a trace; `cancel` would leave a revocation behind."""
        by_bucket: dict[int, list[str]] = {}
        for receipt in receipts:
            by_bucket.setdefault(receipt.bucket, []).append(receipt.id)
        self._store.complete(self._calls.open())
        with self.redis.pipeline(transaction=False) as pipeline:
            for number, ids in by_bucket.items():
                pipeline.zrem(self._calls.bucket(number).key("due"), *ids)
                pipeline.hdel(self._calls.bucket(number).key("messages"), *ids)
            pipeline.execute()

    @contextmanager
    def scanning(self) -> Iterator[int]:
        """Run a worker until the block ends; gives its pid."""
        pid = self.start_worker()
        yield pid
        self.end(pid)


def random_delay_ms() -> int:
    """A delay of one to two days."""
    return DAY_MS + random.randrange(DAY_MS)


@contextmanager
def growing(redis_url: str, url: str) -> Iterator[Growing]:
    """Create the namespace; it is closed when the block ends."""
    with TemporaryDirectory() as folder:
        bench = Growing(redis_url, {"rabbitmq": url}, Path(folder))
        try:
            yield bench
        finally:
            bench.close()


def drain(bench: Growing, destination: str, count: int) -> tuple[float, float]:
    """B1: messages per second of one worker on a backlog; microseconds of Redis for each."""
    bench.fill(destination, count)
    used_s = redis_cpu_s(bench)
    with bench.scanning() as pid:
        rate = bench.measure_drain(count, [pid])[0]
        return rate, (redis_cpu_s(bench) - used_s) / count * 1e6


def schedule_many_rate(bench: Growing, destination: str, count: int) -> float:
    """B4: messages per second of `schedule_many` in batches of a thousand."""
    batches = [
        [Message(destination, BODY, delay=AMID) for _ in range(min(CALL, count - first))]
        for first in range(0, count, CALL)
    ]
    receipts: list[Receipt] = []
    began_s = time.monotonic()
    for batch in batches:
        receipts += bench.client.schedule_many(batch)
    took_s = time.monotonic() - began_s
    bench.forget(receipts)
    return count / took_s


def lateness(
    bench: Growing, broker: RabbitMQ, seconds: float, beside: Beside | None = None
) -> Lateness:
    """B3: lateness at 1,000 messages per second; the worker runs until the commands have ended."""
    with quorum_queue(broker.address) as queue, bench.scanning():
        bench.wait_until_owned()
        count = int(RATE * seconds)
        with (
            receiving(broker.script, broker.address, queue, count) as receiver,
            beside.running() if beside else nullcontext(),
        ):
            first_ms = (time.time() + AHEAD_S) * 1000
            to = broker.destination(queue)
            messages = [
                Message(to, BODY, at=format_time(round(first_ms + number * 1000 / RATE)))
                for number in range(count)
            ]
            for first in range(0, count, CALL):
                bench.client.schedule_many(messages[first : first + CALL])
            late = receiver.lateness(AHEAD_S + seconds + SPARE_S)
        while bench.count_in("due", "mirror") > 0:
            time.sleep(0.01)  # until the worker has settled the last
        return late


def free_bytes() -> int:
    """Bytes of memory that this machine has available."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def steps(most: int) -> Iterator[int]:
    """The number of pending messages in each step."""
    step = FIRST
    while step < most:
        yield step
        step *= FACTOR
    yield most


class Step(NamedTuple):
    """The figures with so many pending; medians of the runs."""

    drained: float
    claim_us: float
    scheduled: float
    p50: float
    p99: float

    def slower_than(self, first: Step) -> str:
        """How many times each is slower."""
        rates = first.drained / self.drained, first.scheduled / self.scheduled
        found = (rates[0], self.claim_us / first.claim_us, rates[1], self.p50 / first.p50)
        return " ".join(f"{each:.2f}" for each in found)


def measure(bench: Growing, broker: RabbitMQ, to: str, plan: Plan) -> Step:
    """Every figure with what is pending now."""
    runs = range(plan.runs)
    accepted = median([schedule_many_rate(bench, to, plan.messages) for _ in runs])
    drained = [drain(bench, to, plan.messages) for _ in runs]
    found = [lateness(bench, broker, plan.seconds) for _ in runs]
    rate, claim_us = (median(each) for each in zip(*drained, strict=True))
    p50, p99 = median([late.p50 for late in found]), median([late.p99 for late in found])
    return Step(rate, claim_us, accepted, p50, p99)


def print_beside(out: Table, bench: Growing, broker: RabbitMQ, plan: Plan) -> None:
    """B3 while the commands run, compared with one without just before: medians of such pairs."""
    alone, late, ended, took_s = list[Lateness](), list[Lateness](), list[int](), list[float]()
    for _ in range(plan.runs):
        alone.append(lateness(bench, broker, plan.seconds))
        beside = Beside(bench, plan.commands)
        late.append(lateness(bench, broker, plan.seconds, beside))
        ended.append(len(beside.took_s))
        took_s += beside.took_s
    pairs = list(zip(late, alone, strict=True))
    more = [median([found[at] - before[at] for found, before in pairs]) for at in (0, 1)]
    times = [median([found[at] / before[at] for found, before in pairs]) for at in (0, 1)]
    out.line(
        f"  beside {' / '.join(map(' '.join, plan.commands))}",
        f"{median(ended):.0f} of {median(took_s):.2f} s",
        f"{median([each.p50 for each in late]):.2f} / {median([each.p99 for each in late]):.2f} ms",
        f"{more[0]:+.2f} / {more[1]:+.2f} ms",
        f"x{times[0]:.2f} x{times[1]:.2f}",
    )


def table(bench: Growing, url: str, most: int, plan: Plan) -> None:
    """Measure and print B8."""
    broker = RabbitMQ(url)
    out = Table(f"B8 growth: other messages pending; target: within x1.3 of {min(FIRST, most):,}")
    heads = ("drain", "Redis", "schedule_many", f"p50 / p99, {RATE:,}/s")
    out.line("pending", *heads, "x drain Redis sched p50")
    first: Step | None = None
    with quorum_queue(url) as queue:
        to = broker.destination(queue)
        drain(bench, to, min(WARM, plan.messages))
        for step in steps(most):
            needed = max(0, step - bench.pending) * MESSAGE_BYTES
            if needed > (room := USABLE * free_bytes()):
                out.line(f"{step:,}", f"skipped: needs {needed / 1e9:.1f} of {room / 1e9:.1f} GB")
                break
            bench.grow(to, step)
            found = measure(bench, broker, to, plan)
            first = first or found
            out.line(
                f"{step:,}",
                f"{found.drained:,.0f}/s",
                f"{found.claim_us:.1f} us",
                f"{found.scheduled:,.0f}/s",
                f"{found.p50:.2f} / {found.p99:.2f} ms",
                found.slower_than(first),
            )
            if plan.commands:
                print_beside(out, bench, broker, plan)


def main(
    most: int = 1_000_000,
    seconds: float = 10,
    messages: int = 20_000,
    runs: int = 3,
    words: Sequence[str] = (),
) -> None:
    """Print the table."""
    plan = Plan(seconds, messages, runs, commands_of(words))
    with open_redis() as redis, open_rabbitmq() as broker:
        with growing(redis.url, broker.url) as bench:
            table(bench, broker.url, most, plan)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), words=sys.argv[5:])  # type: ignore[misc, arg-type]

"""B8: whether drain, lateness and `schedule` get slower as more messages are pending.

    python -m bench.growth [MOST_PENDING] [SECONDS] [MESSAGES] [RUNS]

Repeats B1 and B4 with MESSAGES, and B3 (at 1,000/s for SECONDS): with 10,000 other messages due
tomorrow, then with ten times as many, and so on up to MOST_PENDING. The namespace only grows. Each
figure is the median of the runs. A step that would not fit into memory is skipped. `x`: how many
times slower each figure is than with 10,000.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from bench.lateness import AHEAD_S, SPARE_S, Lateness, RabbitMQ, receiving
from bench.rig import BODY, Bench, Table, open_rabbitmq, open_redis, quorum_queue
from delaybridge import Message, Receipt
from delaybridge.message import new_id
from delaybridge.store.protocol import keys
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
        with self.redis.pipeline(transaction=False) as pipeline:
            for bucket, ids in by_bucket.items():
                pipeline.zrem(keys.bucket_key(self.namespace, bucket, "due"), *ids)
                pipeline.hdel(keys.bucket_key(self.namespace, bucket, "messages"), *ids)
            pipeline.execute()

    @contextmanager
    def scanning(self) -> Iterator[int]:
        """Run a worker until the block ends; gives its pid."""
        yield self.start_worker()
        process = self._processes.pop()
        process.terminate()
        process.wait()


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


def drain(bench: Growing, destination: str, count: int) -> float:
    """B1: messages per second of one worker on a backlog."""
    bench.fill(destination, count)
    with bench.scanning() as pid:
        return bench.measure_drain(count, [pid])[0]


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


def lateness(bench: Growing, broker: RabbitMQ, seconds: float) -> Lateness:
    """B3: lateness at 1,000 messages per second."""
    with quorum_queue(broker.address) as queue, bench.scanning():
        bench.wait_until_owned()
        count = int(RATE * seconds)
        with receiving(broker.script, broker.address, queue, count) as receiver:
            first_ms = (time.time() + AHEAD_S) * 1000
            to = broker.destination(queue)
            messages = [
                Message(to, BODY, at=format_time(round(first_ms + number * 1000 / RATE)))
                for number in range(count)
            ]
            for first in range(0, count, CALL):
                bench.client.schedule_many(messages[first : first + CALL])
            late = receiver.lateness(AHEAD_S + seconds + SPARE_S)
        while bench.count_in("due", "mirror"):
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


def table(bench: Growing, url: str, most: int, seconds: float, messages: int, runs: int) -> None:
    """Measure and print B8."""
    broker = RabbitMQ(url)
    out = Table(f"B8 growth: other messages pending; target: within x1.3 of {min(FIRST, most):,}")
    out.line("pending", "drain", "schedule_many", f"p50 / p99, {RATE:,}/s", "x drain sched p50")
    first: tuple[float, float, float] | None = None
    with quorum_queue(url) as queue:
        to = broker.destination(queue)
        drain(bench, to, min(WARM, messages))
        for step in steps(most):
            needed = max(0, step - bench.pending) * MESSAGE_BYTES
            if needed > (room := USABLE * free_bytes()):
                out.line(f"{step:,}", f"skipped: needs {needed / 1e9:.1f} of {room / 1e9:.1f} GB")
                break
            bench.grow(to, step)
            accepted = median([schedule_many_rate(bench, to, messages) for _ in range(runs)])
            drained = median([drain(bench, to, messages) for _ in range(runs)])
            found = [lateness(bench, broker, seconds) for _ in range(runs)]
            p50, p99 = median([late.p50 for late in found]), median([late.p99 for late in found])
            first = first or (drained, accepted, p50)
            slower = (first[0] / drained, first[1] / accepted, p50 / first[2])
            out.line(
                f"{step:,}",
                f"{drained:,.0f}/s",
                f"{accepted:,.0f}/s",
                f"{p50:.2f} / {p99:.2f} ms",
                " ".join(f"{each:.2f}" for each in slower),
            )


def main(most: int = 1_000_000, seconds: float = 10, messages: int = 20_000, runs: int = 3) -> None:
    """Print the table."""
    with open_redis() as redis, open_rabbitmq() as broker:
        with growing(redis.url, broker.url) as bench:
            table(bench, broker.url, most, seconds, messages, runs)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

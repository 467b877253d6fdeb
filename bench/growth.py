"""B8: whether drain, lateness and schedule keep their pace while other messages lie pending.

    python -m bench.growth [MOST_PENDING] [SECONDS]

B1, B3 at 1,000/s for SECONDS and B4, each with 10,000 other messages due tomorrow, then with ten
times as many, up to MOST_PENDING; one namespace that only grows. Each figure is the median of three
runs. What would not fit into memory is left out. `x`: how much slower each is than with 10,000.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from bench.lateness import AHEAD_S, SPARE_S, Late, RabbitMQ, receiving
from bench.rig import BODY, Bench, Table, median, quorum_queue
from delaybridge import Message, Receipt
from delaybridge.message import new_id
from delaybridge.store import keys
from delaybridge.store.verbs import new_stamp
from delaybridge.times import format_time
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

FIRST, FACTOR, MOST = 10_000, 10, 10_000_000
RUNS = 3
DUE = 20_000  # messages of one drain
SCHEDULED = 20_000  # of one run of schedule_many
AMID = "36h"  # in the middle of what is pending
CALL = 1000
RATE = 1000
WARM = 3000
DAY_MS = 86_400_000
MESSAGE_BYTES = 400  # in Redis; bench.memory
SHARE = 0.7  # of the memory that is free


class Growing(Bench):
    """A namespace with messages pending that no worker touches, and workers that end."""

    pending = 0

    def left(self, *names: str) -> int:
        """Without what is pending."""
        return super().left(*names) - self.pending

    def grow(self, destination: str, pending: int) -> None:
        """So many are due at some time tomorrow; checked once, so that Redis is what it takes."""
        message = Message(destination, BODY, delay="1d")
        one = self.client.accept(message)
        while self.pending < pending:
            ids = [new_id() for _ in range(min(CALL, pending - self.pending))]
            fresh = [
                replace(
                    one, id=id, shard_key=id.encode(), when=f"+{DAY_MS + random.randrange(DAY_MS)}"
                )
                for id in ids
            ]
            stamped = [(new_stamp(), accepted) for accepted in fresh]
            self.client.schedule_accepted(stamped)
            self.pending += len(ids)

    def forget(self, receipts: Sequence[Receipt]) -> None:
        """As if they had never been scheduled: a cancelled message would leave a note behind."""
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
        """A worker for as long as the block: its pid."""
        yield self.worker()
        process = self._processes.pop()
        process.terminate()
        process.wait()


@contextmanager
def growing(redis_url: str, url: str) -> Iterator[Growing]:
    """A namespace of its own; with its Redis it is forgotten, message by message takes long."""
    with TemporaryDirectory() as folder:
        mine = Growing(redis_url, {"rabbitmq": url}, Path(folder))
        try:
            yield mine
        finally:
            for process in mine._processes:
                process.kill()
                process.wait()
            mine.client.close()


def drain(mine: Growing, destination: str, count: int) -> float:
    """B1: messages per second of one worker on a backlog."""
    mine.fill(destination, count)
    with mine.scanning() as pid:
        return mine.drained(count, [pid])[0]


def scheduled(mine: Growing, destination: str) -> float:
    """B4: messages per second of `schedule_many` in batches of a thousand."""
    batches = [
        [Message(destination, BODY, delay=AMID) for _ in range(CALL)]
        for _ in range(0, SCHEDULED, CALL)
    ]
    receipts: list[Receipt] = []
    began_s = time.monotonic()
    for batch in batches:
        receipts += mine.client.schedule_many(batch)
    took_s = time.monotonic() - began_s
    mine.forget(receipts)
    return SCHEDULED / took_s


def lateness(mine: Growing, broker: RabbitMQ, seconds: float) -> Late:
    """B3: how late 1,000 messages a second are received."""
    with quorum_queue(broker.address) as queue, mine.scanning():
        mine.until_owned()
        count = int(RATE * seconds)
        with receiving(broker.script, broker.address, queue, count) as receiver:
            first_ms = (time.time() + AHEAD_S) * 1000
            to = broker.destination(queue)
            messages = [
                Message(to, BODY, at=format_time(round(first_ms + number * 1000 / RATE)))
                for number in range(count)
            ]
            for first in range(0, count, CALL):
                mine.client.schedule_many(messages[first : first + CALL])
            late = receiver.late(AHEAD_S + seconds + SPARE_S)
        while mine.left("due", "mirror"):
            time.sleep(0.01)  # until the worker has settled the last
        return late


def free_bytes() -> int:
    """What this machine could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def steps(most: int) -> Iterator[int]:
    """How many are pending in each step."""
    step = FIRST
    while step < most:
        yield step
        step *= FACTOR
    yield max(most, FIRST)


def table(mine: Growing, url: str, most: int, seconds: float) -> None:
    """Print B8."""
    broker = RabbitMQ(url)
    out = Table(f"B8 growth: other messages pending; must show within x1.3 of {FIRST:,}")
    out.line("pending", "drain", "schedule_many", f"p50 / p99, {RATE:,}/s", "x drain sched p50")
    first: tuple[float, float, float] | None = None
    with quorum_queue(url) as queue:
        to = broker.destination(queue)
        drain(mine, to, WARM)
        for step in steps(most):
            needed = max(0, step - mine.pending) * MESSAGE_BYTES
            if needed > (room := SHARE * free_bytes()):
                out.line(f"{step:,}", f"left out: {needed / 1e9:.1f} of {room / 1e9:.1f} GB free")
                break
            mine.grow(to, step)
            accepted = median([scheduled(mine, to) for _ in range(RUNS)])
            drained = median([drain(mine, to, DUE) for _ in range(RUNS)])
            found = [lateness(mine, broker, seconds) for _ in range(RUNS)]
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


def main(most: int = 1_000_000, seconds: float = 10) -> None:
    """Print the table."""
    with RedisServer() as redis, RabbitMQNode() as broker:
        with growing(redis.url, broker.url) as mine:
            table(mine, broker.url, most, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""B2: how long a burst of messages due in the same millisecond takes to reach the queue.

    python -m bench.burst [MESSAGES] [RUNS]

One worker, quorum queue, confirms, mandatory; all messages are scheduled well before they are due.
Measured from the due time until the broker says that the queue holds them all. Compared with the
raw publisher, measured from its start to the same point.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from bench.raw_rabbitmq import publish_raw
from bench.rig import BODY, Table, open_bench, open_rabbitmq, open_redis, quorum_queue
from delaybridge import Message
from delaybridge.times import format_time
from tests.rigs.bridge import rabbitmq_channel

SPARE_S = 4.0  # from the last `schedule` to the due time; the worker claims 2 s ahead


def wait_until_full(url: str, queue: str, count: int) -> float:
    """Wait until the queue holds `count` messages; returns the epoch seconds of that moment."""
    with rabbitmq_channel(url) as channel:
        while channel.queue_declare(queue, passive=True).method.message_count < count:
            time.sleep(0.02)
    return time.time()


def burst(redis_url: str, url: str, count: int) -> float:
    """Seconds from the due time until the last message is in the queue."""
    with open_bench(redis_url, rabbitmq=url) as bench, quorum_queue(url) as queue:
        bench.start_worker()
        bench.wait_until_owned()
        due_s = round(time.time() + count / 10_000 + SPARE_S)
        at = format_time(due_s * 1000)
        bench.fill_with(Message(f"rabbitmq:{queue}/key", BODY, at=at), count)
        if time.time() > due_s - SPARE_S / 2:
            raise RuntimeError("scheduling took too long: the burst would not be claimed ahead")
        return wait_until_full(url, queue, count) - due_s


def raw_burst(url: str, count: int) -> float:
    """Seconds from the raw publisher's start until the last message is in the queue."""
    with quorum_queue(url) as queue:
        began_s = time.time()
        publish_raw(url, queue, count)
        return wait_until_full(url, queue, count) - began_s


def main(count: int = 60_000, runs: int = 3) -> None:
    """Print the table."""
    with open_redis() as redis, open_rabbitmq() as broker:
        limit = median([raw_burst(broker.url, count) for _ in range(runs)])
        took = median([burst(redis.url, broker.url, count) for _ in range(runs)])
        out = Table(f"B2 burst: {count:,} due in one millisecond; target >= 0.9 of raw")
        out.line("raw", f"{limit:.2f} s", f"{count / limit:,.0f}/s")
        out.line(
            "delaybridge", f"{took:.2f} s", f"{count / took:,.0f}/s", f"{limit / took:.2f} of raw"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

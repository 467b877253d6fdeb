"""B2: a burst of messages due in the same millisecond, until the last is in the queue.

    python -m bench.burst [MESSAGES] [RUNS]

Scheduled ahead, one worker, quorum queue, confirms, mandatory, the mirror on; counted from the due
time until the broker says that the queue holds them all. Beside it the raw publisher, from its
first write until then.
"""

from __future__ import annotations

import sys
import time

from bench.raw_rabbitmq import raw
from bench.rig import BODY, Table, bench, median, quorum_queue
from delaybridge import Message
from delaybridge.times import format_time
from tests.rigs.bridge import rabbitmq_channel
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

SPARE_S = 4.0  # between the last that is scheduled and the due time: the worker claims 2 s ahead


def until_full(url: str, queue: str, count: int) -> float:
    """Wait until the queue holds so many; the time then."""
    with rabbitmq_channel(url) as channel:
        while channel.queue_declare(queue, passive=True).method.message_count < count:
            time.sleep(0.02)
    return time.time()


def burst(redis_url: str, url: str, count: int) -> float:
    """Seconds from the due time until the last is in the queue."""
    with bench(redis_url, rabbitmq=url) as mine, quorum_queue(url) as queue:
        mine.worker()
        mine.until_owned()
        due_s = round(time.time() + count / 10_000 + SPARE_S)
        at = format_time(due_s * 1000)
        for _ in range(0, count, 5000):
            messages = [Message(f"rabbitmq:{queue}/key", BODY, at=at) for _ in range(5000)]
            mine.client.schedule_many(messages)
        if time.time() > due_s - SPARE_S / 2:
            raise RuntimeError("scheduling took too long: the burst would not be claimed ahead")
        return until_full(url, queue, count) - due_s


def alone(url: str, count: int) -> float:
    """Seconds of the raw publisher."""
    with quorum_queue(url) as queue:
        began_s = time.time()
        raw(url, queue, count)
        return until_full(url, queue, count) - began_s


def main(count: int = 60_000, runs: int = 3) -> None:
    """Print the table."""
    with RedisServer() as redis, RabbitMQNode() as broker:
        limit = median([alone(broker.url, count) for _ in range(runs)])
        took = median([burst(redis.url, broker.url, count) for _ in range(runs)])
        out = Table(f"B2 burst: {count:,} due in one millisecond; must show >= 0.9 of raw")
        out.line("raw", f"{limit:.2f} s", f"{count / limit:,.0f}/s")
        out.line(
            "delaybridge", f"{took:.2f} s", f"{count / took:,.0f}/s", f"{limit / took:.2f} of raw"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

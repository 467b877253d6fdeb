"""B13: how late messages are while others go to exchanges that do not exist.

    python -m bench.missing [MISSING] [SECONDS]

One worker, default settings, one RabbitMQ. A queue gets 200 messages a second. MISSING messages,
each to an exchange of its own that does not exist, are due a second after its first message.
"""

from __future__ import annotations

import sys
import time

from bench.lateness import AHEAD_S, SPARE_S, Lateness, RabbitMQ, receiving
from bench.rig import BODY, CALL, Table, cpu_seconds, open_bench, open_rabbitmq, open_redis
from delaybridge import Message
from delaybridge.times import format_time

RATE = 200
LATER_S = 1.0  # the healthy queue's channel is open by then


def measure(redis_url: str, broker: RabbitMQ, missing: int, seconds: float) -> tuple[Lateness, str]:
    """Lateness of the queue's messages, and the worker's share of a core."""
    count = int(RATE * seconds)
    with (
        open_bench(redis_url, **broker.brokers) as bench,
        broker.new_target(broker.address) as target,
    ):
        pid = bench.start_worker()
        bench.wait_until_owned()
        with receiving(broker.script, broker.address, target, count) as receiver:
            first_s = time.time() + AHEAD_S + missing / CALL
            at = format_time(round((first_s + LATER_S) * 1000))
            nowhere = [Message(f"rabbitmq:nowhere-{n}/key", BODY, at=at) for n in range(missing)]
            to = broker.destination(target)
            times = [format_time(round((first_s + n / RATE) * 1000)) for n in range(count)]
            bench.client.schedule_many([*nowhere, *(Message(to, BODY, at=at) for at in times)])
            time.sleep(max(0.0, first_s - time.time()))
            cpu_s = cpu_seconds(pid)
            late = receiver.lateness(AHEAD_S + seconds + SPARE_S)
            cpu = (cpu_seconds(pid) - cpu_s) / (time.time() - first_s)
        return late, f"{cpu:.0%} CPU"


def main(missing: int = 3000, seconds: float = 20) -> None:
    """Print the table."""
    with open_redis() as redis, open_rabbitmq() as node:
        out = Table(f"B13 missing exchanges: p50 / p99 / max at {RATE}/s")
        for name, count in (("none", 0), (f"{missing:,} missing exchanges", missing)):
            late, cpu = measure(redis.url, RabbitMQ(node.url), count, seconds)
            out.line(name, str(late), cpu)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

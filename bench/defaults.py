"""The measurements behind the defaults of `scan` and `publish`: one setting is varied at a time.

    python -m bench.defaults [MESSAGES]

Each row is one run of one worker process on RabbitMQ, with a quorum queue and 100-byte bodies, on
the servers of the tests (tests/servers). `drain` is messages per second of a backlog that is due at
once, from the first settled message to the last. `lateness` is in ms, measured by a plain consumer
at 200 messages per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from delaybridge import Client, Message
from tests.rigs.bridge import Bridge
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

VARIED = {
    "SCAN__BATCH_MESSAGES": ("100", "500", "1000"),
    "PUBLISH__WINDOW_MESSAGES": ("1000", "4000", "10000", "40000"),
    "SCAN__WHEEL_MESSAGES": ("20000", "100000"),
}
AHEAD = ("0", "500", "2000", "5000")


def drain(redis: RedisServer, broker: RabbitMQNode, count: int, settings: dict[str, str]) -> float:
    """Messages per second of one worker on a backlog."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        bridge = Bridge(
            Path(folder), redis.url, namespace, {"rabbitmq": broker.url}, settings=settings
        )
        destination = bridge.rabbitmq_queue(namespace, consume=False)
        body = b"x" * 100
        for _ in range(count // 5000):
            bridge.client.schedule_many([Message(destination, body, delay=0) for _ in range(5000)])
        bridge.start_worker()
        try:
            return _drain_rate(bridge.client, count)
        finally:
            bridge.close()


def _drain_rate(client: Client, count: int) -> float:
    began_s, began_left = 0.0, count
    while True:
        stats = client.stats()
        left = stats.delayed + stats.in_flight
        if began_s == 0.0 and left < count:
            began_s, began_left = time.monotonic(), left
        if left == 0:
            return began_left / (time.monotonic() - began_s)
        time.sleep(0.05)


def lateness(redis: RedisServer, broker: RabbitMQNode, settings: dict[str, str]) -> str:
    """Lateness in ms, p50 and p99, at 200 messages per second for ten seconds."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        brokers = {"rabbitmq": broker.url}
        bridge = Bridge(
            Path(folder), redis.url, namespace, brokers, lease_ttl_ms=10_000, settings=settings
        )
        try:
            destination = bridge.rabbitmq_queue(namespace)
            bridge.start_workers(1)
            bridge.schedule(destination, 2000, seconds=10, first_s=1)
            bridge.wait_delivered()
            verdict = bridge.verdict()
            return f"p50 {verdict.late(0.5):6.2f}  p99 {verdict.late(0.99):7.2f}"
        finally:
            bridge.close()


def main(count: int) -> None:
    """Print the table."""
    out = sys.stdout
    cpu = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    with RedisServer() as redis, RabbitMQNode() as broker:
        out.write(
            f"redis {redis.version}  rabbitmq {broker.version}  {cpu} cores  {count} messages\n"
        )
        for name, values in VARIED.items():
            for value in values:
                rate = drain(redis, broker, count, {f"DELAYBRIDGE_{name}": value})
                out.write(f"{name.lower():26} {value:>7}  drain {rate:8.0f}/s\n")
                out.flush()
        for value in AHEAD:
            figures = lateness(
                redis,
                broker,
                {
                    "DELAYBRIDGE_SCAN__CLAIM_AHEAD_MS": value,
                    "DELAYBRIDGE_SCAN__FIRE_LEAD_MS": "0" if value == "0" else "5",
                },
            )
            out.write(f"{'scan__claim_ahead_ms':26} {value:>7}  lateness {figures} ms\n")
            out.flush()


if __name__ == "__main__":
    os.environ.pop("DELAYBRIDGE_CONFIG", None)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)

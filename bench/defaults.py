"""The measurements behind the defaults of `scan` and `publish`: one setting is varied at a time.

    python -m bench.defaults [MESSAGES] [SECONDS]

Each line is one run of one worker on RabbitMQ, with a quorum queue and 100-byte bodies: the drain
of a backlog of MESSAGES as in bench.drain, or the lateness at 200 messages per second for SECONDS
as in bench.lateness.
"""

from __future__ import annotations

import sys

from bench.drain import drain
from bench.lateness import RabbitMQ, delayed
from bench.rig import Table, open_rabbitmq, open_redis

VARIED = {
    "SCAN__BATCH_MESSAGES": ("100", "500", "1000"),
    "PUBLISH__WINDOW_MESSAGES": ("1000", "4000", "10000", "40000"),
    "SCAN__WHEEL_MESSAGES": ("20000", "100000"),
}
AHEAD = ("0", "500", "2000", "5000")
RATE = 200


def main(count: int = 50_000, seconds: float = 10) -> None:
    """Print the table."""
    out = Table(f"measured defaults: drain of {count:,} messages; p50 / p99 / max at {RATE}/s")
    with open_redis() as redis, open_rabbitmq() as broker:
        for name, values in VARIED.items():
            for value in values:
                rate, _ = drain(redis.url, broker.url, count, **{name: value})
                out.line(f"{name.lower()} {value}", f"{rate:,.0f}/s")
        for value in AHEAD:
            settings = {
                "SCAN__CLAIM_AHEAD_MS": value,
                "SCAN__FIRE_LEAD_MS": "0" if value == "0" else "5",
            }
            late = delayed(redis.url, RabbitMQ(broker.url), RATE, seconds, 0, **settings)
            out.line(f"scan__claim_ahead_ms {value}", str(late))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

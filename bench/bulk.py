"""How long one command takes to reschedule or cancel very many messages.

    python -m bench.bulk [MESSAGES]

The command applies to one half of the namespace, selected by destination, so it reads every record.
The time is that of the whole process, which counts the messages first.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.rig import Table, open_bench, open_redis

KAFKA = {"kafka": "kafka://127.0.0.1:1"}  # never connected


def command_s(*arguments: str) -> float:
    """Seconds that a delaybridge command takes, from its start to its end."""
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "delaybridge", *arguments], stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began_s


def main(count: int = 300_000) -> None:
    """Print the table. Raises if a message outside the selection was cancelled."""
    out = Table(f"bulk verbs: {count:,} of {2 * count:,} messages of 100 bytes; target 30 s")
    with open_redis() as redis, open_bench(redis.url, **KAFKA) as bench:
        bench.fill("kafka:right", count, delay="1d")
        bench.fill("kafka:mistaken", count, delay="1d")
        redis_flags = ("--redis", redis.url, "--namespace", bench.namespace)
        chosen = ("--destination", "kafka:mistaken", "--yes")
        for verb, more in (("reschedule", ("--in", "2d", "--over", "1h")), ("cancel", ())):
            took_s = command_s(*redis_flags, "message", verb, *chosen, *more)
            out.line(f"message {verb}", f"{took_s:,.1f} s", f"{count / took_s:,.0f}/s")
        left = bench.count_in("due")
        if left != count:
            raise RuntimeError(f"{left:,} are left, not {count:,}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

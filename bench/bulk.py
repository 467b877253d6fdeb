"""How long it takes to undo a mistake: so many messages, cancelled by one command.

    python -m bench.bulk [MESSAGES]

Half of the namespace is mistaken, the other half is not. The command is the real one, a process of
its own, which counts first; it is told by destination, so every record is read.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.rig import Table, bench
from tests.servers.redis import RedisServer

KAFKA = {"kafka": "kafka://127.0.0.1:1"}  # only its name is looked at


def command_s(*arguments: str) -> float:
    """A command of ours, to its end."""
    began_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "delaybridge", *arguments], stdout=subprocess.DEVNULL, check=True
    )
    return time.monotonic() - began_s


def main(count: int = 300_000) -> None:
    """Print the table."""
    out = Table(f"bulk verbs: {count:,} of {2 * count:,} messages of 100 bytes; must: 30 s")
    with RedisServer() as redis, bench(redis.url, **KAFKA) as mine:
        mine.fill("kafka:right", count, delay="1d")
        mine.fill("kafka:mistaken", count, delay="1d")
        redis_flags = ("--redis", redis.url, "--namespace", mine.namespace)
        chosen = ("--destination", "kafka:mistaken", "--yes")
        for verb, more in (
            ("reschedule", ("--in", "2d", "--over", "1h")),
            ("cancel", ()),
        ):
            took_s = command_s(*redis_flags, "message", verb, *chosen, *more)
            out.line(f"message {verb}", f"{took_s:,.1f} s", f"{count / took_s:,.0f}/s")
        left = mine.left("due")
        if left != count:
            raise RuntimeError(f"{left:,} are left, not {count:,}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""B5: how many bytes a pending message takes in Redis.

    python -m bench.memory [MESSAGES]

Measured as the growth of used_memory per message; ids are generated.
"""

from __future__ import annotations

import sys

from bench.rig import Bench, Table, open_bench, open_redis

SIZES = (100, 1024, 10 * 1024)


def used_bytes(bench: Bench) -> int:
    """Bytes that Redis has allocated."""
    return int(bench.redis.info("memory")["used_memory"])


def main(count: int = 100_000) -> None:
    """Print the table."""
    out = Table(f"B5 memory: {count:,} pending; target <= 370 B at 100 B, overhead <= 270 B")
    for size in SIZES:
        with open_redis() as redis, open_bench(redis.url, kafka="kafka://127.0.0.1:1") as bench:
            some = count if size < SIZES[-1] else count // 10
            before = used_bytes(bench)
            bench.fill("kafka:orders", some, body=b"x" * size, delay="1d")
            each = (used_bytes(bench) - before) / some
            out.line(f"{size:,} B", f"{each:,.0f} B a message", f"overhead {each - size:,.0f} B")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

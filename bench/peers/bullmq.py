"""BullMQ: delayed jobs in the same Redis. A job has arrived when the worker calls its function."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis

from bench.lateness import Lateness, percentiles
from bench.peers.npm import libraries
from bench.peers.peer import PATIENCE_S, SPARE_S, Peer, check_pending

SCRIPT = Path(__file__).parent / "bullmq.mjs"
CONCURRENCY = 100
# BullMQ's worker waits in Redis with a time-out. An idle Redis checks time-outs `hz` times a
# second; with the default, 10, a job is up to 100 ms late.
HZ = 500


class BullMQ(Peer):
    """One Node process that adds jobs and runs them."""

    name, cancel = "BullMQ", "yes"

    def open(self) -> None:
        """Fetch the library and start the script; note the lateness with the default hz."""
        self.queue, self.folder = f"bench-{uuid4().hex[:8]}", libraries()
        port = str(self.servers.redis.port)
        self.stack.callback(self._remove)
        self.process = subprocess.Popen(
            ["node", str(SCRIPT), str(self.folder), port, self.queue, str(CONCURRENCY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.stack.callback(self._end)
        self.node = str(self._answer(30)["node"])
        late = self.lateness(100, 1)
        self.stack.callback(self._hz, 10)
        self._hz(HZ)
        self.note = f"no broker behind it; Redis with hz {HZ}, by default late at 100/s: {late}"

    def fill(self, count: int) -> float:
        """Add with addBulk, in batches of 1,000."""
        return count / float(self._ask("fill", count=count)["seconds"])

    def burst(self, count: int, slack: int = 1) -> float:
        """Measured until the worker has run the last job."""
        due_ms = round((time.time() + slack * count / 3000 + SPARE_S) * 1000)
        done = self._ask("burst", count=count, dueMs=due_ms)
        check_pending(done["addedMs"] / 1000, due_ms / 1000)
        return float(done["seconds"])

    def lateness(self, rate: int, seconds: float) -> Lateness:
        """Jobs are added ahead."""
        count = int(rate * seconds)
        first_ms = (time.time() + count / 1500 + SPARE_S) * 1000
        done = self._ask("late", count=count, rate=rate, firstMs=first_ms)
        return percentiles([round(late_ms * 1000) for late_ms in done["lateMs"]])

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the whole Redis, used by this peer alone."""
        return {"in Redis": self.servers.redis_bytes()}

    def versions(self) -> Mapping[str, str]:
        """Versions of BullMQ, its Redis client and Node."""
        wanted = json.loads((self.folder / "package.json").read_text())["dependencies"]
        return {**wanted, "node": self.node}

    def _ask(self, command: str, **given: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"command": command, **given}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer(PATIENCE_S * 2)

    def _answer(self, timeout_s: float) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise RuntimeError(f"no answer within {timeout_s:.0f} s")
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("bullmq.mjs ended; its error is above")
        return json.loads(line)

    def _hz(self, hz: int) -> None:
        with redis.Redis.from_url(self.servers.redis.url) as connection:
            connection.config_set("hz", hz)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

    def _remove(self) -> None:
        with redis.Redis.from_url(self.servers.redis.url) as connection:
            keys = list(connection.scan_iter(f"bull:{self.queue}:*", count=1000))
            for first in range(0, len(keys), 1000):
                connection.unlink(*keys[first : first + 1000])

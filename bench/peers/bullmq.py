"""BullMQ: delayed jobs in the same Redis. A job has arrived when the worker calls its function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from uuid import uuid4

import redis

from bench.peers.driver import DrivenPeer
from bench.peers.fetched import DRIVERS, node_modules

CONCURRENCY = 100
# BullMQ's worker waits in Redis with a time-out. An idle Redis checks time-outs `hz` times a
# second; with the default, 10, a job is up to 100 ms late.
HZ = 500


class BullMQ(DrivenPeer):
    """One Node process that adds jobs and runs them."""

    name = "BullMQ"
    stored = "Redis' memory; AOF each second"
    cannot = "reach a broker: its own workers take the jobs"

    def open(self) -> None:
        """Start the program; note the lateness with the default hz."""
        self.queue, self.folder = f"bench-{uuid4().hex[:8]}", node_modules()
        port = str(self.servers.redis.port)
        self.stack.callback(self._remove)
        script = str(DRIVERS / "bullmq.mjs")
        self.drive(["node", script, str(self.folder), port, self.queue, str(CONCURRENCY)])
        late = self.lateness(100, 1)
        self.stack.callback(self._hz, 10)
        self._hz(HZ)
        self.note = f"Redis with hz {HZ}; by default late at 100/s: {late}"

    def memory_bytes(self) -> Mapping[str, int]:
        """Memory of the whole Redis, used by this peer alone."""
        return {"in Redis": self.servers.redis_bytes()}

    def versions(self) -> Mapping[str, str]:
        """Versions of BullMQ, its Redis client and Node."""
        wanted = json.loads((self.folder / "package.json").read_text())["dependencies"]
        return {**{name: wanted[name] for name in ("bullmq", "ioredis")}, "Node": self.version}

    def _hz(self, hz: int) -> None:
        with redis.Redis.from_url(self.servers.redis.url) as connection:
            connection.config_set("hz", hz)

    def _remove(self) -> None:
        with redis.Redis.from_url(self.servers.redis.url) as connection:
            keys = list(connection.scan_iter(f"bull:{self.queue}:*", count=1000))
            for first in range(0, len(keys), 1000):
                connection.unlink(*keys[first : first + 1000])

"""B27: how long the messages of a killed worker wait until another one publishes them.

    python -m bench.take_over [KILLS] [NAMESPACES]

In each namespace two workers on default settings, 16 buckets, and a message due in each bucket
every 50 ms. One worker is killed (SIGKILL) at a random moment, and replaced; the next kill comes
when both have been there for longer than a lease. Measured is the time from a kill until the other
worker has published a message of each bucket that the dead one had.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from bench.rig import POLL_S, Table, open_redis
from delaybridge import Client, Message
from delaybridge.message import new_id
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol.verbs import bucket_of
from delaybridge.worker.worker import run_one
from tests.rigs import recorder

OLD_S = 11.0  # since a worker came: longer than a lease
BUCKETS, EACH_S, DUE_S = 16, 0.05, 4.0


class Site:
    """A namespace with two workers, forked from this process: that takes no time."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self._path = folder / "published.jsonl"
        sys.path.insert(0, recorder.register(folder / "site"))
        self._settings = Settings.load(
            overrides={
                "redis": {"url": redis_url},
                "namespace": f"bench-{uuid.uuid4().hex[:8]}",
                "brokers": {"file": f"recorder://{self._path}?confirm_ms=5"},
            },
            environ={},
        )
        self._client = Client.from_settings(self._settings)
        self._pids: dict[str, int] = {}

    def start(self) -> None:
        """One more worker."""
        name = f"w{uuid.uuid4().hex[:6]}"
        pid = os.fork()
        if pid == 0:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            try:
                run_one(self._settings, name=name)
            finally:
                os._exit(0)
        self._pids[name] = pid

    def owners(self) -> dict[int, str]:
        """Who holds each bucket that has an owner."""
        found = self._client.stats().buckets
        return {each.bucket: each.owner for each in found if each.owner is not None}

    def wait_shared(self) -> None:
        """Wait until the workers share all buckets; one that could not start is started again."""
        half = BUCKETS // 2
        while sorted(map([*self.owners().values()].count, self._pids)) != [half, half]:
            for name, pid in [*self._pids.items()]:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._pids[name]
                    self.start()
            time.sleep(10 * POLL_S)

    def took_ms(self) -> list[float]:
        """Of one kill. None, if this machine stood still until all was over."""
        victim = random.choice([*self._pids])
        its_own = {b for b, owner in self.owners().items() if owner == victim}
        now, step = datetime.now(UTC), timedelta(seconds=EACH_S / BUCKETS)
        count = int(BUCKETS * DUE_S / EACH_S)
        due = [Message("file:q", b"x", at=now + i * step, id=new_id()) for i in range(count)]
        ids = {receipt.id for receipt in self._client.schedule_many(due)}
        time.sleep(1 + random.random())
        killed_ms, pid = time.time() * 1000, self._pids.pop(victim)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while self.is_busy():
            time.sleep(10 * POLL_S)
        first_ms: dict[int, float] = {}
        for each in self.published():
            bucket = bucket_of(each.id.encode(), BUCKETS)
            if each.id in ids and each.pid != pid and bucket in its_own:
                first_ms[bucket] = min(each.at_ms, first_ms.get(bucket, each.at_ms))
        return [max(first_ms.values()) - killed_ms] if first_ms.keys() == its_own else []

    def is_busy(self) -> bool:
        """Whether a message waits, or is with a worker."""
        stats = self._client.stats()
        return stats.delayed + stats.in_flight + stats.parked > 0

    def published(self) -> Iterator[recorder.Record]:
        """What was published, but for lines that a killed worker had not written to their end."""
        for line in self._path.read_text().splitlines():
            with suppress(ValueError, TypeError):
                yield recorder.Record(*json.loads(line))

    def close(self) -> None:
        """Kill all workers."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._client.close()


def measured_ms(kills: int, redis_url: str, _: int) -> list[float]:
    """The times of so many kills in a namespace of its own."""
    with tempfile.TemporaryDirectory() as folder:
        site, found = Site(Path(folder), redis_url), list[float]()
        try:
            site.start()
            site.start()
            for _ in range(kills):
                site.wait_shared()
                time.sleep(OLD_S + random.random())
                found += site.took_ms()
                site.start()
        finally:
            site.close()
    return found


def main(kills: int = 200, namespaces: int = 5) -> None:
    """Print the table."""
    out = Table("B27 take-over of a killed worker: target p99 < 2 s")
    with open_redis() as redis, multiprocessing.get_context("spawn").Pool(namespaces) as pool:
        each = partial(measured_ms, kills // namespaces, redis.url)
        took_ms = sorted(one for found in pool.map(each, range(namespaces)) for one in found)
    at = {share: took_ms[int(share / 100 * (len(took_ms) - 1))] for share in (50, 90, 99, 100)}
    out.line(f"{len(took_ms)} kills", *(f"p{share} {value:,.0f} ms" for share, value in at.items()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

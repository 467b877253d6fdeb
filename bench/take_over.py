"""B27: how long the messages of a killed worker wait until another one publishes them.

    python -m bench.take_over [KILLS] [NAMESPACES]

In each namespace two workers on default settings, 16 buckets, and a message due in each bucket
every 50 ms. One worker is killed (SIGKILL) at a random moment, and replaced; the next kill comes
when both have been there for longer than a lease. Measured is the time from a kill until the other
worker has published a message of each bucket that the dead one had.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.rig import Table, open_redis
from delaybridge import Message
from delaybridge.message import new_id
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.fleet import Fleet, Process

OLD_S = 12.0  # since a worker came: longer than a lease
BUCKETS, EACH_S, DUE_S = 16, 0.05, 4.0
DEFAULTS = {"LEASE__RENEW_MS": "4000", "REDIS__TIMEOUT_S": "5"}
TTL_MS = 10_000


class Site:
    """A namespace with two workers. took_ms: of each kill."""

    def __init__(self, folder: Path, redis_url: str, kills: int) -> None:
        namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self._fleet = Fleet(folder, redis_url, namespace, ttl_ms=TTL_MS, **DEFAULTS)
        self._kills = kills
        self.took_ms: list[float] = []

    def run(self) -> None:
        """Kill one worker after the other."""
        with self._fleet as fleet:
            workers = [fleet.start(f"w{number}") for number in range(2)]
            for number in range(self._kills):
                fleet.wait_shared(*(worker.name for worker in workers))
                time.sleep(OLD_S + random.random())
                victim = workers.pop(random.randrange(2))
                self.took_ms += self._took_ms(victim)
                workers.append(fleet.start(f"w{number + 2}", settled=False))

    def _took_ms(self, victim: Process) -> list[float]:
        """One time; none, if this machine stood still until all was over."""
        fleet = self._fleet
        its_own = {b for b, owner in fleet.owners().items() if owner == victim.name}
        now, step = datetime.now(UTC), timedelta(seconds=EACH_S / BUCKETS)
        count = int(BUCKETS * DUE_S / EACH_S)
        due = [Message("file:q", b"x", at=now + i * step, id=new_id()) for i in range(count)]
        ids = {receipt.id for receipt in fleet.client.schedule_many(due)}
        time.sleep(1 + random.random())
        killed_ms = time.time() * 1000
        victim.kill()
        fleet.wait_published([*ids])
        first_ms: dict[int, float] = {}
        for each in fleet.published():
            bucket = bucket_of(each.id.encode(), BUCKETS)
            if each.id in ids and each.pid != victim.pid and bucket in its_own:
                first_ms[bucket] = min(each.at_ms, first_ms.get(bucket, each.at_ms))
        return [max(first_ms.values()) - killed_ms] if first_ms.keys() == its_own else []


def main(kills: int = 200, namespaces: int = 4) -> None:
    """Print the table."""
    out = Table("B27 take-over of a killed worker: target p99 < 2 s")
    with open_redis() as redis, tempfile.TemporaryDirectory() as folder:
        sites = list[Site]()
        for number in range(namespaces):
            (own := Path(folder) / str(number)).mkdir()
            sites.append(Site(own, redis.url, kills // namespaces))
        threads = [threading.Thread(target=site.run) for site in sites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    took_ms = sorted(each for site in sites for each in site.took_ms)
    at = {share: took_ms[int(share / 100 * (len(took_ms) - 1))] for share in (50, 90, 99, 100)}
    out.line(
        f"{len(took_ms)} kills",
        *(f"p{share} {value:,.0f} ms" for share, value in at.items()),
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

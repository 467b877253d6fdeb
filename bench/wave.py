"""Workers follow a wave: how late messages are while an autoscaler adds processes.

    python -m bench.wave [SECONDS] [LOW] [HIGH] [POD_S]

The messages due in a second rise from LOW to HIGH within SECONDS, and stay there for half a minute.
A worker takes two milliseconds for each message, as on a slow core (it sleeps: ours stays free).
Every 15 s `/v1/scaling` is asked, as by KEDA, and the autoscaler of Kubernetes
(`rigs/autoscaler.py`, with the ScaledObject of deploy/kustomize) decides how many workers there
should be. One more is begun POD_S later, as a pod that has to be placed and its image pulled; one
too many gets SIGTERM.

A line is half a minute: the messages due in each second, the workers at its end, and how late its
messages were. The last line is the verdict: none is to be late by more than the start of a pod,
which is POD_S and the time that a process takes to hold a bucket.
"""

from __future__ import annotations

import bisect
import json
import math
import signal
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bench.rig import CALL, Table, open_redis
from delaybridge import Message
from delaybridge.times import format_time
from tests.rigs.api_process import ApiProcess
from tests.rigs.autoscaler import SYNC_S, Autoscaler, of_the_chart
from tests.rigs.fleet import Fleet, Process

BUSY_US = 2000
TARGET = 60 / (BUSY_US / 1e6) * 0.6  # messages a minute of one worker, with room to spare
MOST = 16
LINE_S = 30
FILLED_S = 5000  # messages a second that are scheduled at least
LASTS_S = 30


def dues_s(seconds: int, low: float, high: float) -> list[float]:
    """When each message of the wave is due, in seconds after it began."""
    found: list[float] = []
    due = 0.0
    for tick in range((seconds + LASTS_S) * 100):
        due += low * (high / low) ** min(1.0, tick / seconds / 100) / 100
        found += [tick / 100] * (math.floor(due) - len(found))
    return found


class Deployment:
    """Worker processes, each of which begins `pod_s` after it is wanted."""

    def __init__(self, fleet: Fleet, pod_s: float) -> None:
        self._fleet, self._pod_s, self._made = fleet, pod_s, 0
        self.running: list[Process] = []
        self.coming: list[float] = []  # when each begins

    @property
    def replicas(self) -> int:
        return len(self.running) + len(self.coming)

    def scale(self, wanted: int, *, pod_s: float | None = None) -> None:
        """Begin more, or end the youngest."""
        begins_s = time.time() + (self._pod_s if pod_s is None else pod_s)
        self.coming += [begins_s] * (wanted - self.replicas)
        for _ in range(self.replicas - wanted):
            if self.coming:
                self.coming.pop()
            else:
                self.running.pop().signal(signal.SIGTERM)
        self.place()

    def place(self) -> None:
        """Start those whose time has come, and again those that have ended."""
        for process in self.running:
            process.revive()
        while self.coming and self.coming[0] <= time.time():
            self.coming.pop(0)
            self._made += 1
            self.running.append(self._fleet.start(f"pod-{self._made}", settled=False))


def follow(deployment: Deployment, scaler: Autoscaler, url: str, until_s: float) -> Iterator[int]:
    """Decide every SYNC_S; yields the number of workers after each LINE_S."""
    synced_s = lined_s = time.time()
    while time.time() < until_s:
        deployment.place()
        if time.time() >= synced_s:
            synced_s += SYNC_S
            with suppress(OSError):  # no answer, no change, as with KEDA
                with urllib.request.urlopen(f"{url}/v1/scaling", timeout=SYNC_S) as answer:
                    value = json.load(answer)[scaler.field]
                deployment.scale(scaler.decide(time.time(), value, deployment.replicas))
        if time.time() >= lined_s + LINE_S:
            lined_s += LINE_S
            yield len(deployment.running)
        time.sleep(0.1)
    yield len(deployment.running)


def first_start_s(deployment: Deployment, fleet: Fleet, least: int) -> float:
    """Seconds from the start of the first processes until all of them hold buckets."""
    began_s = time.time()
    deployment.scale(least, pod_s=0)
    while len(fleet.shares()) < least:
        time.sleep(0.1)
    return time.time() - began_s


def fill(fleet: Fleet, began_s: float, dues: Sequence[float]) -> None:
    """Schedule the wave."""
    for first in range(0, len(dues), CALL):
        some = (format_time(round((began_s + due) * 1000)) for due in dues[first : first + CALL])
        fleet.client.schedule_many([Message("file:q", b"x", at=at) for at in some])


def main(seconds: int = 120, low: int = 500, high: int = 2000, pod_s: int = 20) -> None:
    """Print the table."""
    out = Table(f"wave: {low:,} to {high:,} messages/s in {seconds} s; a pod starts in {pod_s} s")
    dues = dues_s(seconds, low, high)
    scaler = of_the_chart(target=TARGET, most=MOST)
    with tempfile.TemporaryDirectory() as name, open_redis() as redis:
        namespace, folder = f"bench-{uuid.uuid4().hex[:8]}", Path(name)
        fleet = Fleet(folder, redis.url, namespace, ttl_ms=10_000, busy_us=BUSY_US)
        with fleet, ApiProcess(folder, redis.url, namespace, "--port", "0") as api:
            deployment = Deployment(fleet, pod_s)
            starts_s = first_start_s(deployment, fleet, scaler.least)
            began_s = time.time() + len(dues) / FILLED_S + 5
            fill(fleet, began_s, dues)
            if time.time() > began_s:
                raise RuntimeError("scheduling took too long: the wave had begun")
            time.sleep(began_s - time.time())
            workers = list(follow(deployment, scaler, api.url, began_s + seconds + LASTS_S))
            fleet.wait_settled()
            report(out, fleet, dues, began_s, workers, pod_s + starts_s)


def report(
    out: Table,
    fleet: Fleet,
    dues: Sequence[float],
    began_s: float,
    workers: Sequence[int],
    bound_s: float,
) -> None:
    """The lines, and the verdict."""
    records = fleet.published()
    late_s: list[list[float]] = [[] for _ in workers]
    for each in records:
        line = min(len(workers) - 1, int((each.due_ms / 1000 - began_s) / LINE_S))
        late_s[line].append((each.at_ms - each.due_ms) / 1000)
    for number, (pods, some) in enumerate(zip(workers, map(sorted, late_s), strict=True)):
        at_s = number * LINE_S
        count = bisect.bisect(dues, at_s + LINE_S) - bisect.bisect(dues, at_s)
        shown = f"{some[len(some) * 99 // 100]:.2f} s" if some else "-"
        most = f"{some[-1]:.2f} s" if some else "-"
        out.line(f"from {at_s} s", f"{count / LINE_S:,.0f}/s", f"{pods} workers", shown, most)
    latest = max(map(max, filter(None, late_s)))
    lost, twice = len(dues) - len({each.id for each in records}), len(fleet.twice())
    out.line("p99 and latest: none by more than", f"{bound_s:.1f} s", f"latest {latest:.2f} s")
    out.line("lost, twice, early", f"{lost}", f"{twice}", f"{len(fleet.early())}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

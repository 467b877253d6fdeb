"""Cells with a ledger whose Redis is several servers: some lose their data, the others do not.

In a Cluster the namespace's record, its rules and its alarms are on one master, the buckets on all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_ledger import LOST, REBUILT, TWICE
from tests.chaos.site import Site
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.cluster import ClusterNode

PAUSED = 60  # messages
AWAY_S = 4.0


@contextmanager
def while_one_is_paused(site: Site) -> Iterator[None]:
    """Nothing of a destination goes out in this block, nor until all is rebuilt and said so."""
    place = site.bridge.rabbitmq_queue(f"{site.namespace}-paused")
    site.bridge.client.pause(place)
    ids = site.burst(PAUSED, first_s=0.5, seconds=6, to=place)
    with site.fault(after_s=1):
        yield
        site.finish_load()
        until(lambda: is_calm(site), lambda: f"{site.logs()}", interval_s=0.5)
        site.bridge.wait_consumed()
        came = {each.id for each in site.bridge.deliveries()}
        site.expect("I17", f"what is paused waits: {len(came & {*ids})} came", not came & {*ids})
        site.bridge.client.resume(place)


def is_calm(site: Site) -> bool:
    """Whether all but what is paused went out, and nobody complains any more."""
    stats = site.bridge.client.stats()
    return not stats.delayed + stats.in_flight and not health(site)


def health(site: Site) -> int:
    """The exit code of `delaybridge health`; what it says is noted."""
    command = [sys.executable, "-m", "delaybridge", "--redis", site.bridge.redis_url]
    command += ["--namespace", site.namespace, "health", "--max-unowned", "1s"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=site.bridge.environment, timeout=DEADLINE_S
    )
    said = f"health {ended.returncode}: {(ended.stdout + ended.stderr).strip()[:300]}"
    if said not in site.notes:
        site.notes.append(said)
    return ended.returncode


def must_say_so(site: Site, lose: Callable[[], None]) -> None:
    """While it is lost, and until it is rebuilt, there is an alarm; it ends by itself."""
    before = ended(site)
    lose()
    until(lambda: has_alarm(site) or ended(site) > before, "an alarm", interval_s=0.05)
    until(lambda: ended(site) > before and not has_alarm(site), lambda: f"{site.logs()}")


def has_alarm(site: Site) -> bool:
    return bool(site.bridge.client.stats().setbacks)


def ended(site: Site) -> int:
    """How often workers said that an alarm ended."""
    return sum(log.count("alarm_ended") for log in site.logs().values())


def masters(site: Site) -> list[ClusterNode]:
    """First that with the namespace's record; then another one."""
    first = site.servers.master_of(f"{{{site.namespace}}}:alarms")
    other = next(each for each in site.servers.masters if each is not first)
    return [first, other]


def of_each(lose: Callable[[Site, ClusterNode], None]) -> Callable[[Site], None]:
    """Two masters lose their data, one after the other."""

    def run(site: Site) -> None:
        site.servers.wait_in_sync()
        with while_one_is_paused(site):
            for node in masters(site):
                must_say_so(site, partial(lose, site, node))

    return run


def flush(site: Site, node: ClusterNode) -> None:
    node.client.flushall()


def start_empty(site: Site, node: ClusterNode) -> None:
    """It is back before anybody misses it; its replica copies that it is empty."""
    node.kill()
    node.start()


def be_lost_with_replica(site: Site, node: ClusterNode) -> None:
    gone = [node, *site.servers.replicas_of(node)]
    for each in gone:
        each.kill()
    site.wait(AWAY_S)
    site.expect("I14", "health fails meanwhile", health(site))
    for each in gone:
        each.start()


def all_are_lost(site: Site) -> None:
    with while_one_is_paused(site):
        must_say_so(site, partial(all_start_empty, site))


def all_start_empty(site: Site) -> None:
    for each in site.servers.servers:
        each.kill()
    for each in site.servers.servers:
        each.start()


def cell(
    redis: str, id: str, fault: str, run: Callable[[Site], None], *, wipes: int = 1, **more: Any
) -> Cell:
    setup = Setup(redis=redis, ledger=True, load=more.pop("load", {}))
    about = {"id": id, "fault": fault, "expects": more.pop("expects", KEPT), "run": run}
    return Cell(setup=setup, duplicates=wipes * TWICE, **about, **{**LOST, **more})  # type: ignore[arg-type]


KEPT = f"{REBUILT}. A paused destination stays paused, and the alarm ends by itself"
cluster = partial(cell, "cluster", wipes=2, seconds=16)
sentinels = partial(cell, "sentinel", seconds=10)
CELLS = [
    cluster(
        "F11-cluster", "in a Cluster: two masters of three are killed, and started again empty, "
        "one after the other", of_each(start_empty), back_off_ms=10_000,
    ),
    cluster(
        "F26-cluster", "in a Cluster: FLUSHALL on two masters of three, one after the other",
        of_each(flush),
    ),
    cluster(
        "F18-ledger", f"in a Cluster: a master dies with its replica; both are back after "
        f"{AWAY_S:.0f} s, empty. Then another one", of_each(be_lost_with_replica),
        back_off_ms=15_000,
    ),
    sentinels(
        "F11-sentinel", "with Sentinels: the master and all replicas are killed, and started "
        "again empty", all_are_lost, back_off_ms=10_000,
    ),
]  # fmt: skip

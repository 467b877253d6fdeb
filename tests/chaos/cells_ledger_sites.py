"""Cells with a ledger whose Redis is several servers: some lose their data, the others do not.

In a Cluster the namespace's record, its rules and its alarms are on one master, the buckets on all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from delaybridge import Stats
from delaybridge.errors import StoreUnavailable
from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_ledger import LOST, REBUILT, TWICE
from tests.chaos.cells_redis import telling
from tests.chaos.cells_sites import fail_over_behind, places
from tests.chaos.site import WINDOW, Site
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.cluster import ClusterNode

PAUSED = 60  # messages of the destination that is paused
AWAY_S = 4.0
SAY = ("store_wiped", "store_went_back", "ledger_differs")  # by who had the bucket
LEASE_MS = 5000  # a busy machine, with a dozen servers, is no fault
MEANWHILE = 40  # messages that are due while a master is away


@contextmanager
def while_one_is_paused(site: Site) -> Iterator[Callable[[], None]]:
    """Nothing of a destination goes out in this block, nor until all is rebuilt and said so.

    Yields what is to be called to pause it.
    """
    place, ids = site.bridge.rabbitmq_queue(f"{site.namespace}-paused"), set[str]()

    def pause() -> None:
        site.bridge.client.destinations.pause(place)
        ids.update(site.burst(PAUSED, first_s=0.5, seconds=6, to=place))

    with site.fault(after_s=1):
        yield pause
        site.finish_load()
        until(lambda: is_calm(site), lambda: f"{site.logs()}", interval_s=0.5)
        site.bridge.wait_consumed()
        came = {each.id for each in site.bridge.deliveries()}
        site.expect("I17", f"what is paused waits: {len(came & ids)} came", not came & ids)
        site.bridge.client.destinations.resume(place)
    site.notes.append(f"{said(site, SAY[:2])} alarms, {said(site, ('alarm_ended',))} ended")
    failed = telling(site, ("scanner_failed",))
    site.expect("I14", f"scanners of {failed} failed", not failed)


def is_calm(site: Site) -> bool:
    """Whether all but what is paused went out, and nobody complains any more."""
    stats = seen(site)
    return stats is not None and not stats.delayed + stats.in_flight and not health(site)


def seen(site: Site) -> Stats | None:
    with suppress(StoreUnavailable):
        return site.bridge.client.stats()
    return None


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
    """Workers say that data was gone; an alarm, if those who knew it could raise one, ends."""
    before = said(site, SAY)
    lose()
    until(lambda: said(site, SAY) > before, lambda: f"{site.logs()}", interval_s=0.05)
    until(lambda: not has_alarm(site), lambda: f"{site.logs()}", interval_s=0.3)


def has_alarm(site: Site) -> bool:
    stats = seen(site)
    return stats is None or bool(stats.setbacks)


def said(site: Site, words: tuple[str, ...]) -> int:
    return sum(log.count(word) for log in site.logs().values() for word in words)


def masters(site: Site) -> list[ClusterNode]:
    """First that with the namespace's record; then another one."""
    first = site.servers.master_of(f"{{{site.namespace}}}:alarms")
    other = next(each for each in site.servers.masters if each is not first)
    return [first, other]


def of_each(lose: Callable[[Site, ClusterNode], None]) -> Callable[[Site], None]:
    """Two masters lose their data, one after the other."""

    def run(site: Site) -> None:
        site.servers.wait_in_sync()
        with while_one_is_paused(site) as pause:
            pause()
            for number, node in enumerate(masters(site)):
                site.start_load(seconds=5, seed=number)
                site.wait(2)
                must_say_so(site, partial(lose, site, node))

    return run


def flush(site: Site, node: ClusterNode) -> None:
    node.client.flushall()


def start_empty(site: Site, node: ClusterNode) -> None:
    """It is back before anybody misses it; its replica copies that it is empty."""
    node.kill()
    node.start()


def be_lost_with_replica(site: Site, node: ClusterNode) -> None:
    """It is back when some messages have come: the buckets of others do not wait for it."""
    # The ids of one call share a bucket.
    ids = {id for _ in range(MEANWHILE) for id in site.burst(1, first_s=2, seconds=2)}
    gone = [node, *site.servers.replicas_of(node)]
    for each in gone:
        each.kill()
    site.wait(AWAY_S)
    site.expect("I14", "health fails meanwhile", health(site))
    come = lambda: {each.id for each in site.bridge.deliveries()} & ids  # noqa: E731
    until(lambda: len(come()) > MEANWHILE / 4, "those of other buckets", interval_s=0.3)
    for each in gone:
        each.start()


def all_are_lost(site: Site) -> None:
    with while_one_is_paused(site) as pause:
        pause()
        must_say_so(site, partial(all_start_empty, site))


def replicas_are_behind(site: Site) -> None:
    """They lack the pause, too."""
    with while_one_is_paused(site) as pause:
        must_say_so(site, partial(fail_over_behind, site, meanwhile=pause))


def replica_is_behind(site: Site) -> None:
    """In a Cluster that of the master with the namespace's record."""
    site.servers.wait_in_sync()
    with while_one_is_paused(site) as pause:
        must_say_so(site, partial(fail_over_in_part, site, masters(site)[0], pause))


def fail_over_in_part(site: Site, old: ClusterNode, meanwhile: Callable[[], None]) -> None:
    slot = site.servers.slots_of(old)[0]
    site.network.cut(old.place, places(site.servers.replicas_of(old)))
    meanwhile()
    site.wait(2)
    old.kill()
    site.network.heal()
    site.servers.wait_for_other_master(old, slot)
    old.start()


def all_start_empty(site: Site) -> None:
    for each in site.servers.servers:
        each.kill()
    for each in site.servers.servers:
        each.start()


def cell(
    redis: str, id: str, fault: str, run: Callable[[Site], None], *, wipes: int = 1, **more: Any
) -> Cell:
    setup = Setup(redis=redis, ledger=True, lease_ms=LEASE_MS, load=more.pop("load", {}))
    about = {"id": id, "fault": fault, "expects": more.pop("expects", KEPT), "run": run}
    return Cell(setup=setup, **about, **{"duplicates": wipes * TWICE, **LOST, **more})  # type: ignore[arg-type]


KEPT = f"{REBUILT}. A paused destination stays paused, and the alarm ends by itself"
cluster = partial(cell, "cluster", wipes=2)
sentinels = partial(cell, "sentinel")
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
    cell(
        "cluster", "F15-cluster",
        "in a Cluster: a master dies while its replica is cut off for 2 s",
        replica_is_behind, duplicates=8 * WINDOW, back_off_ms=10_000,
    ),
    sentinels(
        "F15-ledger", "with Sentinels: the master dies while its replicas are cut off for 2 s",
        replicas_are_behind, duplicates=8 * WINDOW, back_off_ms=10_000,
    ),
    sentinels(
        "F11-sentinel", "with Sentinels: the master and all replicas are killed, and started "
        "again empty", all_are_lost, back_off_ms=10_000,
    ),
]  # fmt: skip

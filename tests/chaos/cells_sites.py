"""Cells whose fault is in a Redis of several servers: with Sentinels, or a Cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import WINDOW, Site
from tests.servers.sentinel import SERVICE

REPLICATED = {"settings": {"durability": "replicated:1"}}
FAILOVER_S = 10
MIN_REPLICAS = ("min-replicas-to-write 1", "min-replicas-max-lag 1")
AOF_LINES = ("appendonly yes",)


def places(nodes: object) -> list[object]:
    return [node.place for node in nodes]  # type: ignore[attr-defined]


def fail_over_behind(
    site: Site, back_after_s: float = 4.0, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """The replicas are cut off; what is written meanwhile they lack when the master dies.

    back_after_s: then it is started again. It is empty, and takes itself for a master until a
    Sentinel has told it otherwise. meanwhile: called while they are cut off.
    """
    site.servers.wait_in_sync()  # the namespace itself is a second old
    with site.fault(after_s=FAILOVER_S):
        old = site.servers.master
        site.network.cut(old.place, places(s for s in site.servers.servers if s is not old))
        meanwhile()
        site.wait(2)
        old.kill()
        site.network.heal()
        site.servers.wait_for_other_master(old)
        site.wait(back_after_s)
        old.start()
    count = site.history.read_text().count("NotDurable")
    site.notes.append(f"{count} answers NotDurable")


def fenced_split_brain(site: Site) -> None:
    """Nobody is elected before the old master has noticed that it is alone."""
    for sentinel in site.servers.sentinels:
        setting = ("down-after-milliseconds", 4000)
        sentinel.client.execute_command("SENTINEL", "SET", SERVICE, *setting)
    split_brain(site, 9)


def split_brain(site: Site, seconds: float = 5) -> None:
    """The old master is cut from all servers, and not from the workers."""
    with site.fault(after_s=FAILOVER_S):
        old = site.servers.master
        others = [*site.servers.servers, *site.servers.sentinels]
        site.network.cut(old.place, places(s for s in others if s is not old))
        site.wait(seconds)
        site.network.heal()
        site.wait(2)


def one_sentinel_is_left(site: Site) -> None:
    with site.fault(after_s=FAILOVER_S):
        for sentinel in site.servers.sentinels[1:]:
            sentinel.kill()
        master = site.servers.master
        master.kill()
        site.wait(4)
        master.start()
        for sentinel in site.servers.sentinels[1:]:
            sentinel.start()


def kill_a_master(site: Site) -> None:
    with site.fault(after_s=FAILOVER_S):
        node = site.servers.masters[0]
        slot = site.servers.slots_of(node)[0]
        node.kill()
        site.servers.wait_for_other_master(node, slot)
        node.start()


def move_slots(site: Site) -> None:
    """Half of the slots of each master move to the next one, with their keys."""
    with site.fault(after_s=FAILOVER_S):
        masters = site.servers.masters
        half = [site.servers.slots_of(master)[::2] for master in masters]
        for slots, target in zip(half, [*masters[1:], masters[0]], strict=True):
            site.servers.reshard(slots, target)
        moved = sum(len(slots) for slots in half)
        site.notes.append(f"{moved:,} slots moved")


def majority_is_lost(site: Site) -> None:
    with site.fault(after_s=FAILOVER_S):
        dead = site.servers.masters[:2]
        for node in dead:
            node.kill()
        site.wait(4)
        for node in dead:
            node.start()
        site.servers.wait_until_healthy()


def on(
    redis: str, component: str, id: str, fault: str, expects: str, run: Any, **more: Any
) -> Cell:
    """most: so many windows may come twice. lines: of the servers' configuration."""
    setup = Setup(redis=redis, redis_args=more.pop("lines", ()), load=more.pop("load", REPLICATED))
    allowed = {"duplicates": more.pop("most", 4) * WINDOW, "back_off_ms": 10_000, **more}
    about = {"id": id, "component": component, "fault": fault, "expects": expects, "run": run}
    return Cell(setup=setup, **about, **allowed)


sentinels = partial(on, "sentinel", "Redis with Sentinels")
cluster = partial(on, "cluster", "Redis Cluster")
LOST = ("I3", "I4", "I11")  # what the old master had been told after its replicas were cut off
CELLS = [
    sentinels(
        "F14",
        "the master dies while its replicas are cut off for 2 s; durability replicated:1",
        "what was accepted is not lost; other answers were NotDurable. What was delivered "
        "while the replicas were cut off may be answered `cancelled` later, or come twice",
        fail_over_behind,
        most=8,
        is_test=True,
        seconds=8,  # what the replicas lack must be enough to be missed
        cannot_hold=LOST,
    ),
    sentinels(
        "F14b",
        "the same, and the old master is started at once, empty",
        "the empty server is not taken for the store",
        lambda site: fail_over_behind(site, 0.0),
        most=8,
        cannot_hold=LOST,
    ),
    sentinels(
        "F15",
        "the same, with durability memory",
        "what was accepted while the replicas were cut off may be lost",
        fail_over_behind,
        most=8,
        cannot_hold=LOST,
        may_lose_s=1,
        load={},
    ),
    sentinels(
        "F16",
        "the master, with min-replicas-to-write 1, is cut from all servers for 5 s, not from "
        "workers; durability replicated:1",
        "what was accepted is not lost. What was delivered before the master noticed that "
        "it is alone may be answered `cancelled` later, or come twice",
        fenced_split_brain,
        cannot_hold=LOST,
        lines=MIN_REPLICAS,
    ),
    sentinels(
        "F16b",
        "the same without min-replicas-to-write: for a moment there are two masters",
        "what was accepted is not lost. What both masters knew may come twice, also what "
        "one of them cancelled or moved, and what is to come at most once",
        split_brain,
        most=16,
        cannot_hold=LOST,
    ),
    sentinels(
        "F17",
        "two of three Sentinels are dead, and the master for 4 s",
        "no replica is promoted; work goes on when the master is back",
        one_sentinel_is_left,
        lines=AOF_LINES,
        load={},
    ),
    cluster(
        "F18",
        "one of three masters dies; durability replicated:1",
        "nothing is lost; its replica takes over",
        kill_a_master,
        is_test=True,
    ),
    Cell(
        id="F19",
        component="Redis Cluster",
        fault="a master dies before its replica has a copy",
        expects="",
        not_run="no such start; with replicated:1 such calls end in NotDurable, as in F14",
    ),
    cluster(
        "F20",
        "half of all slots move to another master, with their keys",
        "nothing is lost",
        move_slots,
        load={},
    ),
    cluster(
        "F21",
        "two of three masters are dead for 4 s",
        "the service pauses, and goes on when they are back",
        majority_is_lost,
        back_off_ms=15_000,
        lines=AOF_LINES,
        load={},
    ),
]

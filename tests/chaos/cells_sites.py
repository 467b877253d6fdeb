"""Cells whose fault is in a Redis of several servers: with Sentinels, or a Cluster."""

from __future__ import annotations

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import WINDOW, Site
from tests.servers.sentinel import SERVICE

REPLICATED = {"settings": {"durability": "replicated:1"}}
FAILOVER_S = 10
MIN_REPLICAS = ("min-replicas-to-write 1", "min-replicas-max-lag 1")
AOF_LINES = ("appendonly yes",)


def places(nodes: object) -> list[object]:
    return [node.place for node in nodes]  # type: ignore[attr-defined]


def fail_over_behind(site: Site, back_after_s: float = 4.0) -> None:
    """The replicas are cut off; what is written meanwhile they lack when the master dies.

    back_after_s: then it is started again. It is empty, and takes itself for a master until a
    Sentinel has told it otherwise.
    """
    site.servers.wait_in_sync()  # the namespace itself is a second old
    with site.fault(after_s=FAILOVER_S):
        old = site.servers.master
        site.network.cut(old.place, places(s for s in site.servers.servers if s is not old))
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


CELLS = [
    Cell(
        id="F14",
        component="Redis with Sentinels",
        fault="the master dies while its replicas are cut off for 2 s; durability replicated:1",
        expects="what was accepted is not lost; other answers were NotDurable. What was delivered "
        "while the replicas were cut off may be answered `cancelled` later, or come twice",
        run=fail_over_behind,
        in_ci=True,
        seconds=8,  # what the replicas lack must be enough to be missed
        cannot_hold=("I3", "I4", "I11"),
        setup=Setup(redis="sentinel", load=REPLICATED),
        duplicates=8 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F14b",
        component="Redis with Sentinels",
        fault="the same, and the old master is started at once, empty",
        expects="nobody takes the empty server for the store",
        run=lambda site: fail_over_behind(site, 0.0),
        cannot_hold=("I3", "I4", "I11"),
        setup=Setup(redis="sentinel", load=REPLICATED),
        duplicates=8 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F15",
        component="Redis with Sentinels",
        fault="the same, with durability memory",
        expects="what was accepted while the replicas were cut off may be lost",
        run=fail_over_behind,
        setup=Setup(redis="sentinel"),
        duplicates=8 * WINDOW,
        back_off_ms=10_000,
        cannot_hold=("I3", "I4", "I11"),
        may_lose_s=1,
    ),
    Cell(
        id="F16",
        component="Redis with Sentinels",
        fault="the master, with min-replicas-to-write 1, is cut from all servers for 5 s, not from "
        "workers; durability replicated:1",
        expects="what was accepted is not lost. What was delivered before the master noticed that "
        "it is alone may be answered `cancelled` later, or come twice",
        run=fenced_split_brain,
        cannot_hold=("I3", "I4", "I11"),
        setup=Setup(redis="sentinel", redis_args=MIN_REPLICAS, load=REPLICATED),
        duplicates=4 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F16b",
        component="Redis with Sentinels",
        fault="the same without min-replicas-to-write: for a moment there are two masters",
        expects="what was accepted is not lost. What both masters knew may come twice, also what "
        "one of them cancelled or moved, and what is to come at most once",
        run=split_brain,
        cannot_hold=("I3", "I4", "I11"),
        setup=Setup(redis="sentinel", load=REPLICATED),
        duplicates=16 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F17",
        component="Redis with Sentinels",
        fault="two of three Sentinels are dead, and the master for 4 s",
        expects="nobody is promoted; work goes on when the master is back",
        run=one_sentinel_is_left,
        setup=Setup(redis="sentinel", redis_args=AOF_LINES),
        duplicates=4 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F18",
        component="Redis Cluster",
        fault="one of three masters dies; durability replicated:1",
        expects="nothing is lost; its replica takes over",
        run=kill_a_master,
        in_ci=True,
        setup=Setup(redis="cluster", load=REPLICATED),
        duplicates=4 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F19",
        component="Redis Cluster",
        fault="a master dies before its replica has a copy",
        expects="",
        not_run="no such start; with replicated:1 such calls end in NotDurable, as in F14",
    ),
    Cell(
        id="F20",
        component="Redis Cluster",
        fault="half of all slots move to another master, with their keys",
        expects="nothing is lost",
        run=move_slots,
        setup=Setup(redis="cluster"),
        duplicates=4 * WINDOW,
        back_off_ms=10_000,
    ),
    Cell(
        id="F21",
        component="Redis Cluster",
        fault="two of three masters are dead for 4 s",
        expects="the service pauses, and goes on when they are back",
        run=majority_is_lost,
        setup=Setup(redis="cluster", redis_args=AOF_LINES),
        duplicates=4 * WINDOW,
        back_off_ms=15_000,
    ),
]

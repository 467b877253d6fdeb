"""Cells of a live resize: to more buckets, then to fewer, with a fault again and again meanwhile.

Half of the messages have keys; the load also looks for messages that are pending (I18, I19).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from delaybridge.errors import DelayBridgeError
from delaybridge.resize import resizing
from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_redis import kill_and_restart
from tests.chaos.cells_sites import kill_a_master
from tests.chaos.site import WINDOW, Site
from tests.rigs.waiting import DEADLINE_S, until

COUNTS = (16, 2)  # after 8
FAULTS_S = 8.0  # so long, of each resize
Fault = Callable[[Site], None]


def ask(site: Site, *arguments: str) -> None:
    """Run `bucket resize` to its end."""
    site.bridge.start("bucket", "resize", *arguments).wait(DEADLINE_S)


def is_at(site: Site, count: int) -> bool:
    """Whether the namespace has this number of buckets, and nothing is being moved."""
    with suppress(DelayBridgeError):
        found = site.bridge.client.run(resizing.progress)
        return (found.buckets, found.to) == (count, None)
    return False


def back_and_forth(fault: Fault) -> Fault:
    """To more buckets and to fewer. Each resize ends by itself, soon after its last fault."""

    def run(site: Site) -> None:
        for count in COUNTS:
            began_s = time.monotonic()
            until(lambda: _is_asked(site, count), "a resize is asked for", interval_s=0.5)  # noqa: B023
            faults = 0
            while not is_at(site, count) and time.monotonic() < began_s + FAULTS_S:
                fault(site)
                faults += 1
            with suppress(AssertionError):
                site.load_until(lambda: is_at(site, count), "all has moved")  # noqa: B023
            took_s = time.monotonic() - began_s
            site.notes.append(f"{count} buckets after {took_s:.1f} s with {faults} faults")
            site.expect("I9", f"the resize to {count} has ended", is_at(site, count))

    return run


def _is_asked(site: Site, count: int) -> bool:
    """An answer may have been lost: then it is asked for already."""
    with suppress(DelayBridgeError):
        found = site.bridge.client.run(resizing.progress)
        if count in (found.buckets, found.to):
            return True
        site.bridge.client.run(lambda calls: resizing.begin(calls, count))
        return True
    return False


def kill_a_worker(site: Site) -> None:
    site.kill_worker(site.bridge.workers[0])
    site.wait(1)


def kill_the_command(site: Site) -> None:
    """The command that waits is killed; the resize is paused, and goes on."""
    waiting = site.bridge.start("bucket", "resize", "--wait")
    site.wait(1)
    waiting.kill()
    ask(site, "--pause")
    site.wait(1)
    ask(site, "--resume")


def kill_redis(site: Site) -> None:
    kill_and_restart(1)(site)


def fail_over(site: Site) -> None:
    with site.fault(after_s=10):
        old = site.servers.master
        site.servers.wait_in_sync()
        old.kill()
        site.servers.wait_for_other_master(old)
        old.start()
    site.wait(FAULTS_S)


def fail_over_one_node(site: Site) -> None:
    site.servers.wait_in_sync()
    kill_a_master(site)
    site.wait(FAULTS_S)


def stop_a_worker(site: Site) -> None:
    with site.stopped(site.bridge.workers[0]):
        site.wait(2 * site.lease_s)


def flush_scripts(site: Site) -> None:
    site.direct.script_flush()
    site.wait(0.3)


def cell(id: str, where: str, fault: str, expects: str, does: Fault, **more: Any) -> Cell:
    setup = {"buckets": 8, "redis": "own", **more.pop("setup", {})}
    load = {"keys": 10, "gets": 0.3, "delay_s": 6.0, **setup.pop("load", {})}
    about = {"id": id, "component": where, "fault": f"{fault} (resize to 16, then to 2 buckets)"}
    return Cell(
        setup=Setup(load=load, **setup), expects=expects, run=back_and_forth(does),
        **about, **{"back_off_ms": 10_000, "seconds": 12.0, **more},
    )  # fmt: skip


EXACT = "nothing is lost, early or twice; every call finds what is pending"
CELLS = [
    cell(
        "F96", "resize", "a worker is killed each second",
        "each kill repeats at most what was in flight; every call finds what is pending",
        kill_a_worker, duplicates=20 * WINDOW, is_test=True,
    ),
    cell(
        "F97", "resize", "the command is killed and asked again; paused, and resumed",
        EXACT, kill_the_command,
    ),
    cell(
        "F97b",
        "resize",
        "every third reply is lost to who takes a page, or lands one",
        EXACT,
        lambda site: site.wait(1),
        setup={"change": "lose:lift=0.3;lose:land=0.3"},
    ),
    cell(
        "F98", "resize", "Redis is killed and started again, append-only file on",
        "nothing is lost that was on disk; it goes on where it was",
        kill_redis, duplicates=20 * WINDOW, may_lose_s=2.0, cannot_hold=("I3", "I4", "I11"),
    ),
    cell(
        "F99", "resize", "the master dies behind Sentinels; durability replicated:1",
        "what was accepted is not lost; duplicates as in F14",
        fail_over, duplicates=16 * WINDOW, cannot_hold=("I3", "I4", "I11"),
        setup={"redis": "sentinel", "load": {"settings": {"durability": "replicated:1"}}},
    ),
    cell(
        "F99b", "resize", "one master of a Cluster dies; durability replicated:1",
        "what was accepted is not lost; duplicates as in F18",
        fail_over_one_node, duplicates=16 * WINDOW, cannot_hold=("I3", "I4", "I11"),
        setup={"redis": "cluster", "load": {"settings": {"durability": "replicated:1"}}},
    ),
    cell(
        "F99c", "resize", "a worker is stopped for longer than its lease, and goes on",
        "what was in flight may come twice; it moves nothing that is not there any more",
        stop_a_worker, duplicates=4 * WINDOW,
    ),
    cell("F99d", "resize", "all scripts are flushed three times a second", EXACT, flush_scripts),
]  # fmt: skip

"""Cells whose fault is in the worker."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import WINDOW, Site
from tests.rigs.waiting import until

KILLS = 3
HEARTBEAT = {"PUBLISH__HEARTBEAT_S": "5"}


def kill_one_after_the_other(site: Site) -> None:
    for kill in range(KILLS):
        site.kill_worker(site.bridge.workers[kill % 2])
        site.wait(2)


def ends_at(*points: str) -> Callable[[Site], None]:
    """At each point one worker ends, as in `claim.after=exit:1`; others take its messages over."""

    def run(site: Site) -> None:
        with site.fault(after_s=2 * site.lease_s):
            victims = [site.start_victim(point) for point in points]
            ended = site.bridge.has_ended
            site.load_until(lambda: all(map(ended, victims)), f"{victims} end at {points}")

    return run


def stops_at(place: str, time: int) -> Callable[[Site], None]:
    """A worker is stopped there for longer than its lease, and goes on afterwards."""

    def run(site: Site) -> None:
        with site.fault(after_s=2 * site.lease_s):
            victim = site.start_victim(f"{place}=stop:{time}")
            site.load_until(lambda: site.is_stopped(victim), f"{victim} is at {place}")
            site.wait(2 * site.lease_s)
            site.bridge.signal_worker(victim, signal.SIGCONT)

    return run


def is_busy_at(place: str) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        with site.fault(after_s=3 * site.lease_s):
            site.start_victim(f"{place}=sleep:{int(site.lease_s * 2000)}")
            site.wait(3 * site.lease_s)

    return run


def is_busy_for_two_heartbeats(site: Site) -> None:
    with site.fault(after_s=15):
        site.start_victim(change="block:10")
        site.wait(14)


def loses_replies_to(*verbs: str) -> Callable[[Site], None]:
    """Of a worker's calls, every fifth is executed, and its reply is lost."""

    def run(site: Site) -> None:
        with site.fault():
            for verb in verbs:
                site.start_victim(change=f"lose:{verb}")
            site.wait(site.seconds - 2)

    return run


def stop_a_worker(seconds: float) -> Callable[[Site], None]:
    def run(site: Site) -> None:
        with site.stopped(site.bridge.workers[0]):
            site.wait(seconds)

    return run


def restart_each(site: Site) -> None:
    for name in site.bridge.workers:
        site.bridge.start_worker(site.workers_redis)
        site.bridge.signal_worker(name, signal.SIGTERM)
        until(lambda name=name: site.bridge.has_ended(name), f"{name} drained")
        site.expect("I14", f"{name} exits with 0", site.bridge.exit_code(name) == 0)


def nobody_works(site: Site) -> None:
    with site.fault(after_s=site.lease_s):
        for name in site.bridge.workers:
            site.bridge.kill_worker(name)
        site.wait(20)
        for _ in range(2):
            site.bridge.start_worker(site.workers_redis)


def c(
    point: str, fault: str, expects: str, run: Callable[[Site], None], most: int = 0,
    is_test: bool = False,
) -> Cell:  # fmt: skip
    """A point of a message's life. Those that are alike run together as a test."""
    return Cell(
        id=f"F03-{point}", component="worker", fault=fault, expects=expects, run=run,
        is_test=is_test, setup=Setup(workers=1), duplicates=most,
    )  # fmt: skip


CELLS = [
    Cell(
        id="F01",
        component="all",
        fault="none",
        expects="nothing is lost, early or twice",
        is_test=True,
    ),
    Cell(
        id="F02",
        fault="one of four workers is killed (SIGKILL) every 2 s, and replaced",
        expects="nothing is lost; each kill repeats at most what was in flight",
        run=kill_one_after_the_other,
        is_test=True,
        setup=Setup(workers=4),
        duplicates=KILLS * WINDOW,
    ),
    Cell(
        id="F02-kafka",
        fault="the same, with Kafka",
        expects="the same",
        run=kill_one_after_the_other,
        is_test=True,
        setup=Setup(broker="kafka", workers=4),
        duplicates=KILLS * WINDOW,
    ),
    c(
        "before",
        "workers die at C10, C12 and C13",
        "as there; no duplicate",
        ends_at("claim.before=exit:1", "claim.after=exit:1", "fire.after=exit:1"),
        is_test=True,
    ),
    c(
        "after",
        "workers die at C13b and C15",
        "as there",
        ends_at("publish.after_write=exit:20", "settle.before=exit:20"),
        2 * WINDOW,
        is_test=True,
    ),
    c(
        "replies",
        "replies are lost as in C11 and C16",
        "as there; no duplicate",
        loses_replies_to("claim", "settle", "retry"),
        is_test=True,
    ),
    c(
        "C10",
        "a worker dies that holds leases and has claimed nothing",
        "the others take over when its leases run out; no duplicate",
        ends_at("claim.before=exit:1"),
    ),
    c(
        "C11",
        "every fifth reply to a claim is lost",
        "the next claim gives the same batch again; no duplicate",
        loses_replies_to("claim"),
    ),
    c(
        "C12",
        "a worker dies after a claim, before it asks whether it may publish",
        "the next owner reclaims; no duplicate",
        ends_at("claim.after=exit:1"),
    ),
    c(
        "C13",
        "a worker dies when it may publish, and has not begun",
        "reclaimed, with an attempt counted; no duplicate",
        ends_at("fire.after=exit:1"),
    ),
    c(
        "C13b",
        "a worker dies when it has handed messages to the broker",
        "reclaimed; what was in flight may come twice",
        ends_at("publish.after_write=exit:20"),
        WINDOW,
    ),
    c(
        "C15",
        "a worker dies between the broker's confirm and telling the store",
        "reclaimed; what was confirmed comes twice",
        ends_at("settle.before=exit:20"),
        WINDOW,
    ),
    c(
        "C16",
        "every fifth reply to settle, retry and bury is lost",
        "sent again, without effect; no duplicate",
        loses_replies_to("settle", "retry"),
    ),
    c(
        "C18",
        "a worker is stopped for longer than its lease after a claim, and continues",
        "its next question to the store is refused; no duplicate",
        stops_at("claim.after", 1),
        is_test=True,
    ),
    c(
        "C19",
        "a worker is stopped for longer than its lease while it publishes, and continues",
        "what was in flight may come twice; its late news change nothing",
        stops_at("publish.after_write", 20),
        WINDOW,
        is_test=True,
    ),
    c(
        "C20",
        "a worker's event loop is busy for longer than its lease",
        "as if it were stopped",
        is_busy_at("publish.after_write"),
        WINDOW,
    ),
    Cell(
        id="F04",
        fault="a worker is stopped for 4 s, less than its lease",
        expects="no worker takes over; no duplicate",
        run=stop_a_worker(4),
        is_test=True,
        setup=Setup(lease_ms=10_000),
    ),
    Cell(
        id="F05",
        fault="a worker is stopped for 4 s, longer than its lease of 2 s",
        expects="nothing cancelled meanwhile is delivered; what was in flight may come twice",
        run=stop_a_worker(4),
        is_test=True,
        duplicates=WINDOW,
    ),
    Cell(
        id="F06",
        fault="a worker is stopped for 16 s, longer than the broker's heartbeat of 5 s",
        expects="it connects again; what was in flight may come twice",
        run=stop_a_worker(16),
        setup=Setup(settings=HEARTBEAT),
        duplicates=WINDOW,
    ),
    Cell(
        id="F07",
        fault="every worker is replaced in turn (SIGTERM)",
        expects="nothing is lost or repeated, and each ends with 0",
        run=restart_each,
        is_test=True,
        setup=Setup(workers=3, lease_ms=10_000),
    ),
    Cell(
        id="F08",
        fault="all workers are killed; 20 s later there are two new ones",
        expects="what is overdue goes out at once; what was in flight may come twice",
        run=nobody_works,
        duplicates=2 * WINDOW,
    ),
    Cell(
        id="F42",
        fault="a worker's event loop is busy for two heartbeats (10 s)",
        expects="it connects again; what was in flight may come twice",
        run=is_busy_for_two_heartbeats,
        setup=Setup(settings=HEARTBEAT),
        duplicates=WINDOW,
    ),
]

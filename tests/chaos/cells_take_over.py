"""Cells of who is taken for dead: whose process has ended, and who only seems to.

Workers have leases of 10 s, as by default, and have been there for longer when the fault comes:
before that they judge no one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import redis

from delaybridge.store.protocol import keys
from tests.chaos.cell import Cell, Setup
from tests.chaos.proxies import Proxies
from tests.chaos.site import WINDOW, Site, with_port
from tests.rigs.waiting import until

LEASE_MS = 10_000
OLD_S = 12.0  # longer than a lease
TAKEN_S = 2.0


def taken_for_dead(site: Site) -> dict[str, int]:
    """How often others say that each worker is gone."""
    said = "".join(site.logs().values())
    return {name: said.count(f" worker_gone name={name} ") for name in site.bridge.workers}


def none_more_often_than(most: int) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    """No worker that lives is taken for dead more often than that."""

    def around(run: Callable[[Site], None]) -> Callable[[Site], None]:
        def running(site: Site) -> None:
            site.wait(OLD_S)
            run(site)
            site.wait(3)
            told = taken_for_dead(site)
            site.notes.append(f"taken for dead: {told}")
            site.expect("I10", f"at most {most} times: {told}", max(told.values()) <= most)

        return running

    return around


def kill_one(site: Site) -> None:
    """The others serve its buckets long before its lease runs out."""
    site.wait(OLD_S)
    victim = site.bridge.workers[0]
    with site.fault(after_s=TAKEN_S):
        began_s = time.monotonic()
        site.bridge.kill_worker(victim)
        owners = lambda: {each.owner for each in site.bridge.client.stats().buckets}  # noqa: E731
        until(lambda: not owners() & {victim, None}, "all buckets have an owner that lives")
        took_s = time.monotonic() - began_s
    site.notes.append(f"taken over after {took_s:.2f} s")
    site.expect("I9", f"within {TAKEN_S} s: {took_s:.2f}", took_s < TAKEN_S + site.slack_s)
    site.expect("I14", "its end is logged", "worker_gone" in "".join(site.logs().values()))


@none_more_often_than(0)
def restart_redis(site: Site) -> None:
    with site.fault():
        site.redis.kill()
        site.redis.start()
    site.wait(2)
    with site.fault():
        site.redis.restart()


@none_more_often_than(1)
def fail_over(site: Site) -> None:
    with site.fault(after_s=10):
        old = site.servers.master
        site.servers.wait_in_sync()
        old.kill()
        site.servers.wait_for_other_master(old)
        site.wait(4)
        old.start()


def kill_connections(site: Site, *kinds: str) -> None:
    for kind in kinds:
        site.direct.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@none_more_often_than(0)
def kill_often(site: Site) -> None:
    """The lines of all, then that of one, whose next line takes 2 s to come: it says so."""
    victim = site.start_victim(change="line:2")
    with site.fault(after_s=1):
        kill_connections(site, "normal", "pubsub")
    site.wait(OLD_S)
    with site.fault(after_s=1):
        for _ in range(3):
            until(lambda: line_of(site, victim), "it has a line")
            site.direct.client_kill_filter(_id=str(line_of(site, victim)))
            site.wait(4)


def line_of(site: Site, name: str) -> int:
    """The line that a worker announces, 0 if none."""
    said = site.direct.hget(keys.worker_info(site.namespace), name) or b"{}"
    lines = json.loads(said[said.index(b"{") :]).get("lines", {})
    return next(iter(lines.values()), 0)


@none_more_often_than(0)
def cut_all_while_one_is_stopped(site: Site) -> None:
    """It cannot say that it lives; but who misses it with another that dies has a new line."""
    with site.stopped(site.bridge.workers[0]):
        kill_connections(site, "normal")
        site.wait(3)
        site.bridge.kill_worker(site.bridge.workers[2])
        site.wait(3)


@none_more_often_than(1)
def cut_one_that_is_stopped(site: Site) -> None:
    """Twice: the second time it has no line that is missed."""
    victim = site.bridge.workers[0]
    for _ in range(2):
        had, pid = line_of(site, victim), site.bridge.pid(victim)
        with site.stopped(victim):
            for port in ports_of(pid):
                with suppress(redis.ResponseError):
                    site.direct.client_kill(f"127.0.0.1:{port}")
            site.wait(4)
        site.notes.append(f"line: {had}")
        site.wait(OLD_S)


def ports_of(pid: int) -> list[int]:
    """The local ports of its connections."""
    import psutil

    return [each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.raddr]


@none_more_often_than(0)
def stop_one(site: Site) -> None:
    """For less than a lease: its line stays, and so its lease."""
    with site.stopped(site.bridge.workers[0]):
        site.wait(5)


@none_more_often_than(0)
def stop_one_for_long(site: Site) -> None:
    with site.stopped(site.bridge.workers[0]):
        site.wait(14)


@none_more_often_than(0)
def busy_for_half_a_lease(site: Site) -> None:
    with site.fault(after_s=3):
        site.start_victim(change="block:5")
        site.wait(9)


@none_more_often_than(1)
def restart_the_proxy_of_one(site: Site) -> None:
    """One worker has a proxy of its own, which is away for 3 s, and then swallows what comes."""
    proxies = Proxies()
    try:
        proxy = proxies.start(site.redis.port)
        url = with_port(site.workers_redis, proxy.port)
        site.bridge.start_worker(url)
        site.wait(OLD_S)
        for mode in ("refuse", "blackhole"):
            with site.fault(after_s=3):
                proxy.mode = mode
                if mode == "refuse":
                    proxies.reset(proxy)
                site.wait(3)
                proxies.reset(proxy)
                proxy.mode = "pass"
            site.wait(4)
    finally:
        site.finish_load()
        site.wait_drained()
        proxies.close()


def cell(id: str, component: str, fault: str, expects: str, run: Any, **more: Any) -> Cell:
    setup = {"redis": "own", "workers": 3, "lease_ms": LEASE_MS, **more.pop("setup", {})}
    about = {"id": id, "component": component, "fault": fault, "expects": expects, "run": run}
    return Cell(setup=Setup(**setup), **about, **{"seconds": 26.0, "back_off_ms": 10_000, **more})


worker, way = partial(cell, component="worker"), partial(cell, component="way to Redis")
CELLS = [
    worker(
        id="F87",
        fault="one of three is killed (SIGKILL); leases last 10 s",
        expects="the others serve its buckets within 2 s; what was in flight may come twice",
        run=kill_one,
        duplicates=WINDOW,
        is_test=True,
    ),
    cell(
        "F88",
        "Redis",
        "killed and started again, then restarted; leases last 10 s",
        "no worker is taken for dead",
        restart_redis,
        duplicates=6 * WINDOW,
        may_lose_s=2.0,
        cannot_hold=("I3", "I4", "I11"),
    ),
    cell(
        "F89",
        "Redis with Sentinels",
        "the master dies, and is started again later; leases last 10 s",
        "no worker is taken for dead more than once; duplicates as in F14",
        fail_over,
        setup={"redis": "sentinel", "load": {"settings": {"durability": "replicated:1"}}},
        duplicates=8 * WINDOW,
        cannot_hold=("I3", "I4", "I11"),
    ),
    way(
        id="F90",
        fault="all connections are killed; later one line, thrice, and the next one takes 2 s",
        expects="no worker is taken for dead; no duplicate",
        run=kill_often,
        seconds=45.0,
        is_test=True,
    ),
    way(
        id="F91",
        fault="one of three is stopped for 6 s, all connections are killed; then another dies",
        expects="no worker is taken for dead: the third has a new line; leases run out",
        run=cut_all_while_one_is_stopped,
        duplicates=WINDOW,
        seconds=36.0,
    ),
    way(
        id="F92",
        fault="a worker is stopped for 4 s, its connections are killed meanwhile; then once more",
        expects="it is taken for dead once, and not again; what was in flight may come twice",
        run=cut_one_that_is_stopped,
        duplicates=2 * WINDOW,
        seconds=50.0,
    ),
    worker(
        id="F93",
        fault="one of three is stopped for 5 s, less than its lease",
        expects="no worker is taken for dead; no duplicate",
        run=stop_one,
    ),
    worker(
        id="F93b",
        fault="one of three is stopped for 14 s, longer than its lease",
        expects="no worker is taken for dead; what was in flight may come twice",
        run=stop_one_for_long,
        duplicates=WINDOW,
        seconds=36.0,
    ),
    worker(
        id="F94",
        fault="the event loop of one of three is busy for 5 s; leases last 10 s",
        expects="no worker is taken for dead; no duplicate",
        run=busy_for_half_a_lease,
        setup={"workers": 2},
    ),
    way(
        id="F95",
        fault="the proxy of one worker refuses for 3 s, then swallows everything for 3 s",
        expects="it is taken for dead once at most; what was in flight may come twice",
        run=restart_the_proxy_of_one,
        duplicates=2 * WINDOW,
        seconds=40.0,
    ),
]

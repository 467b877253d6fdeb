"""A cell of faults drawn at random, one or two at a time, as long as the load lasts."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.chaos.cell import Cell, Setup
from tests.chaos.site import WINDOW, Site

SECONDS = 40.0
PAUSE_S = 2.0
SILENCES = ("blackhole", "blackhole_up", "blackhole_down")


def kill_a_worker(site: Site) -> None:
    site.kill_worker(random.choice(site.bridge.workers))


def stop_a_worker(site: Site) -> None:
    with site.stopped(random.choice(site.bridge.workers)):
        site.wait(random.uniform(0.5, 2 * site.lease_s))


def kill_redis(site: Site) -> None:
    with site.fault():
        site.redis.kill()
        site.redis.start()


def pause_redis(site: Site) -> None:
    with site.fault():
        site.redis.pause()
        site.wait(random.uniform(0.5, 3))
        site.redis.resume()


def cut_redis(site: Site) -> None:
    with site.fault():
        site.proxies.reset(site.redis_proxy)


def silence_redis(site: Site) -> None:
    with site.fault():
        site.silence(site.redis_proxy, random.uniform(0.3, 2), random.choice(SILENCES))


def silence_the_broker(site: Site) -> None:
    with site.fault(after_s=3):
        site.silence(site.broker_proxy, random.uniform(0.3, 2), random.choice(SILENCES))


def flush_scripts(site: Site) -> None:
    with site.fault():
        site.direct.script_flush()


FAULTS: list[Callable[[Site], None]] = [
    kill_a_worker, stop_a_worker, kill_redis, pause_redis, cut_redis, silence_redis,
    silence_the_broker, flush_scripts,
]  # fmt: skip


def anything(site: Site) -> None:
    done = []
    while site.is_loading:
        for fault in random.sample(FAULTS, 2):
            fault(site)
            done.append(fault.__name__)
        site.wait(PAUSE_S)
    site.notes.append(", ".join(done))


CELLS = [
    Cell(
        id="F64",
        component="all",
        fault="two of eight faults, drawn at random, every few seconds, for 40 s or longer",
        expects="nothing is lost; each fault repeats at most what was in flight",
        run=anything,
        setup=Setup(redis="own", through=("redis", "broker"), workers=3),
        seconds=SECONDS,
        duplicates=100 * WINDOW,
        back_off_ms=10_000,
    )
]

"""Cells whose clients reach RabbitMQ through fronts, and declare a delayed exchange themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import methodcaller as order
from pathlib import Path
from typing import Any

import pika

from tests.chaos.cell import Cell, Setup
from tests.chaos.cells_brokers import Order
from tests.chaos.checker import read_history
from tests.chaos.site import WINDOW, Site
from tests.rigs.bridge import ROOT
from tests.rigs.fronts import FrontProcess
from tests.rigs.waiting import DeadlineExceeded, until

LATE_S = 90.0  # what may still come after the load, on a busy machine


class FrontSite:
    """Fronts before a site's broker, a producer and a consumer of a delayed exchange."""

    def __init__(self, site: Site, count: int, *options: str) -> None:
        self.site, self.exchange = site, f"{site.namespace}-delayed"
        self._file = site.folder / "front-load.jsonl"
        urls = {**site.bridge.brokers, **site.bridge.workers_brokers}
        self.fronts = [
            FrontProcess(
                site.workers_redis, urls, site.namespace, "--broker", "rabbitmq", *options,
                environment=site.bridge.environment, FRONT__DRAIN_TIMEOUT_S="1",
            )
            for _ in range(count)
        ]  # fmt: skip
        for front in self.fronts:
            site.enter(front)
        self.urls = [front.url for front in self.fronts]

    def start_load(self) -> None:
        """Start both, and wait for the first confirms."""
        self.site.bridge.delayed_exchange(self.urls, self.exchange)
        command = [sys.executable, "-m", "tests.chaos.front_load", ",".join(self.urls)]
        command += [self.exchange, str(self._file)]
        with (self.site.folder / "front-load.txt").open("ab") as log:
            self._producer = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ}
            )
        self._until_s = time.monotonic() + self.site.seconds
        self.site.enter(self._producer)
        until(lambda: len(self.confirmed()) > 20, "confirms")

    @property
    def is_loading(self) -> bool:
        """Whether faults are to go on."""
        return time.monotonic() < self._until_s

    def confirmed(self) -> set[str]:
        return {each["id"] for each in self._events() if each["phase"] == "ok"}

    def _events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in read_history(self._file)]

    def came(self, since_us: int, to_us: int) -> tuple[int, int]:
        """How many messages with a delay, and without one, were received in this time."""
        delays = {e["id"]: e["delay"] for e in self._events() if e["phase"] == "invoke"}
        came = [d.id for d in self.site.bridge.deliveries() if since_us <= d.at_us < to_us]
        undelayed = sum(1 for id in came if delays.get(id) == 0)
        return sum(1 for id in came if id in delays) - undelayed, undelayed

    def finish(self) -> None:
        """Wait until all that was confirmed has come; what has not, the checker names."""
        Path(f"{self._file}.end").touch()
        until(lambda: self._producer.poll() is not None, "the producer ends", deadline_s=LATE_S)

        def all_came() -> bool:
            received = {each.id for each in self.site.bridge.deliveries()}
            return self.confirmed() <= received | self.site.bridge.dead()

        try:
            until(all_came, deadline_s=LATE_S, interval_s=0.3)
        except DeadlineExceeded:
            self.site.notes.append("not all that was confirmed through the front has come")
        for number, front in enumerate(self.fronts):
            (self.site.folder / f"front-{number}.log").write_text(front.log.read_text())


Fault = Callable[[Site, FrontSite], None]


def with_fronts(fault: Fault, *options: str, count: int = 1, apart: bool = False) -> Any:
    """Do this to a site with fronts. apart: ingest is a process of its own, which lives."""

    def run(site: Site) -> None:
        given = [*options, "--no-ingest"] if apart else options
        fronts = FrontSite(site, count, *given)
        if apart:
            site.bridge.start("ingest", "rabbitmq", "--front")
        fronts.start_load()
        fault(site, fronts)
        fronts.finish()

    return run


def kill_each(seconds: float, site: Site, fronts: FrontSite) -> None:
    """A front is killed (SIGKILL) with all its processes, and started again at once."""
    while fronts.is_loading:
        for front in fronts.fronts:
            with site.fault(after_s=site.lease_s + 1):
                front.kill()
                front.start()
            site.wait(seconds)


def upgrade_in_turns(site: Site, fronts: FrontSite) -> None:
    while fronts.is_loading:
        for front in fronts.fronts:
            with site.fault(after_s=1):
                front.restart()
            site.wait(1)


def redis_is_away(site: Site, fronts: FrontSite) -> None:
    """Undelayed messages come, also through a front that was started without Redis."""

    def undelayed_come() -> int:
        began_us = now_us()
        until(lambda: fronts.came(began_us, now_us())[1] > 40, "undelayed messages come")
        return fronts.came(began_us, now_us())[0]

    site.wait(1)
    with site.fault(after_s=site.lease_s + 5):
        site.redis.pause()
        undelayed_come()
        fronts.fronts[0].restart()
        delayed = undelayed_come()
        site.redis.resume()
    site.notes.append(f"without Redis came {delayed} delayed messages, too")


def now_us() -> int:
    return time.time_ns() // 1000


def off_and_on(off: Order, on: Order, seconds: float, after_s: float = 10) -> Fault:
    """The broker gets an order, and after this time the other one."""

    def fault(site: Site, fronts: FrontSite) -> None:
        site.wait(2)
        with site.fault(after_s=after_s):
            off(site.broker)
            site.wait(seconds)
            on(site.broker)

    return fault


def the_broker_is_slow(site: Site, fronts: FrontSite) -> None:
    """Every answer and every request takes 0.5 s, then it takes 20 kB a second."""
    with site.fault(after_s=10):
        site.broker_proxy.delay_s = 0.5
        site.wait(5)
        site.broker_proxy.delay_s = 0
        site.broker_proxy.bytes_per_s = 20_000
        site.wait(5)
        site.broker_proxy.bytes_per_s = 0


def declare_at_once(site: Site, fronts: FrontSite) -> None:
    """At both fronts four clients each declare the same twelve exchanges, while one is killed."""
    names = [f"{site.namespace}-{number}" for number in range(12)]
    errors: list[str] = []
    threads = [
        threading.Thread(target=declare_all, args=(fronts.urls[n % 2], names, errors))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    with site.fault(after_s=site.lease_s + 3):
        fronts.fronts[1].kill()
        fronts.fronts[1].start()
    for thread in threads:
        thread.join()
    site.expect("I14", f"all are declared: {errors[:3]}", not errors)
    declare_all(fronts.urls[0], names, errors)
    site.expect("I14", f"and equal: {errors[:3]}", not errors)


def declare_all(url: str, names: list[str], errors: list[str]) -> None:
    """Declare, bind, publish; again from the start when the connection is lost."""

    def once() -> bool:
        try:
            with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                for name in names:
                    channel = connection.channel()
                    channel.exchange_declare(
                        name, "x-delayed-message", durable=True,
                        arguments={"x-delayed-type": "topic"},
                    )  # fmt: skip
                    queue = channel.queue_declare("", exclusive=True).method.queue
                    channel.queue_bind(queue, name, "#")
                    channel.confirm_delivery()
                    channel.basic_publish(name, "k", b"", mandatory=True)
                    assert channel.basic_get(queue)[0] is not None
        except pika.exceptions.ChannelClosed as error:
            errors.append(f"{name}: {error!r}")
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    until(once, "all are declared")


def front(id: str, fault: str, expects: str, run: Any, **more: Any) -> Cell:
    setup = Setup(**{"load": {"rate": 20.0}, **more.pop("setup", {})})
    allowed = {"duplicates": 2 * WINDOW, "back_off_ms": 15_000, **more}
    about = {"id": id, "component": "front", "fault": fault, "expects": expects, "run": run}
    return Cell(setup=setup, **about, **allowed)


NOTHING = "what was confirmed through the front comes, never early"
OWN = {"broker": "own-rabbitmq"}
CELLS = [
    front(
        "F76",
        "killed (SIGKILL) every second, and replaced; clients reconnect",
        NOTHING,
        with_fronts(partial(kill_each, 1.0), apart=True),
        is_test=True,
    ),
    front(
        "F76b",
        "two fronts with their ingest are killed (SIGKILL) in turn, and replaced",
        f"{NOTHING}; what ingest had just stored may come twice",
        with_fronts(partial(kill_each, 2.0), count=2),
    ),
    front(
        "F77",
        "the broker is killed (SIGKILL) and started again",
        NOTHING,
        with_fronts(off_and_on(order("kill"), order("start"), 2)),
        setup=OWN,
    ),
    front(
        "F78",
        "Redis does not answer for some seconds, in which the front is started again",
        f"{NOTHING}; undelayed messages flow meanwhile",
        with_fronts(redis_is_away),
        is_test=True,
        setup={"redis": "own"},
    ),
    front(
        "F79",
        "each way to the broker takes 0.5 s more, for 5 s; then it takes 20 kB a second",
        NOTHING,
        with_fronts(the_broker_is_slow),
        setup={"through": ("broker",)},
    ),
    front(
        "F80",
        "memory alarm of the broker for 8 s",
        NOTHING,
        with_fronts(
            off_and_on(
                order("ctl", "set_vm_memory_high_watermark", "0.00000001"),
                order("ctl", "set_vm_memory_high_watermark", "0.6"),
                8,
            )
        ),
        setup=OWN,
    ),
    front(
        "F81",
        "eight clients of two fronts declare the same twelve exchanges; one front is killed",
        f"each exchange is made once, and equal for all; {NOTHING}",
        with_fronts(declare_at_once, count=2),
    ),
    front(
        "F82",
        "two fronts are stopped (SIGTERM) and started again in turn",
        f"clients get 320 and reconnect; {NOTHING}",
        with_fronts(upgrade_in_turns, count=2),
        is_test=True,
    ),
]

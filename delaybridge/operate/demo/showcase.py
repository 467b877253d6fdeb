"""`delaybridge demo --serve`: a load without end, for the console to show it.

One worker is killed every minute and another takes its place, so that a takeover can be watched at
any time. What was due by the end is accounted for, as in the run with a verdict.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import NoReturn

from delaybridge.client import Client
from delaybridge.errors import ConfigError
from delaybridge.message import Answer, Message
from delaybridge.operate.demo.brokers import Target
from delaybridge.operate.demo.processes import Failed, Process, begun_again, check_alive, now_ms
from delaybridge.operate.demo.screen import Screen
from delaybridge.operate.notices.announcements import WorkerInfo
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.verbs import Steps

PORT = 8645
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_TICK_S, _READY_S = 0.1, 30.0
_PER_S, _AHEAD_S = 60, 40.0
KINDS = {"orders": 6, "mails": 3, "invoices": 1}
"""Name of a kind of message -> how often it is drawn; each has a queue or topic of its own."""
_AT_FIRST = 3000
_SPANS_S = (600, 7200, 86_400, 30 * 86_400)  # how far ahead the first messages are due
_QUIET_MS, _END_MS = 500, 5000
_ID = "demo."


def free_port(port: int | None) -> int:
    """This port; if none is asked for the usual one, or any that is free. ConfigError."""
    for wanted in (port,) if port is not None else (PORT, 0):
        try:
            with socket.create_server(("127.0.0.1", wanted)) as sock:
                return int(sock.getsockname()[1])
        except OSError:
            continue
    raise ConfigError(f"--port: {port} on 127.0.0.1 is in use; leave it out for any free one")


def open_in_browser(url: str) -> None:
    """Show it to whoever watches this terminal, if windows can be opened here.

    Never in a browser that runs inside a terminal: it would take this one. Does not wait for it:
    one that $BROWSER names may run in the foreground.
    """
    has_windows = sys.platform in ("darwin", "win32") or any(map(os.environ.get, _DISPLAYS))
    if sys.stdout.isatty() and has_windows:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def until_serving(serving: Process) -> None:
    """Wait until the console answers. Failed: it does not."""
    deadline_s = time.monotonic() + _READY_S
    while not any(record.get("event") == "serving" for record in serving.news()):
        check_alive(serving)
        if time.monotonic() > deadline_s:
            raise Failed(f"the console was not ready within {_READY_S:.0f} s")
        time.sleep(_TICK_S)


class Showcase:
    """Keeps the load up until it is ended, and accounts for what was scheduled and arrived.

    start: starts a worker of this name; the caller ends it. kills: whether a worker is killed every
    minute.
    """

    def __init__(
        self, screen: Screen, client: Client, target: Target, start: Callable[[str], Process]
    ) -> None:
        self._screen, self._client, self._target, self._start = screen, client, target, start
        self._chance, self._numbers, self._names = random.Random(), count(1), count(1)
        self._waiting: dict[str, int] = {}  # id -> when it is due, in ms
        self._arrived = self._early = self._twice = 0
        self._workers: list[Process] = []
        self.kills = True

    def run(self, consumer: Process, serving: Process, check: Callable[[], None]) -> NoReturn:
        """Until `check` raises, or something else does. Failed: a process died."""
        self._workers = [self._new_worker(), self._new_worker()]
        self._prepare()
        self._screen.began_s = time.monotonic()
        agenda: list[tuple[float, float, Callable[[], None]]] = [  # first, then how often, what
            (0.0, 1.0, lambda: self._schedule(_PER_S, _AHEAD_S)),
            (3.0, 20.0, self._poison),
            (10.0, 10.0, self._show),
            (15.0, 60.0, self._kill),  # so that a takeover can be watched
            (25.0, 60.0, self._replace),
        ]
        del agenda[5 if self.kills else 3 :]
        next_s = [first_s for first_s, _, _ in agenda]
        while True:
            check()
            time.sleep(_TICK_S)
            self._hear(consumer)
            for worker in begun_again(self._workers, self._start):
                self._screen.event(f"worker {worker.name} began again: Redis was silent")
            check_alive(consumer, serving, *self._workers)
            at_s = self._screen.elapsed_s
            for at, (_, every_s, act) in enumerate(agenda):
                if at_s >= next_s[at]:
                    next_s[at] = max(next_s[at] + every_s, at_s)
                    act()

    def _kill(self) -> None:
        victim = self._workers.pop(0)
        known = [each for each in self._client.stats().workers if each.name == victim.name]
        victim.kill()
        victim.wait()
        for worker in known:
            self._client.run(partial(_own_up, worker=worker))
        self._screen.event(f"worker {victim.name} killed (kill -9): see its buckets move")

    def _replace(self) -> None:
        self._workers.append(self._new_worker())
        self._screen.event(f"worker {self._workers[-1].name} started: it gets its share")

    def _new_worker(self) -> Process:
        return self._start(f"w{next(self._names)}")

    def _prepare(self) -> None:
        """Messages further out, so that the horizon has a shape; and a recurring one."""
        for span_s in _SPANS_S:
            self._schedule(_AT_FIRST // len(_SPANS_S), span_s, least_s=30.0)
        self._client.recurring.add("heartbeat", self._target.destination, "beat", every="30s")

    def _poison(self) -> None:
        id = f"poison.{next(self._numbers)}"
        self._client.schedule_many([self._target.poison(id=id, delay_s=1)])

    def _schedule(self, messages: int, ahead_s: float, least_s: float = 1.0) -> None:
        drawn = self._chance.choices(self._target.destinations, [*KINDS.values()], k=messages)
        made = [
            Message(
                to,
                f'{{"number": {number}}}',
                id=f"{_ID}{number}",
                delay=round(self._chance.uniform(least_s, ahead_s), 3),
                headers={"shop": self._chance.choice(["Berlin", "Lagos", "Lima"])},
            )
            for to, number in zip(drawn, self._numbers, strict=False)
        ]
        for receipt in self._client.schedule_many(made):
            if receipt.answer is not Answer.CREATED:
                raise Failed(f"{receipt.id} was not accepted: {receipt!r}")
            self._waiting[receipt.id] = receipt.due_ms

    def _hear(self, consumer: Process) -> None:
        """Account for what the consumer received; runs of the recurring definition do not count."""
        for record in consumer.news():
            if not str(record.get("id", "")).startswith(_ID):
                continue
            due_ms = self._waiting.pop(record["id"], None)
            if due_ms is None:
                self._twice += 1
            else:
                self._arrived += 1
                self._early += record["at_us"] < due_ms * 1000

    def _late(self, by_ms: int) -> int:
        """How many were due by this time and have not arrived."""
        return sum(1 for due_ms in self._waiting.values() if due_ms < by_ms)

    def _show(self) -> None:
        counts = f"{self._arrived:,} arrived, {len(self._waiting):,} waiting, {self._early} early"
        late = self._late(now_ms() - _END_MS)
        self._screen.line(f" {self._screen.clock}  {counts}, {late} late")

    def verdict(self, consumer: Process) -> list[str]:
        """Wait a little for what was due already; the faults, if any."""
        by_ms = now_ms() - _QUIET_MS
        until_s = time.monotonic() + _END_MS / 1000
        while self._late(by_ms) and time.monotonic() < until_s:
            time.sleep(_TICK_S)
            self._hear(consumer)
        lost = self._late(by_ms)
        self._screen.line(
            f"{self._arrived:,} messages arrived, {self._twice} of them twice; "
            f"{len(self._waiting) - lost:,} were not due yet"
        )
        early = [f"{self._early} messages arrived early"] if self._early else []
        return early + ([f"{lost} messages are missing"] if lost else [])


def _own_up(calls: Calls, worker: WorkerInfo) -> Steps[None]:
    """Say in its announcement who killed it: it would look like an incident."""
    about = {name: getattr(worker, name) for name in ("host", "pid", "version", "started_ms")}
    info = json.dumps({**about, "killed_by": "demo"}).encode()
    yield [registry.announce(calls.namespace, worker.name, worker.instance, 1, info)]

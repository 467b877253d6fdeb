"""`delaybridge demo --serve`: a load without end, for the console to show it.

One worker is killed every minute and another takes its place, so that a takeover can be watched at
any time. What was due by the end is accounted for, as in the run with a verdict.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import NoReturn

from delaybridge.client import Client
from delaybridge.errors import ConfigError
from delaybridge.message import Answer, Message
from delaybridge.operate.demo.brokers import Target
from delaybridge.operate.demo.observer import Failed, now_ms
from delaybridge.operate.demo.result import Received
from delaybridge.operate.demo.screen import Screen
from delaybridge.operate.demo.servers import Process, begun_again, parsed

PORT = 8645
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_TICK_S, _ROW_S, _READY_S = 0.1, 10.0, 30.0
_FIRST_KILL_S, _KILL_EVERY_S, _NEW_WORKER_S = 15.0, 60.0, 10.0
_PER_S, _AHEAD_S = 60, 40.0
KINDS = {"orders": 6, "mails": 3, "invoices": 1}
"""What is scheduled -> how often; each has a queue or topic of its own."""
_AT_FIRST = 3000
_SPANS_S = (600, 7200, 86_400, 30 * 86_400)  # how far ahead what is there at first is due
_POISON_EVERY_S = 20.0
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
    while not any((parsed(line) or {}).get("event") == "serving" for line in serving.news()):
        _check_alive(serving)
        if time.monotonic() > deadline_s:
            raise Failed(f"the console was not ready within {_READY_S:.0f} s")
        time.sleep(_TICK_S)


@dataclass
class Account:
    """What was scheduled and arrived. waiting: id -> when it is due, in ms."""

    waiting: dict[str, int] = field(default_factory=dict)
    arrived: int = 0
    early: int = 0
    twice: int = 0

    def hear(self, one: Received) -> None:
        """A message arrived."""
        if not one.id.startswith(_ID):
            return  # of the recurring definition
        due_ms = self.waiting.pop(one.id, None)
        if due_ms is None:
            self.twice += 1
            return
        self.arrived += 1
        self.early += one.at_us < due_ms * 1000

    def late(self, by_ms: int) -> int:
        """How many were due by this time and have not arrived."""
        return sum(1 for due_ms in self.waiting.values() if due_ms < by_ms)


class Showcase:
    """Keeps the load up until it is ended. kills: whether a worker is killed every minute."""

    def __init__(
        self,
        screen: Screen,
        client: Client,
        target: Target,
        stack: ExitStack,
        start: Callable[[str], Process],
    ) -> None:
        """start: starts a worker of this name. stack: ends what is started."""
        self._screen, self._client, self._target = screen, client, target
        self._stack, self._start = stack, start
        self._account, self._chance = Account(), random.Random()
        self._numbers, self._names = count(1), count(1)
        self._began_s = time.monotonic()
        self.kills = True

    def run(self, consumer: Process, serving: Process, check: Callable[[], None]) -> NoReturn:
        """Until `check` raises, or something else does. Failed: a process died."""
        workers = [self._new_worker(), self._new_worker()]
        self._prepare()
        kill_s, new_s, poison_s, row_s, load_s = _FIRST_KILL_S, 1e12, 3.0, _ROW_S, 0.0
        while True:
            check()
            time.sleep(_TICK_S)
            at_s = time.monotonic() - self._began_s
            self._hear(consumer)
            for worker in begun_again(workers, self._begun):
                self._event(f"worker {worker.name} began again: Redis was silent")
            _check_alive(consumer, serving, *workers)
            if at_s >= load_s:
                load_s = at_s + 1.0
                self._schedule(_PER_S, _AHEAD_S)
                self._show(at_s, is_row=at_s >= row_s)
                row_s += _ROW_S * (at_s >= row_s)
            if at_s >= poison_s:
                poison_s += _POISON_EVERY_S
                id = f"poison.{next(self._numbers)}"
                self._client.schedule_many([self._target.poison(id=id, delay_s=1)])
            if self.kills and at_s >= kill_s:
                kill_s, new_s = kill_s + _KILL_EVERY_S, at_s + _NEW_WORKER_S
                victim = workers.pop(0)
                victim.kill()
                self._event(f"worker {victim.name} killed (kill -9): see its buckets move")
            if at_s >= new_s:
                new_s = 1e12
                workers.append(self._new_worker())
                self._event(f"worker {workers[-1].name} started: it gets its share")

    def _new_worker(self) -> Process:
        return self._begun(f"w{next(self._names)}")

    def _begun(self, name: str) -> Process:
        return self._stack.enter_context(self._start(name))

    def _prepare(self) -> None:
        """Messages further out, so that the horizon has a shape; and a recurring one."""
        for span_s in _SPANS_S:
            self._schedule(_AT_FIRST // len(_SPANS_S), span_s, least_s=30.0)
        self._client.recurring.add("heartbeat", self._target.destination, "beat", every="30s")

    def _schedule(self, messages: int, ahead_s: float, least_s: float = 1.0) -> None:
        made = [
            Message(
                to,
                f'{{"number": {number}}}',
                id=f"{_ID}{number}",
                delay=round(self._chance.uniform(least_s, ahead_s), 3),
                headers={"shop": self._chance.choice(["Berlin", "Lagos", "Lima"])},
            )
            for to, number in zip(self._drawn(messages), self._numbers, strict=False)
        ]
        for receipt in self._client.schedule_many(made):
            if receipt.answer is not Answer.CREATED:
                raise Failed(f"{receipt.id} was not accepted: {receipt!r}")
            self._account.waiting[receipt.id] = receipt.due_ms

    def _drawn(self, messages: int) -> list[str]:
        """A destination for each of them."""
        return self._chance.choices(self._target.destinations, [*KINDS.values()], k=messages)

    def _hear(self, consumer: Process) -> None:
        for fields in filter(None, map(parsed, consumer.news())):
            if "id" in fields:
                self._account.hear(Received(**fields))

    def _show(self, at_s: float, *, is_row: bool) -> None:
        a = self._account
        late = a.late(now_ms() - _END_MS)
        row = f"{a.arrived:,} arrived, {len(a.waiting):,} waiting, {a.early} early, {late} late"
        if self._screen.is_animated:
            self._screen.show_live(f" {_clock(at_s)}  {row}")
        elif is_row:
            self._screen.line(f" {_clock(at_s)}  {row}")

    def _event(self, text: str) -> None:
        self._screen.event(_clock(time.monotonic() - self._began_s), text)

    def verdict(self, consumer: Process) -> list[str]:
        """Wait a little for what was due already; what is wrong then, empty if nothing is."""
        account, by_ms = self._account, now_ms() - _QUIET_MS
        until_s = time.monotonic() + _END_MS / 1000
        while account.late(by_ms) and time.monotonic() < until_s:
            time.sleep(_TICK_S)
            self._hear(consumer)
        lost = account.late(by_ms)
        self._screen.line(
            f"{account.arrived:,} messages arrived, {account.twice} of them twice; "
            f"{len(account.waiting) - lost:,} were not due yet"
        )
        return [
            text
            for text, messages in (
                (f"{account.early} messages arrived early", account.early),
                (f"{lost} messages are missing", lost),
            )
            if messages
        ]


def _check_alive(*processes: Process) -> None:
    for process in processes:
        if process.poll() is not None:
            raise Failed(f"{process.name} ended by itself: {process.last_words()}")


def _clock(at_s: float) -> str:
    return f"{int(at_s) // 60:02}:{int(at_s) % 60:02}"

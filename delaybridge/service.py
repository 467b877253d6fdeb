"""A process that works until it is told to stop: who it is, its signals, its tasks."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from delaybridge import __version__

_log = logging.getLogger("delaybridge")
_ABORTED = 130
_GARBAGE = 50_000


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is. instance: random, what tells it from any other that bore its name."""

    name: str
    instance: str
    info: bytes

    @classmethod
    def of_this_process(cls, name: str | None) -> Identity:
        """Named host:pid unless a name is given."""
        host, pid = socket.gethostname(), os.getpid()
        started_ms = time.time_ns() // 1_000_000
        about = {"host": host, "pid": pid, "version": __version__, "started_ms": started_ms}
        return cls(name or f"{host}:{pid}", secrets.token_hex(8), json.dumps(about).encode())


class Service:
    """What `run` runs. left_behind: what an end without draining means, for the log."""

    left_behind = ""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()

    async def work(self) -> None:
        """Work until stopped, and finish what is under way."""
        raise NotImplementedError

    def stop(self) -> None:
        """Drain and end. A second time: end at once, without draining."""
        if self.stopping.is_set():
            _log.warning("aborted: not drained; %s", self.left_behind)
            os._exit(_ABORTED)
        _log.info("draining: again to stop at once")
        self.stopping.set()

    async def pause(self, pause_s: float) -> None:
        """Wait so long, or until stopped."""
        try:
            async with asyncio.timeout(pause_s):
                await self.stopping.wait()
        except TimeoutError:
            pass


def run(service: Service, *, ignore: Iterable[signal.Signals] = ()) -> None:
    """Run it until SIGTERM or Ctrl-C; SIGUSR1 prints what each of its tasks waits for."""

    # What was imported never becomes garbage, and a batch has tens of thousands of objects that
    # all go with it: looking through them costs more than it brings.
    gc.freeze()
    gc.set_threshold(_GARBAGE, 10, 10)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, (lambda: None) if number in ignore else service.stop)
        loop.add_signal_handler(signal.SIGUSR1, _dump_tasks, loop)
        await service.work()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


async def until(done: asyncio.Task[Any], work: Iterable[asyncio.Task[Any]]) -> None:
    """Wait for `done`; raise what ends any of the work before."""
    tasks = [done, *work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        done.cancel()


async def end(work: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended.

    Once is not enough: Python 3.11's `wait_for`, which redis-py sends with, drops a cancellation
    that arrives in the moment it completes (python/cpython#81839).
    """
    pending = set(work)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=0.1)
        for task in ended:
            if not task.cancelled():
                task.exception()  # raised already if it was the one that mattered


def _dump_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """For whoever asks what a worker waits for: `kill -USR1`, and look at its standard error."""
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=sys.stderr)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

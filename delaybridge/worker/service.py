"""What every long-running process shares: its identity, its signals and how its tasks end."""

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
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from delaybridge import __version__, tracing
from delaybridge.histogram import Histogram
from delaybridge.store.namespace.announcements import FOLLOWS
from delaybridge.worker.eventlog import Listeners, say
from delaybridge.worker.parts import Part

_log = logging.getLogger("delaybridge")
_ABORTED = 130
_GARBAGE_THRESHOLD = 50_000  # objects
_REPORT_S = 1.0


class ProcessReport(NamedTuple):
    """What a process says of itself; it is pickled.

    totals, histograms: what it counted, by metric and labels. buckets: those that it holds.
    brokers: of a worker, name -> why it is unavailable, None if it is available; unconfirmed:
    name -> messages that it has. held: (destination, cause) -> messages that wait as an operator
    wants it; parked_ms: the due time of the earliest message that is parked for another reason.
    sources: of an ingest process, name -> (state, lag, number of faults). scanned_s: when a worker
    last looked after its leases, on the monotonic clock of this host. ledger: what a worker
    announces of it; None: it has none. awaits: why it has not begun: it lacks the namespace's
    record. front: of a front, gauge -> its value; nodes: of the broker it stands before -> why the
    last connect failed, None if it did not. is_draining: it was told to stop.
    """

    totals: Mapping[tuple[str, ...], int] = {}
    histograms: Mapping[tuple[str, ...], Histogram] = {}
    buckets: Collection[int] = ()
    brokers: Mapping[str, str | None] = {}
    unconfirmed: Mapping[str, int] = {}
    held: Mapping[tuple[str, str], int] = {}
    parked_ms: float | None = None
    sources: Mapping[str, tuple[str, int | None, int]] = {}
    scanned_s: float | None = None
    ledger: Mapping[str, Any] | None = None
    awaits: str = ""
    front: Mapping[str, float] = {}
    nodes: Mapping[str, str | None] = {}
    is_draining: bool = False
    is_last: bool = False


OnReport = Callable[[ProcessReport], None]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is. instance: random; it differs from every earlier worker of that name."""

    name: str
    instance: str
    info: bytes

    @classmethod
    def of_this_process(cls, name: str | None) -> Identity:
        """Its name is host:pid unless one is given."""
        host, pid = socket.gethostname(), os.getpid()
        started_ms = time.time_ns() // 1_000_000
        about = {"host": host, "pid": pid, "version": __version__, "started_ms": started_ms}
        about[FOLLOWS] = True
        return cls(name or f"{host}:{pid}", secrets.token_hex(8), json.dumps(about).encode())


class Service:
    """The work of a process, with its parts. left_behind: what happens to undrained work.

    awaits: why it has not begun yet: the namespace cannot be opened; empty: it has.
    """

    left_behind = ""
    awaits = ""

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.stopping = asyncio.Event()
        self.emit = Listeners()
        self.parts = parts
        for part in parts:
            part.join(self.emit)

    async def work(self) -> None:
        """Work until `stopping` is set, then finish the work in progress."""
        raise NotImplementedError

    def stop(self) -> None:
        """Drain and end. Called a second time, end the process at once without draining."""
        if self.stopping.is_set():
            say(logging.WARNING, "aborted", hint=f"not drained; {self.left_behind}")
            os._exit(_ABORTED)
        say(logging.INFO, "draining", hint="send it again to stop at once")
        self.stopping.set()

    async def reload(self) -> None:
        """Apply the settings that have changed."""

    def report(self) -> ProcessReport:
        """What it says of itself, for metrics and health probes."""
        said: dict[str, Any] = {"is_draining": self.stopping.is_set(), "awaits": self.awaits}
        for part in self.parts:
            part.report(said)
        return ProcessReport(**said)

    async def pause(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds, or until stopped."""
        try:
            async with asyncio.timeout(pause_s):
                await self.stopping.wait()
        except TimeoutError:
            pass


class Background:
    """Tasks that run next to a service's work. failure: gets the first error of one of them."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it until it ends or its task is cancelled."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def failed(self) -> None:
        """Wait for the first error and raise it."""
        await asyncio.shield(self.failure)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)


def run(
    service: Service, *, ignore: Iterable[signal.Signals] = (), on_report: OnReport | None = None
) -> None:
    """Run until SIGTERM or Ctrl-C. SIGHUP reloads the settings, SIGUSR1 prints all tasks.

    ignore: signals that do nothing here; a child ignores SIGINT. on_report: called with the
    service's report about once a second, and with the last one at the end.
    """

    if (why := tracing.configure()) is not None:
        say(logging.WARNING, "tracing_failed", reason=why, hint="messages are delivered untraced")
    collect_seldom()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, (lambda: None) if number in ignore else service.stop)
        loop.add_signal_handler(signal.SIGUSR1, _dump_tasks, loop)
        hung_up = asyncio.Event()
        # A child ignores Ctrl-C, and a closed terminal likewise: its parent ends it.
        closed = terminal_closed if signal.SIGINT not in ignore else lambda: False
        loop.add_signal_handler(
            signal.SIGHUP, lambda: service.stop() if closed() else hung_up.set()
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])  # a parent blocks it
        tasks = [asyncio.create_task(_reload(service, hung_up))]
        tasks.append(asyncio.create_task(_report(service, on_report)))
        try:
            await service.work()
        finally:
            for task in tasks:
                task.cancel()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


_has_terminal = os.isatty(0)


def terminal_closed() -> bool:
    """Whether the terminal of this process was closed: then SIGHUP means stop, not reload."""
    return _has_terminal and not os.isatty(0)


async def _reload(service: Service, hung_up: asyncio.Event) -> None:
    while True:
        await hung_up.wait()
        hung_up.clear()
        try:
            await service.reload()
        except Exception as exc:
            say(logging.ERROR, "reload_failed", reason=f"{type(exc).__name__}: {exc}")
            _log.debug("the reload failed", exc_info=exc)


async def _report(service: Service, on_report: OnReport | None) -> None:
    """Report until cancelled, and a last time then. A loop that stands still is silent."""
    if on_report is None:
        return
    try:
        while True:
            on_report(service.report())
            await asyncio.sleep(_REPORT_S)
    finally:
        on_report(service.report()._replace(is_last=True))


async def until(done: asyncio.Task[Any], work: Iterable[asyncio.Task[Any]]) -> None:
    """Wait for `done`; raise the error of a task of `work` that ends before."""
    tasks = [done, *work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        done.cancel()


async def end(work: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; their errors are dropped.

    Once is not enough: redis-py sends with Python 3.11's `wait_for`, which drops a cancellation
    that arrives in the moment it completes (python/cpython#81839).
    """
    pending = set(work)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=0.1)
        for task in ended:
            if not task.cancelled():
                task.exception()  # `until` has raised the first; asyncio would log the others


def _dump_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Print on standard error where each task waits."""
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=sys.stderr)


def collect_seldom() -> None:
    """In a process of our own: do without most garbage collections."""
    # Imported modules never become garbage. A batch has tens of thousands of objects, which their
    # reference counts free together: frequent collections would cost time and find little.
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD, 10, 10)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory

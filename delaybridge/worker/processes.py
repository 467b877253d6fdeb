"""Several processes on one machine: a parent that starts them, and restarts those that die.

The parent touches no message. It knows its children's lease tokens, so that a dead child's buckets
are free at once instead of after a lease.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from delaybridge.errors import DelayBridgeError, StoreError, StoreUnavailable
from delaybridge.ingest.routes import Route
from delaybridge.scan.lease import NameTaken
from delaybridge.settings.settings import Settings
from delaybridge.store import registry
from delaybridge.store.store import Store
from delaybridge.store.verbs import Bucket
from delaybridge.worker.eventlog import say
from delaybridge.worker.ingester import routes_of, run_ingest
from delaybridge.worker.reload import reread
from delaybridge.worker.service import Identity, terminal_closed
from delaybridge.worker.worker import run_one

_log = logging.getLogger("delaybridge")
_spawn = multiprocessing.get_context("spawn")
_STEADY_S = 5.0  # a child that lived longer is replaced at once
_PAUSES_S = (0.0, 0.5, 2.0, 5.0, 10.0)
_PR_SET_PDEATHSIG = 1


def run(
    settings: Settings,
    *,
    processes: int = 1,
    name: str | None = None,
    burst: bool = False,
    routes: Sequence[Route] = (),
    exit_code: Callable[[BaseException], int],
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Scan in so many processes until SIGTERM or Ctrl-C; 0 once they have drained.

    routes: what one more process reads into the store meanwhile. exit_code: what an error of a
    child means, for the one that cannot be mended by another try. prepare: run first in each child
    (logging); picklable, as `exit_code` is.
    """
    if processes == 1 and not routes:
        run_one(settings, name=name, burst=burst)
        return 0
    return _Parent(settings, processes, name, routes, burst, exit_code, prepare).run()


class _Child:
    """One process and what it told us. heir: it replaces one that died. routes: it ingests."""

    def __init__(
        self,
        number: int,
        name: str | None,
        routes: Sequence[Route] = (),
        *,
        failures: int = 0,
        heir: bool = False,
    ) -> None:
        self.number, self.name, self.failures, self.heir = number, name, failures, heir
        self.routes = routes
        self.signals = 0  # how many of the parent's were passed on to it
        self.started_s = time.monotonic()
        self.identity: Identity | None = None
        self.tokens: dict[int, str] = {}
        self.error: int | None = None
        self.process: SpawnProcess
        self.pipe: Connection

    def start(self, *arguments: Any) -> None:
        """Start the process; its end of the pipe stays open only there."""
        self.pipe, theirs = _spawn.Pipe(duplex=False)
        self.process = _spawn.Process(
            target=_work,
            args=(theirs, self.name, self.routes, self.heir, *arguments),
            name=f"ingest-{self.number}" if self.routes else f"worker-{self.number}",
        )
        # One that comes before the child listens waits until it does, and does not end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        theirs.close()

    def hear(self) -> bool:
        """Take in what it said; False once it has ended."""
        try:
            while self.pipe.poll():
                self._heard(*self.pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    def _heard(self, what: str, *said: Any) -> None:
        if what == "identity":
            (self.identity,) = said
        elif what == "error":
            (self.error,) = said
        else:
            bucket, token = said
            if token is None:
                self.tokens.pop(bucket, None)
            else:
                self.tokens[bucket] = token


class _Parent:
    def __init__(self, settings: Settings, processes: int, name: str | None, *rest: Any) -> None:
        self._settings, self._processes, self._name = settings, processes, name
        self._routes, self._burst, self._exit_code, self._prepare = rest
        self._children: list[_Child] = []
        self._due: list[tuple[float, _Child]] = []  # replacements that wait for their time
        self._signals = 0
        self._hung_up = False
        self._code = 0

    def run(self) -> int:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, self._signalled)
        signal.signal(signal.SIGHUP, self._hang_up)
        for number in range(self._processes):
            self._start(_Child(number, self._child_name(number)))
        if self._routes:
            self._start(_Child(self._processes, self._child_name("ingest"), self._routes))
        while self._children or self._due:
            pipes = {child.pipe: child for child in self._children}
            pause_s = min((at_s - time.monotonic() for at_s, _ in self._due), default=None)
            for ready in wait([*pipes, read_end], None if pause_s is None else max(0.0, pause_s)):
                if ready == read_end:
                    os.read(read_end, 4096)
                elif not pipes[ready].hear():  # type: ignore[index]
                    self._ended(pipes[ready])  # type: ignore[index]
            self._reload_if_asked()
            self._start_due()
        return self._code

    def _child_name(self, suffix: int | str) -> str | None:
        return None if self._name is None else f"{self._name}-{suffix}"

    def _start(self, child: _Child) -> None:
        if self._signals:
            return
        child.start(self._settings, self._burst, self._exit_code, self._prepare, os.getpid())
        self._children.append(child)
        self._pass_on()  # a signal that came before it was on the list

    def _signalled(self, number: int, frame: object) -> None:
        """The first drains, the second ends at once."""
        self._signals += 1
        self._due.clear()
        self._pass_on()

    def _hang_up(self, number: int, frame: object) -> None:
        if terminal_closed():
            self._signalled(number, frame)
        self._hung_up = True  # seen in `run`: the settings are not read inside a handler

    def _reload_if_asked(self) -> None:
        """Have the children read their settings again, if what is written is accepted."""
        if not self._hung_up or self._signals:
            return
        self._hung_up = False
        taken = reread(self._settings, routes_of if self._routes else lambda settings: None)
        if taken is None:
            return
        self._settings = taken
        self._routes = routes_of(taken) if self._routes else self._routes
        for child in self._children:
            if child.process.pid is not None:
                os.kill(child.process.pid, signal.SIGHUP)

    def _pass_on(self) -> None:
        for child in list(self._children):
            if child.signals < self._signals:
                child.signals = self._signals
                child.process.terminate()

    def _ended(self, child: _Child) -> None:
        """A child is gone: free what it held; replace it, unless it ended as it should."""
        child.process.join()
        self._children.remove(child)
        code = child.process.exitcode or 0
        if code != 0 and child.error is None:
            self._release(child)
        if self._signals:
            self._code = self._code or child.error or 0
        if self._signals or code == 0:
            return
        if child.error is not None:
            self._code = child.error
            self._signalled(signal.SIGTERM, None)
            return
        lived_s = time.monotonic() - child.started_s
        failures = 0 if lived_s > _STEADY_S else child.failures + 1
        pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
        died = {"pid": child.process.pid, "code": code, "restart_in_s": pause_s}
        say(logging.ERROR, "worker_died", **died)
        routes = self._routes if child.routes else ()
        heir = _Child(child.number, child.name, routes, failures=failures, heir=True)
        self._due.append((time.monotonic() + pause_s, heir))

    def _start_due(self) -> None:
        now_s = time.monotonic()
        ripe = [child for at_s, child in self._due if at_s <= now_s]
        self._due = [(at_s, child) for at_s, child in self._due if at_s > now_s]
        for child in ripe:
            child.started_s = now_s
            self._start(child)

    def _release(self, child: _Child) -> None:
        """Give a dead child's leases back and take it off the list of the living."""
        who, namespace = child.identity, self._settings.namespace
        if who is None:
            return
        store = Store(self._settings.redis.url, timeout_s=self._settings.redis.timeout_s)
        try:
            # The namespace is not opened for this: a wiped one must not be born again here.
            store.run(
                [
                    registry.announce(
                        *(namespace, who.name, who.instance, 0), ingests=bool(child.routes)
                    ),
                    *(Bucket(namespace, b, "").release(t) for b, t in child.tokens.items()),
                ]
            )
        except StoreError as exc:
            say(logging.WARNING, "leases_not_released", reason=str(exc), hint="they run out")
        finally:
            store.close()


def _work(
    pipe: Connection,
    name: str | None,
    routes: Sequence[Route],
    heir: bool,
    settings: Settings,
    burst: bool,
    exit_code: Callable[[BaseException], int],
    prepare: Callable[[], None],
    parent: int,
) -> None:
    """The child's whole life. Ctrl-C reaches it too: only the parent decides what it means."""
    _end_with(parent)
    prepare()

    def tell(*said: object) -> None:
        try:
            pipe.send(said)
        except OSError:
            pass  # the parent is gone, and this process drains: nobody has to know

    common: dict[str, Any] = {
        "name": name,
        "ignore": [signal.SIGINT],
        "on_start": partial(tell, "identity"),
    }
    try:
        if routes:
            run_ingest(settings, routes=routes, **common)
        else:
            run_one(settings, burst=burst, on_token=partial(tell, "token"), **common)
    except (DelayBridgeError, NameTaken) as exc:
        _log.error("%s", exc, extra={"event": "worker_failed", "fields": {"reason": str(exc)}})
        code = exit_code(exc)
        if not (heir and isinstance(exc, StoreUnavailable)):  # which another try may mend
            tell("error", code)
        sys.exit(code)


def _end_with(parent: int) -> None:
    """Have this process drained when its parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

"""Several processes on one machine: a parent that starts them, and replaces those that die.

The parent handles no message. It knows its children's lease tokens, so that it can free a dead
child's buckets at once instead of when their leases run out.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait

from delaybridge.errors import StoreError
from delaybridge.operate.metrics.reports import ProcessReports
from delaybridge.operate.supervisor.child import Child, ChildSpec
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.following import renamed
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.redis.store import Store
from delaybridge.worker.eventlog import say
from delaybridge.worker.reload import reread
from delaybridge.worker.service import terminal_closed

_STEADY_S = 5.0  # a child that ran for longer is replaced at once
_PAUSES_S = (0.0, 0.5, 2.0, 5.0, 10.0)  # before a child is replaced, by its failures


@dataclass
class Supervisor:
    """Starts these and replaces those that die, until SIGTERM or Ctrl-C.

    check: raises ConfigError to refuse settings that were changed.
    """

    settings: Settings
    specs: Sequence[ChildSpec]
    reports: ProcessReports | None
    check: Callable[[Settings], object]
    _children: list[Child] = field(default_factory=list)
    _replacements: list[tuple[float, Child]] = field(default_factory=list)  # when to start each
    _signals = 0
    _reload_asked = False
    _code = 0

    def run(self) -> int:
        """Returns the exit code, 0 if they drained."""
        signals_pipe = self._handle_signals()
        for spec in self.specs:
            self._start(Child(spec))
        while self._children or self._replacements:
            self._wait(signals_pipe)
            self._reload_if_asked()
            self._start_replacements()
        return self._code

    def _handle_signals(self) -> int:
        """A descriptor that is readable after each signal, so that `_wait` returns."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._hang_up)
        return read_end

    def _wait(self, signals_pipe: int) -> None:
        """Until a child reports or ends, a signal arrives, or a replacement is to be started."""
        pauses = [start_s - time.monotonic() for start_s, _ in self._replacements]
        timeout_s = max(0.0, min(pauses)) if pauses else None
        pipes = {child.pipe: child for child in self._children}
        for ready in wait([*pipes, signals_pipe], timeout_s):
            if ready == signals_pipe:
                os.read(signals_pipe, 4096)
            elif not (child := pipes[ready]).read_reports():  # type: ignore[index]
                self._ended(child)

    def _start(self, child: Child) -> None:
        if self._signals:
            return
        if self.reports is not None:
            child.on_report = partial(self.reports.put, child.spec.process_name)
        child.start(self.settings)
        self._children.append(child)
        self._pass_on()  # a signal that arrived before the child was on the list

    def _stop(self, number: int, frame: object) -> None:
        """The first SIGTERM or Ctrl-C drains the children, the second ends them at once."""
        self._signals += 1
        self._replacements.clear()
        self._pass_on()

    def _hang_up(self, number: int, frame: object) -> None:
        if terminal_closed():
            self._stop(number, frame)
        self._reload_asked = True  # done in `run`: a handler must not read settings

    def _reload_if_asked(self) -> None:
        """Have the children read the settings again, if those written now are accepted."""
        if not self._reload_asked or self._signals:
            return
        self._reload_asked = False
        taken = reread(self.settings, self.check)
        if taken is None:
            return
        self.settings = taken
        for child in self._children:
            if child.process.pid is not None:
                os.kill(child.process.pid, signal.SIGHUP)

    def _pass_on(self) -> None:
        for child in list(self._children):
            if child.signals < self._signals:
                child.signals = self._signals
                child.process.terminate()

    def _ended(self, child: Child) -> None:
        """Release what the child held, and replace it unless it ended as it should."""
        child.process.join()
        self._children.remove(child)
        code = child.process.exitcode or 0
        if self.reports is not None:
            self.reports.ended(child.spec.process_name, crashed=code != 0)
        if code != 0 and child.error is None:
            self._release(child)
        if self._signals:
            self._code = self._code or child.error or 0
        elif child.error is not None and code != 0:
            self._code = child.error
            self._stop(signal.SIGTERM, None)
        elif code != 0:
            self._replace(child, code)

    def _replace(self, child: Child, code: int) -> None:
        """Start another after a pause, longer after each failure in quick succession."""
        ran_s = time.monotonic() - child.started_s
        failures = 0 if ran_s > _STEADY_S else child.failures + 1
        pause_s = _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]
        died = {"pid": child.process.pid, "code": code, "restart_in_s": pause_s}
        say(logging.ERROR, "worker_died", **died)
        replacement = Child(child.spec, failures=failures, is_replacement=True)
        self._replacements.append((time.monotonic() + pause_s, replacement))

    def _start_replacements(self) -> None:
        now_s = time.monotonic()
        ready = [child for start_s, child in self._replacements if start_s <= now_s]
        self._replacements = [each for each in self._replacements if each[0] > now_s]
        for child in ready:
            self._start(child)

    def _release(self, child: Child) -> None:
        """Release a dead child's leases and remove its announcement."""
        who, namespace = child.identity, self.settings.namespace
        if who is None:
            return
        store = Store(self.settings.redis.url, timeout_s=self.settings.redis.timeout_s)
        leaves = registry.announce(
            namespace, who.name, who.instance, ttl_ms=0, kind=child.spec.kind
        )
        try:
            # Not through `Calls.open`, which would create a namespace that was wiped again.
            record, _ = store.run([registry.read_birth(namespace), leaves])
            if record is not None:
                buckets = [(Bucket(namespace, b, record[1]), t) for b, t in child.tokens.items()]
                released = [bucket.release(token) for bucket, token in buckets]
                store.run([*released, *map(renamed, released)])  # in a resize it has other keys
        except StoreError as exc:
            say(logging.WARNING, "leases_not_released", reason=str(exc), hint="they run out")
        finally:
            store.close()

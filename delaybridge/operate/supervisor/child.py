"""A child process: its parent in `supervisor.py` starts it; it works and reports through a pipe."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import multiprocessing
import os
import signal
import sys
import termios
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from delaybridge.errors import DelayBridgeError, StoreUnavailable
from delaybridge.scan.leases.fleet import NameTaken
from delaybridge.settings.settings import Settings
from delaybridge.store.namespace import registry
from delaybridge.worker.service import Identity, OnReport, ProcessReport

_log = logging.getLogger("delaybridge")
_spawn = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The work of one child; it is pickled.

    process_name: for `ps` and logs. name: of the process in the fleet. work: `run_one`, or the like
    of another service, with what the child cannot know. kind: as in `registry`. exit_code: maps an
    error that ended it and that a restart cannot mend to the exit code. prepare: run first, for
    logging. waits: it is started again if it finds no Redis, as the others can do without it.
    """

    process_name: str
    name: str | None
    work: Callable[..., None]
    kind: str
    exit_code: Callable[[BaseException], int]
    prepare: Callable[[], None]
    waits: bool = False


class Child:
    """One child process as its parent sees it.

    failures: how often it was replaced in quick succession. is_replacement: it replaces a child
    that died. Once it has reported: identity, tokens (bucket -> lease token), and error, the exit
    code of an error that a restart cannot mend. on_report: called with each of its reports.
    """

    def __init__(self, spec: ChildSpec, *, failures: int = 0, is_replacement: bool = False) -> None:
        self.spec, self.failures, self.is_replacement = spec, failures, is_replacement
        self.signals = 0  # how many of the parent's were passed on to it
        self.started_s: float
        self.identity: Identity | None = None
        self.tokens: dict[int, str] = {}
        self.error: int | None = None
        self.on_report: OnReport = lambda report: None
        self.process: SpawnProcess
        self.pipe: Connection

    def start(self, settings: Settings) -> None:
        """Start the process. The parent keeps only its own end of the pipe open."""
        self.started_s = time.monotonic()
        self.pipe, childs_end = _spawn.Pipe(duplex=False)
        self.process = _spawn.Process(
            target=_work,
            args=(childs_end, self.spec, settings, self.is_replacement, os.getpid()),
            name=self.spec.process_name,
        )
        # The child inherits the blocked SIGHUP and unblocks it once it can handle it: until then
        # a SIGHUP waits instead of ending the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        self.process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        childs_end.close()

    def read_reports(self) -> bool:
        """Read what the child has reported so far. False: the child has ended."""
        try:
            while self.pipe.poll():
                self._read(*self.pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    def _read(self, kind: str, *values: Any) -> None:
        if kind == "identity":
            (self.identity,) = values
        elif kind == "error":
            (self.error,) = values
        elif kind == "report":
            self.on_report(*values)
        else:
            bucket, token = values
            if token is None:
                self.tokens.pop(bucket, None)
            else:
                self.tokens[bucket] = token


def _work(
    pipe: Connection, spec: ChildSpec, settings: Settings, is_replacement: bool, parent: int
) -> None:
    """The child's main function. It ignores Ctrl-C, which reaches it too: the parent decides."""
    _drain_when_parent_dies(parent)
    spec.prepare()

    def report(*values: object) -> None:
        try:
            pipe.send(values)
        except OSError:
            pass  # the parent has died, and this process drains: the report is not needed

    def offer(said: ProcessReport) -> None:
        # While the parent is busy, reports do not pile up: a full pipe would stop the scanner.
        if said.is_last or not _unread(pipe):
            report("report", said)

    try:
        spec.work(
            settings,
            name=spec.name,
            ignore=[signal.SIGINT],
            on_start=partial(report, "identity"),
            on_report=offer if settings.metrics.port else None,
            **({"on_token": partial(report, "token")} if spec.kind == registry.WORKER else {}),
        )
    except (DelayBridgeError, NameTaken) as exc:
        _log.error("%s", exc, extra={"event": "worker_failed", "fields": {"reason": str(exc)}})
        code = spec.exit_code(exc)
        # The parent ends the whole fleet on an error. A replacement that only finds Redis
        # unavailable does not report one, so it is replaced in turn.
        if not ((is_replacement or spec.waits) and isinstance(exc, StoreUnavailable)):
            report("error", code)
        sys.exit(code)


def _unread(pipe: Connection) -> int:
    """The bytes that the parent has not read yet."""
    found = array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, found)
    return found[0]


def _drain_when_parent_dies(parent: int) -> None:
    """Have Linux send SIGTERM to this process when its parent dies, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGTERM)

"""A third-party publisher for tests of whole processes: its broker is a file.

recorder:///PATH?confirm_ms=MS&busy_us=US: one JSON line a message is appended to the file, and the
message is confirmed that much later. While `PATH.hold` exists nothing is confirmed. busy_us: for
how long a message keeps the process from anything else, as on a slower core, but without ours; not
for more than BUSY_S at a time, as a slow core lets a loop do its other work, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from delaybridge.message import Delivery, Destination
from delaybridge.publish import CONFIRMED, Outcome, PublishOptions, Report, Verdict

HOLD_POLL_S = 0.01
BUSY_S = 0.05
_ENTRY = EntryPoint("recorder", "tests.rigs.recorder:publisher", "delaybridge.publishers")


class Record(NamedTuple):
    """One message as it was published. at_ms: by the clock of this machine, which is Redis' too."""

    id: str
    at_ms: float
    due_ms: int
    attempt: int
    pid: int


def read(path: Path) -> list[Record]:
    """Everything published so far, by whichever process."""
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return [Record(*json.loads(line)) for line in whole.splitlines()]


def register(folder: Path) -> str:
    """Make the publisher known to processes that have this on their PYTHONPATH."""
    about = folder / "recorder-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{_ENTRY.group}]\n{_ENTRY.name} = {_ENTRY.value}\n")
    return str(folder)


class Recorder:
    """A `Publisher` that writes to a file."""

    def __init__(self, name: str, url: str, report: Report) -> None:
        self.name = name
        self.unavailable: str | None = None
        parts = urlsplit(str.__str__(url))
        self._path = Path(parts.path)
        given = dict(parse_qsl(parts.query))
        self._confirm_s = int(given.get("confirm_ms", 0)) / 1000
        self._busy_s = int(given.get("busy_us", 0)) / 1e6
        self._report = report
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._unconfirmed: dict[Delivery, None] = {}
        self._waiting: list[Delivery] = []

    async def connect(self) -> None:
        """The file is open."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Append them in one write, which no other process' can come between."""
        if not self._busy_s:
            self._write(deliveries)
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._toil)
        self._waiting += deliveries
        self._unconfirmed.update(dict.fromkeys(deliveries))

    def _toil(self) -> None:
        if not self._waiting:  # closed meanwhile
            return
        count = max(1, int(BUSY_S / self._busy_s))
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        time.sleep(self._busy_s * len(some))
        self._write([delivery for delivery in some if delivery in self._unconfirmed])
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._toil)

    def _write(self, deliveries: Sequence[Delivery]) -> None:
        now_ms, pid = time.time_ns() / 1e6, os.getpid()
        lines = [json.dumps([d.id, now_ms, d.due_ms, d.attempt, pid]) + "\n" for d in deliveries]
        os.write(self._file, "".join(lines).encode())
        self._unconfirmed.update(dict.fromkeys(deliveries))
        asyncio.get_running_loop().call_later(self._confirm_s, self._confirm, list(deliveries))

    def _confirm(self, deliveries: Sequence[Delivery]) -> None:
        if self._path.with_suffix(".hold").exists():
            asyncio.get_running_loop().call_later(HOLD_POLL_S, self._confirm, deliveries)
            return
        ours = [delivery for delivery in deliveries if delivery in self._unconfirmed]
        for delivery in ours:
            del self._unconfirmed[delivery]
        if ours:
            self._report(ours, CONFIRMED)

    async def check(self, destination: Destination) -> str | None:
        """Every destination exists."""

    def describe(self) -> str:
        return "a file"

    async def close(self, timeout_s: float) -> None:
        """Deliveries without a confirm are unknown."""
        unconfirmed, self._unconfirmed, self._waiting = list(self._unconfirmed), {}, []
        if unconfirmed:
            self._report(unconfirmed, Outcome(Verdict.UNKNOWN, "closed"))
        os.close(self._file)


def publisher(
    name: str, url: str, *, report: Report, on_change: Callable[[], None], options: PublishOptions
) -> Recorder:
    return Recorder(name, url, report)

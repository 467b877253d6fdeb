"""Peers without a good client in Python: a program in `drivers` adds their messages, and gets them.

It reads words on each line of its standard input, and answers with a line of JSON:

- (its start): {"version": ...}, once it is connected and its consumer runs
- `fill COUNT`: adds messages due tomorrow; {"seconds": ...}
- `burst COUNT DUE_MS`: adds messages due then; {"addedMs": ..., "seconds": ... until the last came}
- `late COUNT RATE FIRST_MS`: adds messages due from then on; {"lateMs": [...]}
"""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

from bench.lateness import Lateness, percentiles
from bench.peers.peer import PATIENCE_S, SPARE_S, Peer, check_pending


class DrivenPeer(Peer):
    """A peer that a program drives; `drive` starts it."""

    warmed = 0  # messages that are sent before the first figure; a JVM needs some
    # Adds a second that are reckoned with, so that all are made before the first is due.
    adds_per_s = 3000

    def drive(self, command: Sequence[str], timeout_s: float = 60) -> None:
        """Start the program, and wait until it is ready."""
        self._said = self.stack.enter_context(TemporaryFile())
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
        )
        self.stack.callback(self._end)
        self.version = str(self._answer(timeout_s)["version"])
        if self.warmed:
            self.lateness(self.warmed, 1)

    def fill(self, count: int) -> float:
        """Add in batches of 1,000, or with as many adds unconfirmed."""
        return count / float(self._ask("fill", count)["seconds"])

    def burst(self, count: int, slack: int = 1) -> float:
        """Measured until the program has received the last message."""
        due_ms = round((time.time() + slack * count / self.adds_per_s + SPARE_S) * 1000)
        done = self._ask("burst", count, due_ms)
        check_pending(done["addedMs"] / 1000, due_ms / 1000)
        return float(done["seconds"])

    def lateness(self, rate: int, seconds: float) -> Lateness | str:
        """Messages are added ahead."""
        count = int(rate * seconds)
        first_ms = (time.time() + count / (self.adds_per_s / 2) + SPARE_S) * 1000
        done = self._ask("late", count, rate, round(first_ms))
        return percentiles([round(late_ms * 1000) for late_ms in done["lateMs"]])

    def _ask(self, *words: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer(PATIENCE_S * 3)

    def _answer(self, timeout_s: float) -> Any:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise RuntimeError(f"no answer within {timeout_s:.0f} s")
        if not (line := self.process.stdout.readline()):
            self._said.seek(0)
            raise RuntimeError(f"the driver ended: {self._said.read()[-2000:].decode()}")
        return json.loads(line)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

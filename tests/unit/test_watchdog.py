"""The watchdog's thread."""

from __future__ import annotations

import io
import sys
import time

import pytest

from delaybridge.worker.watchdog import Watchdog
from tests.rigs.waiting import until


def test_a_stderr_that_is_not_a_file_does_not_end_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # it has no file descriptor for the stacks
    watchdog = Watchdog(lambda: time.monotonic() - 100, 0.03)
    until(lambda: caplog.text.count("loop_stuck") >= 3, "it goes on")
    watchdog.stop()

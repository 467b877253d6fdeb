"""How late this machine was while a test ran, and the one repetition that this allows.

A thread sleeps 10 ms again and again: how much later it wakes is a stall, which every process of
the machine may have suffered. A test with a bound on a time that it cannot compare with a control
asks for the fixture `stall`, and widens the bound by the worst stall. A test that failed although
its stalls were above `REPEATED_ABOVE_S` runs once more, and says so; the second time counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest
from _pytest.runner import runtestprotocol

TICK_S = 0.01
REPEATED_ABOVE_S = 0.25


class Stall:
    """Measures from entry to exit; the worst so far may be asked for at any time."""

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._ticked_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="stall", daemon=True)

    @property
    def worst_s(self) -> float:
        """The worst stall, including one that still lasts."""
        return max(self._worst_s, time.monotonic() - self._ticked_s - TICK_S)

    @property
    def worst_ms(self) -> float:
        return self.worst_s * 1000

    def _measure(self) -> None:
        while not self._ended.wait(TICK_S):
            now_s = time.monotonic()
            self._worst_s = max(self._worst_s, now_s - self._ticked_s - TICK_S)
            self._ticked_s = now_s

    def __enter__(self) -> Self:
        self._ticked_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._worst_s = self.worst_s
        self._ended.set()
        self._thread.join()
        self._ticked_s = float("inf")


_MEASURED = pytest.StashKey[Stall]()


@pytest.fixture
def stall(request: pytest.FixtureRequest) -> Iterator[Stall]:
    """The stalls of this machine during the test, with which it widens its bounds."""
    with Stall() as stall:
        request.node.stash[_MEASURED] = stall
        yield stall


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that uses `stall`; once more, if it failed while the machine stood still."""
    if "stall" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    stalled_s = item.stash[_MEASURED].worst_s if _MEASURED in item.stash else 0.0
    if any(r.when == "call" and r.failed for r in reports) and stalled_s > REPEATED_ABOVE_S:
        item._initrequest()  # type: ignore[attr-defined]  # new fixtures, as pytest itself makes them
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        said = f"failed while the machine stood still for {stalled_s * 1000:.0f} ms, and repeated"
        for report in reports:
            report.sections.append(("stall", said))
            report.user_properties.append(("repeated", said))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

"""Which buckets a worker looks into for cold messages, how often, and how far ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing.promotion import Promoted
from delaybridge.ledger.reconciling import promoting
from delaybridge.ledger.reconciling.promoting import Promoting
from delaybridge.ledger.sql.numbering import Numbering
from delaybridge.scan.leases.session import Session
from tests.rigs.bucket_session import new_session

FIVE = [new_session(number) for number in range(5)]


class Site:
    """A promoter on a clock that the pauses drive. looked: (second, bucket, window).

    dues: when the pages of a bucket end, in seconds from now on; each takes `page_s` to bring.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.held = 0.0, list[Session]()
        self.looked: list[tuple[float, int, int]] = []
        self.failed: list[Exception] = []
        self.noted: set[int] = set()  # that it is known how far was brought
        self.dues: dict[int, list[int]] = {}
        self.page_s, self.rests = 0.0, list[float]()
        self._wakes = asyncio.Queue[None]()
        self._paused = asyncio.Event()
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        paused = SimpleNamespace(sleep=self._sleep, gather=asyncio.gather)
        monkeypatch.setattr(promoting, "promote_due", self._promote_due)
        monkeypatch.setattr(promoting, "time", clock)
        monkeypatch.setattr(promoting, "asyncio", paused)
        store: Any = SimpleNamespace(complete=self._complete)
        cold: Any = SimpleNamespace(records=SimpleNamespace(numbers=Numbering()))
        older: Any = SimpleNamespace(may_restore=self._may_restore, note_promoted=self._note)
        self.promoting = Promoting(store, cold, lambda: self.held, older, self.failed.append)

    def _promote_due(
        self, bucket: Any, _: Any, window_ms: int, so_far: Promoted
    ) -> tuple[float, int, int]:
        return self.now_s, bucket.number, window_ms

    async def _complete(self, look: tuple[float, int, int]) -> Promoted:
        self.looked.append(look)
        if look[1] == 4:
            raise LedgerUnavailable("ledger: gone")
        self.now_s += self.page_s
        if dues := self.dues.get(look[1]):
            due_ms = dues.pop(0) * 1000
            return Promoted(1, 0, 0, (due_ms, 1), due_ms - round(self.now_s * 1000))
        return Promoted(0, look[1], look[2], None, look[2])

    async def _may_restore(self, session: Session) -> bool:
        return session.bucket.number != 3

    async def _note(self, bucket: int, found: Promoted) -> None:
        assert bucket == found.at_ms
        self.noted.add(bucket)

    async def _sleep(self, seconds: float) -> None:
        if not seconds:
            return
        self.rests.append(seconds)
        self.now_s += seconds
        self._paused.set()
        await self._wakes.get()

    async def seconds(self, count: int) -> Sequence[tuple[float, int]]:
        """What was looked at in the next seconds."""
        before = len(self.looked)
        for _ in range(count):
            self._paused.clear()
            self._wakes.put_nowait(None)
            await self._paused.wait()
        return [look[:2] for look in self.looked[before:]]


@pytest.mark.parametrize(("window_s", "window_ms"), [(100.0, 100_000), (0.0, 2**53)])
async def test_each_bucket_is_looked_into_at_once_and_then_often_in_a_window(
    window_s: float, window_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(monkeypatch)
    running = asyncio.create_task(site.promoting.run(window_s))
    await site._paused.wait()
    site.held = [*FIVE]
    first = await site.seconds(1)
    assert sorted(number for _, number in first) == [0, 1, 2, 4]
    assert site.noted == {0, 1, 2}
    assert {look[2] for look in site.looked} == {window_ms}
    site.held = [FIVE[0], new_session(7)]
    later = await site.seconds(5)
    assert [number for _, number in later].count(7) == (1 if window_s else 5)
    assert [number for _, number in later].count(0) == (1 if window_s else 5)
    assert site.failed and {type(each) for each in site.failed} == {LedgerUnavailable}
    running.cancel()


async def brought(site: Site, page_s: float, dues: dict[int, list[int]]) -> list[tuple[float, int]]:
    """The looks until these pages are brought, each of which takes so long."""
    running = asyncio.create_task(site.promoting.run(1000.0))
    await site._paused.wait()
    site.now_s, site.rests = 0.0, []
    site.dues, site.held, site.page_s = dues, [*FIVE[: len(dues)]], page_s
    while any(dues.values()):
        await site.seconds(1)
    running.cancel()
    return [look[:2] for look in site.looked]


async def test_what_is_due_first_is_brought_first_whatever_its_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch)
    monkeypatch.setattr(promoting, "_AT_ONCE", 1)
    looked = await brought(site, 0.1, {0: [100, 500, 600], 1: [200, 300, 550]})
    assert [number for _, number in looked] == [0, 1, 0, 1, 1, 0]


async def test_a_promoter_rests_after_each_page_unless_what_it_brought_is_due_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch)
    looked = await brought(site, 0.25, {0: [10, 20, 400, 500]})
    assert [at_s for at_s, _ in looked] == [0.0, 0.25, 0.5, 1.5]
    assert site.rests == [0.75, 0.75]
    slow = Site(monkeypatch)
    await brought(slow, 5.0, {0: [400]})
    assert slow.rests == [1.0]

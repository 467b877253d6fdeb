"""What many wait for is tried once at a time, and all share how that ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.reconciling import attempts
from delaybridge.ledger.reconciling.attempts import Attempts
from tests.rigs.waiting import until_async

GONE = LedgerUnavailable("ledger: gone")


class Asked:
    """A question whose answer comes when the test says so. count: how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.count, self.cancelled = 0.0, 0, 0
        self.answer: asyncio.Future[str] | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(attempts, "time", clock)
        self.attempts = Attempts(self._ask)

    async def _ask(self) -> str:
        self.count += 1
        self.answer = asyncio.Future()
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def by(self, many: int) -> list[asyncio.Task[str]]:
        """So many want to know."""
        tasks = [asyncio.create_task(self.attempts.share()) for _ in range(many)]
        await until_async(lambda: self.answer is not None, "it is asked")
        return tasks

    async def fails(self) -> None:
        self.answer = None
        (one,) = await self.by(1)
        assert self.answer is not None
        self.answer.set_exception(GONE)
        with pytest.raises(LedgerUnavailable):
            await one


async def test_all_share_the_answer_of_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    first = await asked.by(3)
    late = await asked.by(2)
    await asyncio.sleep(0)
    assert asked.answer is not None and asked.count == 1
    asked.answer.set_result("yes")
    assert await asyncio.gather(*first, *late) == ["yes"] * 5
    asked.answer = None
    (later,) = await asked.by(1)
    assert asked.count == 2, "what was true once is asked again"
    later.cancel()


async def test_an_error_is_shared_by_all_who_ask_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    tasks = await asked.by(3)
    assert asked.answer is not None
    asked.answer.set_exception(GONE)
    assert await asyncio.gather(*tasks, return_exceptions=True) == [GONE] * 3
    asked.now_s = 0.9
    (soon,) = await asked.by(1)
    for _ in range(3):  # a new attempt would have begun
        await asyncio.sleep(0)
    assert asked.count == 1
    with pytest.raises(LedgerUnavailable):
        await soon
    asked.now_s = 1.0
    await asked.fails()
    assert asked.count == 2


async def test_it_goes_on_until_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    first, second = await asked.by(2)
    first.cancel()
    await asyncio.wait([first])
    assert not asked.cancelled
    second.cancel()
    await asyncio.wait([second])
    await until_async(lambda: asked.cancelled, "it ends, too")
    asked.answer = None
    (third,) = await asked.by(1)
    assert asked.answer is not None
    asked.answer.set_result("yes")
    assert (await third, asked.count) == ("yes", 2)

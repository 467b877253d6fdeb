"""An answer that all who ask within a second share."""

from __future__ import annotations

import asyncio

import pytest

from delaybridge.serve.shared import site as site_module
from delaybridge.serve.shared.site import Shared


class Making:
    """Counts how often an answer was made; each waits until it may end."""

    def __init__(self) -> None:
        self.count = 0
        self.ends = asyncio.Event()

    async def __call__(self) -> int:
        self.count += 1
        await self.ends.wait()
        return self.count


async def test_who_asks_meanwhile_or_within_a_second_shares_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site_module, "FRESH_S", 3600.0)
    making, answers = Making(), Shared[int]()
    asked = [asyncio.create_task(answers.answer(making)) for _ in range(50)]
    await asyncio.sleep(0)
    asked[0].cancel()  # the others go on
    making.ends.set()
    assert await asyncio.gather(*asked[1:]) == [1] * 49
    assert await answers.answer(making) == 1
    await answers.close()


async def test_afterwards_a_new_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "FRESH_S", 0.0)
    making, answers = Making(), Shared[int]()
    making.ends.set()
    assert [await answers.answer(making) for _ in range(3)] == [1, 2, 3]


async def test_an_error_is_shared_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "FRESH_S", 0.0)
    making, answers = Making(), Shared[int]()

    async def failing() -> int:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await answers.answer(failing)
    making.ends.set()
    assert await answers.answer(making) == 1


async def test_closed_while_one_is_made_it_ends() -> None:
    making, answers = Making(), Shared[int]()
    asked = asyncio.create_task(answers.answer(making))
    await asyncio.sleep(0)
    await answers.close()
    with pytest.raises(asyncio.CancelledError):
        await asked

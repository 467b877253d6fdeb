"""The budget of opening channels, with exchanges that open when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from unittest.mock import patch

import pytest

from delaybridge.publish.rabbitmq import exchange as module
from delaybridge.publish.rabbitmq.exchange import AT_ONCE, Openings
from tests.rigs.waiting import until_async

HOUR_S = 3600.0


class Exchange:
    """Its channel is open once `answered` is set. begun: the names of all, in order."""

    def __init__(self, name: str, board: Board, *, was_refused: bool = False) -> None:
        self.name, self.was_refused, self._board = name, was_refused, board
        self.proved_s, self.is_idle = 0.0, True
        self.answered = asyncio.Event()

    async def open_channel(self) -> None:
        self._board.begun.append(self.name)
        await self.answered.wait()
        self._board.openings.open[self] = None

    def release(self) -> None:
        self._board.released.append(self.name)
        del self._board.openings.open[self]


class Board:
    """Openings, and what they did."""

    def __init__(self) -> None:
        self.openings = Openings(asyncio.create_task)
        self.begun: list[str] = []
        self.released: list[str] = []
        self._made: list[Exchange] = []

    def planned(self, names: Iterable[object], *, was_refused: bool = False) -> list[Exchange]:
        """Exchanges of these names that want a channel."""
        made = [Exchange(str(name), self, was_refused=was_refused) for name in names]
        for exchange in made:
            self.plan(exchange)
        return made

    def plan(self, exchange: Exchange) -> None:
        self._made.append(exchange)
        self.openings.plan(exchange)

    async def begins(self, count: int) -> list[str]:
        await until_async(lambda: len(self.begun) >= count, f"{count} openings begun")
        return self.begun

    async def end(self) -> None:
        for exchange in reversed(self._made):  # those that wait before those under way
            self.openings.drop(exchange)
        await settled()


@pytest.fixture
async def board() -> AsyncIterator[Board]:
    made = Board()
    yield made
    await made.end()


async def settled() -> None:
    """Each task that can go on has done so."""
    for _ in range(10):
        await asyncio.sleep(0)


@patch.object(module, "PACE_S", HOUR_S)
async def test_few_channels_are_opened_at_once_however_many_are_needed(board: Board) -> None:
    made = board.planned(range(2000))
    await settled()
    assert len(board.begun) == AT_ONCE
    made[2].answered.set()
    await board.begins(AT_ONCE + 1)
    await settled()
    assert board.begun == [str(n) for n in range(AT_ONCE + 1)]


@patch.object(module, "PACE_S", 0.0)
async def test_while_the_broker_takes_long_ever_more_are_opened_to_a_limit(board: Board) -> None:
    board.planned(range(2000))
    await board.begins(module.AT_MOST)
    await settled()
    assert len(board.begun) == module.AT_MOST


@patch.object(module, "PACE_S", HOUR_S)
async def test_what_works_or_is_new_goes_before_what_was_refused(board: Board) -> None:
    refused = board.planned((f"refused-{n}" for n in range(100)), was_refused=True)
    await settled()
    healthy = board.planned(f"healthy-{n}" for n in range(12))
    for exchange in refused + healthy:
        exchange.answered.set()
    await board.begins(112)
    next_ones = board.begun[AT_ONCE : AT_ONCE + 16]
    assert sum(name.startswith("healthy") for name in next_ones) == 12
    assert [name for name in next_ones if name.startswith("refused")], "they never starve"


@patch.object(module, "PACE_S", HOUR_S)
async def test_an_exchange_that_is_dropped_gives_its_place_to_others(board: Board) -> None:
    made = board.planned(range(AT_ONCE + 2))
    await settled()
    board.openings.drop(made[-1])
    board.openings.drop(made[0])
    made[1].answered.set()
    await board.begins(AT_ONCE + 1)
    await settled()
    assert board.begun[-1] == str(AT_ONCE) and len(board.begun) == AT_ONCE + 1
    assert not board.openings.is_planned(made[0])


@patch.object(module, "PACE_S", HOUR_S)
async def test_an_opening_that_raises_gives_its_place_to_others(board: Board) -> None:
    failing = [Exchange(str(n), board) for n in range(AT_ONCE)]
    for exchange in failing:
        exchange.answered = None  # type: ignore[assignment]
        board.plan(exchange)
    tasks = list(board.openings._under_way.values())
    board.planned(["next"])
    await board.begins(AT_ONCE + 1)
    assert board.begun[-1] == "next"
    assert all(isinstance(task.exception(), AttributeError) for task in tasks)


@patch.object(module, "MAX_CHANNELS", 20)
async def test_of_idle_channels_those_unused_for_longest_are_closed_for_others(
    board: Board,
) -> None:
    made = board.planned(range(20))
    for age, exchange in enumerate(made):
        exchange.proved_s = 100.0 - age
        exchange.is_idle = age % 2 == 0
        exchange.answered.set()
    await until_async(lambda: len(board.openings.open) == 20, "all are open")
    assert not board.released
    board.planned(["new"])
    await board.begins(21)
    assert board.released == ["18", "16"]

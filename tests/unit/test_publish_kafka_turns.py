"""Whose turn it is to look up a topic, with look-ups that end when the test says so."""

from __future__ import annotations

import asyncio
import threading

import pytest

from delaybridge.publish.kafka.client import on_thread
from delaybridge.publish.kafka.topic import AT_ONCE, Rank, Turns
from tests.rigs.waiting import until_async

PROVED, NEW, REFUSED = Rank


class Board:
    """Look-ups, in the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[Rank] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.may_end = asyncio.Semaphore(0)
        self._turns = Turns()

    async def add(self, rank: Rank, count: int = 1) -> list[asyncio.Task[None]]:
        """They have begun, or wait."""
        made = [asyncio.create_task(self._look(rank)) for _ in range(count)]
        self.tasks += made
        await settled()
        return made

    async def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.may_end.release()
        await settled()

    async def _look(self, rank: Rank) -> None:
        async with self._turns.turn(rank):
            self.begun.append(rank)
            await self.may_end.acquire()


async def settled() -> None:
    """Whatever can go on without the test has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_few_look_up_at_a_time_and_all_have_a_turn() -> None:
    board = Board()
    await board.add(NEW, 3 * AT_ONCE)
    assert len(board.begun) == AT_ONCE
    await board.end()
    assert len(board.begun) == AT_ONCE + 1
    await board.end(3 * AT_ONCE - 1)
    assert len(board.begun) == 3 * AT_ONCE
    await board.add(NEW, 2 * AT_ONCE)
    assert len(board.begun) == 4 * AT_ONCE, "no turn is lost, none is made up"


async def test_topics_that_exist_go_first_and_missing_ones_last_but_not_never() -> None:
    board = Board()
    await board.add(NEW, AT_ONCE)
    for rank in (REFUSED, NEW, PROVED):
        await board.add(rank, 6)
    del board.begun[:]
    for _ in range(18):
        await board.end()
    first, fourth = board.begun[:3], board.begun[3]
    assert (first, fourth) == ([PROVED] * 3, REFUSED)
    assert board.begun[4:9] == [PROVED, PROVED, PROVED, REFUSED, NEW]
    assert sorted(board.begun) == [PROVED] * 6 + [NEW] * 6 + [REFUSED] * 6


@pytest.mark.parametrize("has_its_turn", [False, True], ids=["it waits", "its turn has come"])
async def test_a_cancelled_one_leaves_its_turn_to_the_next(has_its_turn: bool) -> None:
    board = Board()
    await board.add(NEW, AT_ONCE)
    (cancelled,) = await board.add(PROVED)
    await board.add(REFUSED)
    if has_its_turn:
        board.tasks[0].cancel()
        await asyncio.sleep(0)  # that one passes its turn on, which is not taken yet
    cancelled.cancel()
    await settled()
    await board.end()
    assert board.begun == [NEW] * AT_ONCE + [REFUSED]


class TestOnThread:
    async def test_what_the_call_returns_and_raises_arrives(self) -> None:
        assert await on_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await on_thread(lambda: 1 // 0)

    async def test_a_call_that_is_not_waited_for_any_more_ends_in_peace(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        raised: list[object] = []
        monkeypatch.setattr(threading, "excepthook", raised.append)
        go_on, threads = threading.Event(), []

        def call() -> None:
            threads.append(threading.current_thread())
            go_on.wait()

        waiting = asyncio.create_task(on_thread(call))
        await until_async(lambda: threads, "it is called")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        await asyncio.to_thread(threads[0].join)
        assert (raised, threads[0].daemon) == ([], True)

"""How a batch of AsyncClient lets its callers go on: each once, whatever the others do."""

from __future__ import annotations

import asyncio
from typing import Any

from delaybridge.client import batching


async def test_a_batch_wakes_its_callers_and_leaves_out_the_cancelled_and_those_in_flight() -> None:
    loop, order = asyncio.get_running_loop(), list[Any]()
    futures = [loop.create_future() for _ in range(6)]

    async def call(place: int) -> None:
        order.append((place, await futures[place]))
        if place == 1:
            tasks[3].cancel()  # its answer is there, but it has not gone on yet

    tasks = [asyncio.create_task(call(place)) for place in range(5)]  # none waits for the last
    await asyncio.sleep(0)
    tasks[2].cancel()
    waiting: Any = [(None, future) for future in futures]
    answers: Any = ["a", "b", "c", "d", None, "f"]
    loop.call_soon(batching._wake, waiting, answers)
    done = await asyncio.gather(*tasks[:4], return_exceptions=True)
    assert order == [(0, "a"), (1, "b")]
    assert [type(each) for each in done[2:]] == [asyncio.CancelledError] * 2
    assert not futures[4].done() and futures[5].result() == "f"
    futures[4].set_result("later")
    await tasks[4]
    assert order[-1] == (4, "later")


def test_a_caller_that_ends_the_program_does_not_keep_others_from_their_answers() -> None:
    loop, heard = asyncio.new_event_loop(), list[str]()
    futures = [loop.create_future() for _ in range(3)]

    async def call(place: int) -> None:
        heard.append(await futures[place])
        if place == 0:
            raise SystemExit(3)

    tasks = [loop.create_task(call(place)) for place in range(3)]
    waiting: Any = [(None, future) for future in futures]
    loop.call_soon(batching._wake, waiting, ["a", "b", "c"])
    try:
        loop.run_until_complete(asyncio.wait(tasks))
    except SystemExit as exc:
        assert exc.code == 3
    loop.run_until_complete(asyncio.wait(tasks[1:]))
    assert heard == ["a", "b", "c"]
    assert isinstance(tasks[0].exception(), SystemExit)
    loop.close()

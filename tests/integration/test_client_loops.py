"""AsyncClient where event loops end, begin, are forked, or cancel what is not theirs."""

from __future__ import annotations

import asyncio
import gc
import threading
from multiprocessing import get_context

import pytest

from delaybridge import AsyncClient
from delaybridge.message import Answer
from delaybridge.store.messages.scheduling import Receipt
from tests.rigs.flavours import TO
from tests.rigs.waiting import DEADLINE_S


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:loop is")
def test_a_client_goes_on_in_the_next_event_loop(redis_url: str, namespace: str) -> None:
    client = AsyncClient(redis_url, namespace=namespace)

    async def many() -> list[Receipt]:
        return await asyncio.gather(*(client.schedule(TO, b"", delay=60) for _ in range(3)))

    for _ in range(3):
        assert asyncio.run(many()) == [Answer.CREATED] * 3
    asyncio.run(client.close())
    gc.collect()  # here, what asyncio says of the sockets of loops that ended


async def test_a_forked_process_leaves_the_connections_alone(
    redis_url: str, namespace: str
) -> None:
    async def answer(id: str) -> Receipt:
        return await client.schedule(TO, b"", delay=60, id=id)

    async def only() -> Receipt:
        async with client:
            return await answer("theirs")

    def tell() -> None:
        theirs.send(asyncio.run(only()))

    async with AsyncClient(redis_url, namespace=namespace, timeout_s=DEADLINE_S) as client:
        await answer("ours")
        number = [each.generation for each in client._store._servers.wires()]
        forking = get_context("fork")
        ours, theirs = forking.Pipe()
        child, under_way = forking.Process(target=tell), asyncio.create_task(answer("late"))
        while not client._store._under_way:
            await asyncio.sleep(0)
        child.start()
        assert await asyncio.to_thread(ours.poll, DEADLINE_S)
        child.join()
        assert ours.recv() == await under_way == Answer.CREATED
        assert await answer("theirs") == Answer.DUPLICATE
        assert [each.generation for each in client._store._servers.wires()] == number


@pytest.mark.parametrize("turns", range(4))
async def test_a_caller_is_cancelled_with_the_task_that_makes_its_call(
    redis_url: str, namespace: str, turns: int
) -> None:
    """A program may cancel all tasks of its loop but some."""
    async with AsyncClient(redis_url, namespace=namespace) as client:
        await client.get("m")
        asked = [client.schedule(TO, b"", delay=60), client.get("m")]
        callers = {asyncio.current_task(), *map(asyncio.ensure_future, asked)}
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - callers:
            task.cancel()
        done, waiting = await asyncio.wait(callers - {asyncio.current_task()}, timeout=DEADLINE_S)
        assert not waiting
        assert await client.get("n") is None


def test_two_event_loops_at_once_need_a_client_each(redis_url: str, namespace: str) -> None:
    client = AsyncClient(redis_url, namespace=namespace)
    begun, over = threading.Event(), threading.Event()

    async def first() -> None:
        async with client:
            await client.get("m")
            begun.set()
            await asyncio.to_thread(over.wait, DEADLINE_S)

    thread = threading.Thread(target=asyncio.run, args=(first(),))
    thread.start()
    assert begun.wait(DEADLINE_S)
    with pytest.raises(RuntimeError, match="make one for each"):
        asyncio.run(client.schedule(TO, b"", delay=60))
    over.set()
    thread.join()

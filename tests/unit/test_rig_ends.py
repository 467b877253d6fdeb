"""Rigs end with their test, whatever is under way: no time-out covers the end of a fixture."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

import pytest

from tests.rigs import lossy_proxy, waiting
from tests.rigs.lossy_proxy import LOOPBACK, LossyProxy
from tests.rigs.waiting import DEADLINE_S, DeadlineExceeded, ended, stopped, until


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CANCELLED_AGAIN_S", 0.01)


async def stubborn(cancellations: list[str]) -> None:
    """As `wait_for` of Python 3.11, which drops a cancellation that comes as it completes."""
    while len(cancellations) < 2:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancellations.append("dropped")
    await asyncio.Event().wait()


async def test_a_task_is_cancelled_until_it_has_ended() -> None:
    async def broken() -> None:
        raise RuntimeError("never retrieved")

    dropped: list[str] = []
    tasks = [asyncio.create_task(each) for each in (stubborn(dropped), broken(), asyncio.sleep(0))]
    await asyncio.sleep(0)
    await ended(*tasks)
    assert len(dropped) == 2 and tasks[0].cancelled()
    await ended()


def test_a_loop_ends_with_what_its_test_has_left_behind() -> None:
    dropped: list[str] = []
    with asyncio.Runner() as runner:
        left = runner.get_loop().create_task(stubborn(dropped))
        runner.run(asyncio.sleep(0))
    assert len(dropped) == 2 and left.cancelled()


async def test_a_task_that_does_not_end_is_named_with_its_place() -> None:
    gives_up = False

    async def inner() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def deaf() -> None:
        while not gives_up:
            await inner()

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match=r"test_rig_ends.py:\d+ > test_rig_ends.py:\d+ > lo"):
        await ended(task, deadline_s=0.05)
    gives_up = True
    await ended(task)


async def test_a_task_that_was_told_to_stop_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "DEADLINE_S", 0.05)
    dropped: list[str] = []
    task = asyncio.create_task(stubborn(dropped))
    with pytest.raises(DeadlineExceeded, match="told to: test_rig_ends.py"):
        await stopped(task)
    assert len(dropped) == 2 and task.cancelled()

    async def broken() -> None:
        raise RuntimeError("what ended it")

    with pytest.raises(RuntimeError, match="what ended it"):
        await stopped(asyncio.create_task(broken()))


def test_a_lossy_proxy_ends_beside_a_connection_that_it_is_about_to_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client may be one of a loop that does not run: it closes nothing."""
    connect, connects, goes_on = socket.create_connection, threading.Event(), threading.Event()

    def held(*args: Any) -> socket.socket:
        connects.set()
        assert goes_on.wait(DEADLINE_S)
        return connect(*args)

    monkeypatch.setattr(lossy_proxy.socket, "create_connection", held)
    with socket.create_server((LOOPBACK, 0)) as target:
        proxy = LossyProxy(target.getsockname()[1])
        with connect((LOOPBACK, proxy.port)) as client:
            assert connects.wait(DEADLINE_S)
            closing = threading.Thread(target=proxy.close, daemon=True)
            closing.start()
            until(lambda: proxy._listener.fileno() < 0, "it closes")
            goes_on.set()
            closing.join(DEADLINE_S)
            assert not closing.is_alive()
            assert client.recv(1) == b""

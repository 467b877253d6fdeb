"""A task that is cancelled ends, also in the moment in which what it waits for is there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.publish.kafka.client import KafkaClient
from delaybridge.store.protocol.verbs import Work
from tests.rigs.broker import connect_to
from tests.rigs.ledgers import made
from tests.rigs.rooms import PACKAGE
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.process import LOOPBACK, free_port

WAIT_FOR = re.compile(r"\basyncio\.wait_for\(|import .*\bwait_for\b")


def test_nothing_waits_with_what_drops_cancellations() -> None:
    """Python 3.11's `asyncio.wait_for` (python/cpython#81839); `asyncio.timeout` drops none."""
    found = [path for path in PACKAGE.rglob("*.py") if WAIT_FOR.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("turns", range(5))
async def test_a_publisher_closes_in_the_moment_in_which_it_is_connected(
    monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    async def answers(*_: object) -> None:
        return None

    monkeypatch.setattr(KafkaClient, "error_of_topic", answers)
    monkeypatch.setattr(KafkaClient, "_error", lambda *_: None)  # as if the broker were there
    publisher, _ = connect_to("kafka", f"kafka://{LOOPBACK}:{free_port()}")
    connecting = asyncio.create_task(publisher.connect())
    await until_async(lambda: publisher._clients.prompt, "it connects")
    publisher._clients.prompt.ready.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await publisher.close(0.0)
    connecting.cancel()


@pytest.mark.parametrize("turns", range(5))
async def test_whoever_waits_for_a_ledger_ends_in_the_moment_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    database: Any = open_ledger(made(f"sqlite:///{tmp_path / 'ledger.db'}"), connections=1)
    attempts, goes_on, told, start = list[Any](), Event(), Event(), database._start
    monkeypatch.setattr(
        database, "_start", lambda work: attempts.append(start(work)) or attempts[0]
    )
    call = asyncio.create_task(database.run_async(Work(lambda _: goes_on.wait(DEADLINE_S))))
    await asyncio.sleep(0)
    attempts[0].future.add_done_callback(lambda _: told.set())  # after the loop was told
    goes_on.set()
    assert told.wait(DEADLINE_S)
    for _ in range(turns):
        await asyncio.sleep(0)
    if call.cancel():
        await asyncio.wait([call])
        assert call.cancelled()
    database.close()

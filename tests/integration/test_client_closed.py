"""A client that is closed while calls run: each of them has its answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest

from delaybridge import AsyncClient, Client, Message
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.store.protocol.verbs import Work
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.flavours import FLAVOURS, Threaded
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until_async
from tests.servers.process import free_port

TO = "memory:q"
CALLS = 12  # more than a ledger has threads


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(free_port(), urlsplit(redis_url).port or 6379) as found:
        yield found


@pytest.mark.parametrize("durability", ["memory", "ledger"])
@pytest.mark.parametrize("kind", FLAVOURS)
async def test_calls_under_way_have_their_answers(
    proxy: FaultProxy,
    namespace: str,
    tmp_path: Path,
    kind: type[Client] | type[AsyncClient],
    durability: str,
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}") if durability == "ledger" else None
    plain = kind(
        f"redis://127.0.0.1:{proxy.port}", namespace=namespace, brokers={"memory": "memory://"},
        durability=durability, ledger=url, timeout_s=PATIENCE_S,
    )  # fmt: skip
    client = Threaded(plain)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CALLS + 1))
    await client.schedule(TO, b"x", delay="1h", id="m0")
    proxy.mode = "hold_down"
    many = [[Message(TO, b"x", delay="1h", id=f"m{n}")] for n in range(1, CALLS)]
    calls = [client.schedule_many(each) for each in many]
    calls.append(client.cancel("m0"))
    calls = [asyncio.create_task(call) for call in calls]
    await until_async(lambda: proxy.connections >= CALLS, "each waits for Redis")
    closing = asyncio.create_task(client.close())
    if kind is Client:
        await closing  # it waits for nobody
    else:
        await asyncio.sleep(0)
    proxy.mode = "pass"
    answers = await asyncio.gather(*calls, return_exceptions=True)
    await closing
    assert answers == [["created"]] * (CALLS - 1) + ["cancelled"]
    if url:
        states = LedgerProbe(url).states()
        assert states == Counter(delayed=CALLS - 1, cancelled=1)
    await until_async(lambda: proxy.connections == 0, "no connection is left")


async def test_an_async_client_is_closed_when_all_have_their_answers(
    proxy: FaultProxy, namespace: str
) -> None:
    client = AsyncClient(f"redis://127.0.0.1:{proxy.port}", namespace=namespace)
    await client.stats()
    proxy.mode = "hold_down"
    calls = [asyncio.create_task(client.stats()) for _ in range(CALLS)]
    closing = asyncio.create_task(client.close())
    await until_async(lambda: proxy.connections >= CALLS, "each waits for Redis")
    assert not closing.done()
    proxy.mode = "pass"
    await closing
    assert all(call.done() for call in calls)


def test_what_waits_for_a_thread_of_the_ledger_is_done_after_the_close(tmp_path: Path) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    database, begun, end = open_ledger(url, connections=1), Event(), Event()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(database.run, Work(lambda _: (begun.set(), end.wait(DEADLINE_S))))
        assert begun.wait(DEADLINE_S)
        second: Any = database._start(Work(lambda _: 2))  # type: ignore[attr-defined]
        database.close()
        third = threads.submit(database.run, Work(lambda _: 3))
        end.set()
        assert first.result() == (None, True)
        assert (second.future.result(DEADLINE_S), third.result()) == (2, 3)

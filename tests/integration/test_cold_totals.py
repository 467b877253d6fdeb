"""Totals of very many cold messages, which workers keep for whoever asks next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge import Client, Message
from delaybridge.ledger.reconciling import counting
from delaybridge.ledger.sql import counts
from delaybridge.ledger.sql.cold import ColdRecords
from delaybridge.ledger.sql.counts import ColdTotals
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.ledger.sql.records import Records
from delaybridge.store.protocol.recorder import Ledger
from delaybridge.store.protocol.verbs import Work
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import ended, until_async

HOURS = 3600.0


@pytest.fixture
def client(redis_url: str, namespace: str, ledger_url: str) -> Iterator[Client]:
    """With ten cold messages in one bucket: one due in two hours, nine in five."""
    kept: dict[str, Any] = {"durability": "ledger", "ledger": ledger_url, "buckets": 1}
    with Client(redis_url, namespace=namespace, brokers={"memory": "memory://"}, **kept) as client:
        delays = [2 * HOURS, *[5 * HOURS] * 9]
        client.schedule_many([Message("memory:a", b"1", delay=delay) for delay in delays])
        yield client


@pytest.fixture
def totals(namespace: str) -> ColdTotals:
    return ColdTotals(ColdRecords(Records(namespace)))


@pytest.fixture
def database(ledger_url: str) -> Iterator[Ledger]:
    found = open_ledger(ledger_url)
    yield found
    found.close()


def test_a_total_that_is_good_is_not_counted_again(
    client: Client, database: Ledger, totals: ColdTotals
) -> None:
    database.run(Work(partial(totals.keep, bucket=0, messages=5000, good_s=HOURS)))
    assert client.stats().delayed == 5000
    horizon = client.horizon("3h", "1h")
    assert (horizon.messages, horizon.later) == (1, 4999)  # what has an end is counted
    assert horizon.next_due_ms == client.stats().next_due_ms


def test_an_old_total_does_not_count(client: Client, database: Ledger, totals: ColdTotals) -> None:
    database.run(Work(partial(totals.keep, bucket=0, messages=5000, good_s=HOURS)))
    database.run(Work(partial(totals.keep, bucket=0, messages=6000, good_s=-1.0)))
    assert client.stats().delayed == 10
    assert client.horizon("3h", "1h").later == 9


async def test_a_worker_keeps_what_took_long_to_count(
    client: Client,
    database: Ledger,
    totals: ColdTotals,
    ledger: LedgerProbe,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    def held() -> Any:
        nonlocal asked
        asked += 1
        return [SimpleNamespace(bucket=SimpleNamespace(number=0))]

    def kept() -> list[Any]:
        return [tuple(row) for row in ledger.ask("SELECT namespace, messages FROM counted")]

    def set_slow_s(seconds: float) -> None:
        for module in (counts, counting):
            monkeypatch.setattr(module, "SLOW_S", seconds)

    set_slow_s(HOURS)
    monkeypatch.setattr(counting, "_EVERY_S", 0.0)
    keeping = asyncio.create_task(counting.keep_counted(database, totals._cold, held, pytest.fail))
    await until_async(lambda: asked > 1, "it was counted")
    assert kept() == []  # in no time
    set_slow_s(0.0)
    await until_async(lambda: kept() == [(namespace, 10)], "the total is kept")
    await ended(keeping)

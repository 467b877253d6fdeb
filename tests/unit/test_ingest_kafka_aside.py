"""What the ingest of Kafka does with records that are set aside, without a store or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreDamaged, StoreWiped
from delaybridge.ingest.entries import Entry, Schedule
from delaybridge.ingest.kafka.held import HeldRecord
from delaybridge.ingest.kafka.ingest import KafkaIngest
from delaybridge.ingest.kafka.records import RawRecord
from delaybridge.ingest.kafka.topics import Topic
from delaybridge.ingest.storing import Found
from delaybridge.message import OnConflict

DAMAGED = StoreDamaged("a key is damaged")


class Refusing:
    """An `EntryStore` that refuses everything, and then raises what it is told to."""

    buckets = 4

    def __init__(self, then: Exception | None = None) -> None:
        self.then, self.called, self.going_on = then, 0, asyncio.Event()

    def owner(self, take_over: Sequence[str]) -> None:
        pass

    async def pause(self, errors: Any, pause_s: float) -> None:
        await self.going_on.wait()

    async def store(self, entries: Sequence[Entry]) -> list[Found]:
        self.called += 1
        if self.called > 1 and self.then is not None:
            raise self.then
        return [DAMAGED] * len(entries)


class Window:
    """A `KafkaConsumer`; its window is full of one record, or never."""

    def __init__(self, *, is_full: bool) -> None:
        self.is_full, self.is_settled = is_full, False

    def share(self, messages: int, size: int) -> float:
        return float(self.is_full and messages > 0)

    def hold(self, topics: Any, room: float) -> None:
        pass

    def stored(self, reached: Any) -> None:
        pass

    def settled(self) -> None:
        self.is_settled = True


def ingest_of(store: Refusing) -> KafkaIngest:
    settings = SimpleNamespace(take_over=())
    options: Any = SimpleNamespace(settings=settings, routes=(), on_change=lambda: None)
    given: Any = store
    nothing: Any = None
    return KafkaIngest(nothing, options, given, lambda event: None)


def record(offset: int) -> HeldRecord:
    accepted = Accepted("x", b"x", "+0", 255, b"p")
    entry = Schedule(accepted, b"aaaa", OnConflict.FAIL, b"p", "t:0", offset)
    reader: Any = SimpleNamespace(topic="t")
    return HeldRecord(reader, entry, Topic("t", "id"), RawRecord(0, offset, None, b"p", ()))


async def test_what_ends_the_emptying_ends_the_storing_that_waits_for_room() -> None:
    store, consumer = Refusing(StoreWiped()), Window(is_full=True)
    given: Any = consumer
    store.going_on.set()
    with pytest.raises(StoreWiped):
        await ingest_of(store)._store_batch({}, [record(1)], given)
    assert not consumer.is_settled


async def test_a_full_window_does_not_hold_up_its_stop() -> None:
    store, consumer = Refusing(), Window(is_full=True)
    given: Any = consumer
    ingest = ingest_of(store)
    storing = asyncio.ensure_future(ingest._store_batch({}, [record(1)], given))
    while not (emptying := ingest._emptying):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await ingest.stop(1)
    await storing
    assert consumer.is_settled
    emptying.cancel()


async def test_a_record_that_is_read_again_while_it_waits_is_set_aside_once() -> None:
    consumer: Any = Window(is_full=False)
    ingest = ingest_of(Refusing())
    for offsets in ((1, 2), (1, 2, 3)):
        await ingest._store_batch({}, [record(offset) for offset in offsets], consumer)
    assert [record.place[2] for record in ingest._aside.messages] == [1, 2, 3]
    assert ingest._emptying is not None
    ingest._emptying.cancel()

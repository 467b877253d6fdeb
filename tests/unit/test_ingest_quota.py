"""What a quota refuses waits, with what may not overtake it; all else is stored."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreFull
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.ingest.storing import OverLimit, store_entries
from delaybridge.message import Limits, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Steps
from tests.rigs.ingest_store import BUCKETS, CREATED, ModelStore

FULL = b"full"


class Room:
    """A quota that has room for so many payloads `FULL`, and for all others."""

    under_way = nullcontext

    def __init__(self, left: int) -> None:
        self.left = left

    def read_counts(self, buckets: object) -> Steps[bool]:
        return True
        yield []

    def refusal(self, payload: bytes) -> StoreFull | None:
        is_full = payload == FULL and not self.left
        return StoreFull(limit="kafka:a: limits.destination_messages") if is_full else None

    def count(self, payload: bytes) -> None:
        self.left -= payload == FULL


def store(model: ModelStore, room: Room, entries: list[Entry]) -> list[Any]:
    calls: Any = Calls("ns", {}, BUCKETS, Limits())
    calls.quota = room
    answers: list[Any] = model.complete(store_entries(calls, entries))
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]


def message(id: str, payload: bytes = b"p", source: str = "", offset: int = -1) -> Schedule:
    accepted = Accepted(id, b"k" if source else id.encode(), "+0", 255, payload)
    stamp = id.encode().ljust(4)
    return Schedule(accepted, stamp, OnConflict.FAIL, payload, source=source, offset=offset)


def test_other_destinations_and_sources_go_on() -> None:
    model, room = ModelStore(), Room(1)
    entries: list[Entry] = [
        message("a", FULL, "t:0", 1),
        message("b", FULL, "t:0", 2),
        message("c", b"p", "t:0", 3),  # its bucket would count b as read
        message("d", b"p", "u:0", 1),
        message("e", FULL),
        message("f"),
        Quarantine("q", b"qqqq", b"as it came", "ingress:bad_time"),
    ]
    late, now = OverLimit, CREATED
    assert store(model, room, entries) == [now, late, late, now, late, now, now]
    assert model.pending().keys() == {"a", "d", "f", "q"}
    assert {bucket.read.get("t:0", 1) for bucket in model.buckets} == {1}
    # all of it is stored, in its order, once there is room
    room.left = 2
    assert store(model, room, [entries[1], entries[2], entries[4]]) == [now] * 3


def test_a_cancel_of_what_waits_waits_with_it() -> None:
    model, room = ModelStore(), Room(0)
    entries: list[Entry] = [message("x", FULL), Change("x", b"x", b"cccc"), message("y")]
    assert store(model, room, [message("x", b"older")]) == [CREATED]
    assert store(model, room, entries) == [OverLimit, OverLimit, CREATED]
    assert model.pending() == {"x": b"older", "y": b"p"}  # the older one was not cancelled

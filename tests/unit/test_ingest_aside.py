"""What waits for a bucket, and what may not overtake it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreDamaged, StoreUnavailable
from delaybridge.ingest.aside import Aside
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.ingest.kafka.offsets import PassedOffsets
from delaybridge.ingest.kafka.records import RawRecord
from delaybridge.ingest.kafka.topics import Topic
from delaybridge.ingest.storing import OverLimit
from delaybridge.message import Answer, OnConflict
from delaybridge.store.protocol import verbs

BUCKETS = 4
DAMAGED = StoreDamaged("a key is damaged")


class Held(msgspec.Struct):
    entry: Entry
    blocks: bool = False
    origin: str | None = None


class NoWait:
    """An `EntryStore` without a store."""

    buckets = BUCKETS

    async def pause(self, errors: Any, pause_s: float) -> None:
        pass


def aside(told: list[Sequence[str]] | None = None) -> Aside[Held]:
    def tell() -> None:
        if told is not None:
            told.append(made.faults(made.messages))

    store: Any = NoWait()
    made: Aside[Held] = Aside(store, tell)
    return made


def key_of(bucket: int) -> bytes:
    return next(b"%d" % n for n in range(100) if verbs.bucket_of(b"%d" % n, BUCKETS) == bucket)


def message(id: str, bucket: int, origin: str | None = None) -> Held:
    accepted = Accepted(id, key_of(bucket), "+0", 255, b"p")
    return Held(Schedule(accepted, b"aaaa", OnConflict.FAIL, b"p"), origin=origin)


def cancel(id: str, origin: str | None = None) -> Held:
    return Held(Change(id, None, b"aaaa"), origin=origin)


def test_only_what_might_overtake_joins() -> None:
    waiting = aside()
    refused, free = message("a", 0), message("b", 1)
    assert waiting.split([refused, free, cancel("c")])[:2] == [refused, free]
    assert waiting.take_refused([(refused, DAMAGED)]) == []
    same_id, behind_it = message("a", 2, "p"), message("d", 2, "p")
    later = [message("e", 0), free, cancel("c"), same_id, behind_it, message("f", 3, "p")]
    later.append(message("g", 2, "another"))
    assert waiting.split(later) == [free, *later[-2:]]
    assert waiting.messages == [refused, later[0], later[2], same_id, behind_it]


def test_a_change_that_joins_takes_what_came_before_it_in_its_id_along() -> None:
    """That may be for an id in flight: tried without it, the change would be done too early."""
    waiting = aside()
    refused = message("a", 0)
    waiting.take_refused([(refused, DAMAGED)])
    first, change = message("x", 1), cancel("x")
    assert waiting.split([first, change]) == []
    assert waiting.messages == [refused, first, change]


def test_what_joins_takes_what_came_before_it_in_its_partition_and_bucket_along() -> None:
    """Otherwise the bucket might read it first, and would skip the other one."""
    waiting = aside()
    refused = message("x", 0)
    waiting.take_refused([(refused, DAMAGED)])
    first, second, other = message("a", 1, "p"), message("x", 1, "p"), message("b", 1, "q")
    assert waiting.split([first, other, second]) == [other]
    assert waiting.messages == [refused, first, second]


def test_a_full_destination_holds_up_its_own_origin_alone() -> None:
    waiting = aside()
    full = OverLimit("kafka:a: limits.destination_messages")
    refused = message("a", 0, "p")
    assert waiting.take_refused([(refused, full)]) == []
    behind_it, cancelling = message("b", 0, "p"), cancel("x", "p")
    later = [behind_it, cancelling, message("c", 1, "p"), message("d", 0, "q"), cancel("y", "q")]
    later += [message("e", 0), cancel("z")]
    later.append(Held(Quarantine(key_of(0).decode(), b"aaaa", b"", "why"), blocks=True, origin="p"))
    assert waiting.split(later) == later[2:]
    assert waiting.messages == [refused, behind_it, cancelling]
    assert waiting.stuck is None
    (fault,) = waiting.faults([behind_it])
    assert "kafka:a: limits.destination_messages is reached" in fault
    assert waiting.faults([later[3]]) == []


def test_what_only_waits_for_an_id_in_flight_is_given_back_unless_it_would_overtake() -> None:
    waiting = aside()
    late = [(message("a", 0), Answer.IN_FLIGHT), (message("b", 0), DAMAGED)]
    late.append((message("c", 1), Answer.IN_FLIGHT))
    assert waiting.take_refused(late) == [late[2][0]]
    assert waiting.messages == [late[0][0], late[1][0]]


def test_some_hold_up_everything_of_their_origin() -> None:
    waiting = aside()
    quarantined = Held(Quarantine("q", b"aaaa", b"", "why"), blocks=True, origin="p")
    waiting.take_refused([(quarantined, DAMAGED)])
    assert waiting.split([message(f"m{bucket}", bucket, "p") for bucket in range(BUCKETS)]) == []
    sick = verbs.bucket_of(b"q", BUCKETS)
    others = [message(f"n{bucket}", bucket, "q") for bucket in range(BUCKETS)]
    assert waiting.split(others) == [*others[:sick], *others[sick + 1 :]]


async def test_what_joins_meanwhile_comes_after_what_is_left() -> None:
    told: list[Sequence[str]] = []
    waiting = aside(told)
    first, second, third = (message(id, 0) for id in "abc")
    waiting.take_refused([(first, DAMAGED), (second, DAMAGED)])
    tried: list[list[Held]] = []

    async def store(held: list[Held]) -> Aside[Held]:
        tried.append(held)
        left = aside()
        if len(tried) == 1:
            assert waiting.stuck is DAMAGED
            waiting.split([third])
            left.hold([(second, StoreUnavailable("silent"))])
        return left

    await waiting.empty(store)
    assert tried == [[first, second], [second, third]]
    assert ["a key is damaged" in str(faults) for faults in told] == [True, False, False]
    assert told[-1] == [] and waiting.split([third]) == [third]


def test_no_offset_passes_a_record_that_waits() -> None:
    topic, other = Topic("orders.delay", "id"), 1

    def read(*places: tuple[int, int]) -> dict[Topic, list[RawRecord]]:
        return {topic: [RawRecord(number, offset, None, b"", ()) for number, offset in places]}

    progress = PassedOffsets()
    held = [(topic, 0, 7), (topic, 0, 5)]
    assert progress.take_passed(read((0, 5), (0, 8), (other, 3)), held) == [
        (topic, 0, 5),
        (topic, 1, 4),
    ]
    assert progress.take_passed(read((0, 9)), held) == [(topic, 0, 5)]
    assert progress.take_passed({}, held) == []
    assert progress.take_passed({}, held[:1]) == [(topic, 0, 7)]
    assert progress.take_passed({}, []) == [(topic, 0, 10)]
    progress.forget([("orders.delay", 0)])  # another member is further by now
    assert progress.take_passed({}, []) == []
    assert progress.take_passed(read((0, 20)), []) == [(topic, 0, 21)]

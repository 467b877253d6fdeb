"""How ingest calls the store: order, calls and answers, against a small model of the scripts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreUnavailable, StoreWiped
from delaybridge.ingest.entries import Change, Entry, Quarantine, Schedule
from delaybridge.ingest.storing import Found, store_entries
from delaybridge.message import ConflictPolicy, Limits, OnConflict
from delaybridge.store.calls import Calls
from delaybridge.store.protocol import verbs
from delaybridge.store.protocol.verbs import RedisCommand
from tests.rigs.ingest_store import (
    BUCKETS,
    CANCELLED,
    CONFLICT,
    CREATED,
    DUPLICATE,
    IN_FLIGHT,
    UNKNOWN,
    ModelStore,
    bucket_of,
)

_stamps = count(1)


def stamp() -> bytes:
    return next(_stamps).to_bytes(4, "big")


def schedule(
    id: str,
    payload: bytes = b"p",
    *,
    key: bytes | None = None,
    source: str = "",
    offset: int = -1,
    policy: ConflictPolicy = OnConflict.FAIL,
) -> Schedule:
    accepted = Accepted(id, key or id.encode(), "+0", 255, payload)
    return Schedule(accepted, stamp(), policy, payload, source=source, offset=offset)


def read_at(offset: int, id: str, payload: bytes = b"p", **more: Any) -> Schedule:
    """The record at an offset of one source; all are in one bucket."""
    return schedule(id, payload, key=b"k", source="t:0", offset=offset, **more)


def cancel(
    id: str, key: bytes | None = None, source: str = "", offset: int = -1, **more: Any
) -> Change:
    return Change(id, key, stamp(), source, offset, **more)


def quarantine(id: str) -> Quarantine:
    return Quarantine(id, stamp(), b"as it came", "ingress:bad_time")


def new_calls() -> Calls:
    return Calls("ns", {}, BUCKETS, Limits())


def store(model: ModelStore, entries: Sequence[Entry]) -> list[Found]:
    answers: list[Found] = model.complete(store_entries(new_calls(), entries))
    return answers


@pytest.fixture
def model() -> ModelStore:
    return ModelStore()


class TestCalls:
    def test_each_bucket_gets_one_call_for_any_number_of_messages(self, model: ModelStore) -> None:
        entries: list[Entry] = [schedule(f"id-{n}") for n in range(100)]
        assert store(model, entries) == [CREATED] * 100
        assert sorted(map(bucket_of, model.called)) == list(range(BUCKETS))
        assert model.pending().keys() == {f"id-{n}" for n in range(100)}

    def test_each_bucket_gets_one_call_per_source(self, model: ModelStore) -> None:
        entries: list[Entry] = [
            schedule(f"{source}-{n}", key=b"k", source=source, offset=n)
            for n in range(5)
            for source in ("t:0", "t:1")
        ]
        assert store(model, entries) == [CREATED] * 10
        assert [command.args[6] for command in model.called] == ["t:0", "t:1"]
        (bucket,) = {bucket_of(command) for command in model.called}
        assert model.buckets[bucket].read == {"t:0": 4, "t:1": 4}

    def test_messages_that_do_not_fit_into_a_call_go_into_the_next(self, model: ModelStore) -> None:
        entries: list[Entry] = [schedule(f"id-{n}", b"x" * 2**20, key=b"k") for n in range(10)]
        assert store(model, entries) == [CREATED] * 10
        assert [command.args[9] for command in model.called] == [4, 4, 2]

    def test_messages_of_a_source_that_do_not_fit_are_left_for_later(
        self, model: ModelStore
    ) -> None:
        entries = [read_at(n, f"id-{n}", b"x" * 2**20) for n in range(10)]
        assert store(model, entries) == [CREATED] * 4 + [None] * 6
        assert store(model, entries[4:]) == [CREATED] * 4 + [None] * 2

    def test_a_message_larger_than_a_call_goes_alone(self, model: ModelStore) -> None:
        entries = [read_at(1, "large", b"x" * (5 * 2**20)), read_at(2, "small")]
        assert store(model, entries) == [CREATED, None]

    def test_a_call_has_one_conflict_policy(self, model: ModelStore) -> None:
        entries = [read_at(1, "a"), read_at(2, "b", policy=OnConflict.REPLACE), read_at(3, "c")]
        assert store(model, entries) == [CREATED, None, None]
        assert store(model, entries[1:]) == [CREATED, None]
        assert [command.args[1] for command in model.called] == [0, 2]

    def test_without_entries_nothing_is_called(self, model: ModelStore) -> None:
        assert store(model, []) == []
        assert not model.called


class TestSources:
    def test_entries_after_a_conflict_are_not_looked_at(self, model: ModelStore) -> None:
        store(model, [schedule("x", b"other", key=b"k")])
        other = next(f"far-{n}" for n in count() if crc(f"far-{n}") != crc("k"))
        entries = [read_at(n, id) for n, id in enumerate("axb", 1)]
        entries.append(schedule(other, source="t:0", offset=4))
        assert store(model, entries) == [CREATED, CONFLICT, None, CREATED]
        assert store(model, entries[2:3]) == [CREATED]

    def test_entries_after_an_id_in_flight_wait_with_it(self, model: ModelStore) -> None:
        store(model, [schedule("x", key=b"k")])
        model.fired.add("x")
        entries = [read_at(n, id) for n, id in enumerate("axb")]
        assert store(model, entries) == [CREATED, IN_FLIGHT, None]
        model.fired.clear()
        model.buckets[crc("k")].messages.clear()  # settled
        assert store(model, entries[1:]) == [CREATED, CREATED]

    def test_records_that_were_read_before_are_skipped(self, model: ModelStore) -> None:
        entries = [read_at(n, f"id-{n}") for n in range(3)]
        assert store(model, entries) == [CREATED] * 3
        model.buckets[crc("k")].messages.clear()
        assert store(model, entries) == [DUPLICATE] * 3
        assert not model.pending()


class TestCancels:
    def test_a_cancel_asks_one_bucket_by_key_and_all_without_one(self, model: ModelStore) -> None:
        store(model, [schedule("x", key=b"k")])
        model.called.clear()
        assert store(model, [cancel("x", b"other key" * 2)]) in ([UNKNOWN], [CANCELLED])
        assert len(model.called) == 1
        model.called.clear()
        assert store(model, [cancel("x")]) in ([UNKNOWN], [CANCELLED])
        assert sorted(map(bucket_of, model.called)) == list(range(BUCKETS))
        assert bucket_of(model.called[0]) == crc("x")
        assert not model.pending()

    def test_the_answer_is_that_of_the_message_that_has_gone_furthest(
        self, model: ModelStore
    ) -> None:
        keys_ = {crc(f"key-{n}"): b"key-%d" % n for n in range(50)}
        assert len(keys_) == BUCKETS
        store(model, [schedule("x", key=key) for key in keys_.values()])
        assert store(model, [cancel("x")]) == [CANCELLED]
        store(model, [schedule("x", key=keys_[0])])
        model.fired.add("x")
        assert store(model, [cancel("x")]) == [IN_FLIGHT]

    def test_a_cancel_takes_effect_in_its_place(self, model: ModelStore) -> None:
        entries: list[Entry] = [
            schedule("x", b"1"),
            cancel("x", b"x"),
            schedule("x", b"2"),
            cancel("y"),
        ]
        assert store(model, entries) == [CREATED, CANCELLED, CREATED, UNKNOWN]
        assert model.pending() == {"x": b"2"}

    def test_a_cancel_takes_effect_in_a_bucket_never_used(self) -> None:
        model = ModelStore([False] * BUCKETS)
        entries: list[Entry] = [
            schedule("x"),
            cancel("x"),
            schedule("y", key=b"x"),
            cancel("y", b"x"),
        ]
        assert store(model, entries) == [CREATED, CANCELLED, CREATED, CANCELLED]
        assert not model.pending()

    def test_a_cancel_that_was_read_before_does_nothing(self, model: ModelStore) -> None:
        store(model, [schedule("x", key=b"k", source="t:0", offset=7)])
        assert store(model, [cancel("x", b"k", "t:0", 6)]) == [UNKNOWN]
        assert store(model, [cancel("x", b"k", "t:0", 8)]) == [CANCELLED]

    def test_a_tombstone_counts_as_read_only_if_it_cancelled(self, model: ModelStore) -> None:
        instead = schedule("null", key=b"k", source="t:0", offset=5)
        tombstone = cancel("k", b"k", "t:0", 5, otherwise=instead)
        assert store(model, [tombstone]) == [UNKNOWN]
        assert store(model, [instead]) == [CREATED]
        assert store(model, [tombstone]) == [UNKNOWN]
        assert store(model, [instead]) == [DUPLICATE]
        # read again later, it undoes nothing that came after it
        store(model, [schedule("k", source="t:0", offset=6)])
        again = cancel("k", b"k", "t:0", 7, otherwise=instead)
        assert store(model, [again]) == [CANCELLED]
        store(model, [schedule("k", source="t:0", offset=8)])
        model.buckets[crc("k")].cancelled.clear()  # calls are remembered for ten minutes
        assert store(model, [again]) == [UNKNOWN]
        assert "k" in model.pending()


class TestBirth:
    def test_a_bucket_never_used_is_initialized(self) -> None:
        model = ModelStore([False] * BUCKETS)
        entries: list[Entry] = [schedule(f"id-{n}", source="t:0", offset=n) for n in range(20)]
        assert store(model, [*entries, quarantine("q")]) == [CREATED] * 21
        assert all(bucket.is_born for bucket in model.buckets)

    def test_a_wiped_store_raises(self) -> None:
        with pytest.raises(StoreWiped):
            store(ModelStore(birth="another"), [schedule("x")])


class TestQuarantine:
    def test_a_quarantined_message_is_in_the_dead_set_and_advances_no_source(
        self, model: ModelStore
    ) -> None:
        entries: list[Entry] = [
            schedule("a", key=b"q", source="t:0", offset=1),
            quarantine("q"),
            schedule("b", key=b"q", source="t:0", offset=3),
        ]
        assert store(model, entries) == [CREATED] * 3
        assert model.buckets[crc("q")].dead == {"q"}
        assert [command.name for command in model.called] == ["schedule", "quarantine"]

    def test_a_quarantined_message_that_is_read_again_is_kept_once(self, model: ModelStore) -> None:
        one = quarantine("q")
        assert store(model, [one]) == store(model, [one]) == [CREATED]


class Sick(ModelStore):
    """One bucket refuses its calls, or those of the scripts that are named."""

    def __init__(
        self, bucket: int, *names: str, error: Exception | None = None, **more: Any
    ) -> None:
        super().__init__(**more)
        self.bucket, self.names = bucket, names
        self.error = error or StoreUnavailable("silent")

    def run(self, command: RedisCommand[Any]) -> Any:
        is_sick = not command.is_plain and bucket_of(command) == self.bucket
        if is_sick and (not self.names or command.name in self.names):
            return self.error
        return super().run(command)


class TestOneBucketFails:
    def test_the_others_keep_their_answers(self) -> None:
        model = Sick(crc("x"))
        others = [schedule(f"id-{n}") for n in range(20) if crc(f"id-{n}") != crc("x")]
        answers = store(model, [schedule("x"), *others])
        assert answers == [model.error] + [CREATED] * len(others)

    def test_buckets_never_used_are_initialized(self) -> None:
        other = next(f"id-{n}" for n in count() if crc(f"id-{n}") != crc("x"))
        model = Sick(crc("x"), are_born=[False] * BUCKETS)
        assert store(model, [schedule("x"), schedule(other)]) == [model.error, CREATED]

    def test_a_record_lost_meanwhile_drops_no_answer(self) -> None:
        other = next(f"id-{n}" for n in count() if crc(f"id-{n}") != crc("x"))
        model = RecordLost([number != crc("x") for number in range(BUCKETS)])
        assert store(model, [schedule("x"), schedule(other)]) == [model.error, CREATED]

    def test_a_change_that_follows_in_the_same_id_has_its_own_answer(self) -> None:
        """A full Redis refuses a message and takes its cancel."""
        model = Sick(crc("x"), "schedule")
        entries: list[Entry] = [schedule("x", b"1"), cancel("x", b"x"), cancel("y", b"x")]
        assert store(model, entries) == [model.error, UNKNOWN, UNKNOWN]
        model.names = ("none",)
        assert store(model, entries[:2]) == [CREATED, CANCELLED]

    def test_a_cancel_that_asks_all_is_done_if_another_bucket_had_the_message(self) -> None:
        model = Sick((crc("x") + 1) % BUCKETS)
        store(model, [schedule("x")])
        assert store(model, [cancel("x"), cancel("y")]) == [CANCELLED, model.error]


class RecordLost(ModelStore):
    """The namespace's record cannot be read a second time."""

    error, reads = StoreUnavailable("silent"), 0

    def run(self, command: RedisCommand[Any]) -> Any:
        if command.is_plain and command.name != "INFO":
            self.reads += 1
            if self.reads > 1:
                return self.error
        return super().run(command)


class Watched(list[Entry]):
    """Entries to which a test can hold a weak reference."""


class Down(ModelStore):
    """Answers no script."""

    def run(self, command: RedisCommand[Any]) -> Any:
        return super().run(command) if command.is_plain else StoreUnavailable("down")


def test_entries_are_freed_with_the_error_of_their_call() -> None:
    """While Redis is down they are tried again and again; what each try made must not pile up."""
    entries = Watched([schedule("x")])
    alive = weakref.ref(entries)
    gc.collect()
    gc.disable()
    try:
        (error,) = store(Down(), entries)
        del entries
        assert alive() is None
    finally:
        gc.enable()


def crc(shard_key: str) -> int:
    return verbs.bucket_of(shard_key.encode(), BUCKETS)


IDS = st.sampled_from("abcde")
BASES = st.one_of(st.none(), st.sampled_from([b"k", b"l", b"m"]))
POLICIES = st.sampled_from([OnConflict.FAIL, OnConflict.REPLACE])
ANYTHING = st.one_of(  # without keys, as AMQP's messages come
    st.builds(schedule, IDS, st.sampled_from([b"1", b"2"]), policy=POLICIES),
    st.builds(cancel, IDS),
    st.builds(quarantine, IDS),
)


class TestOrder:
    @given(st.lists(ANYTHING, max_size=30), st.tuples(*[st.booleans()] * BUCKETS))
    def test_many_entries_in_one_call_do_the_same_as_one_by_one(
        self, entries: list[Entry], are_born: Sequence[bool]
    ) -> None:
        at_once, one_by_one = ModelStore(are_born), ModelStore(are_born)
        answers = store(at_once, entries)
        assert answers == [store(one_by_one, [entry])[0] for entry in entries]
        assert at_once.buckets == one_by_one.buckets

    @given(
        st.lists(st.tuples(IDS, st.sampled_from([b"1", b"2"]), BASES, POLICIES), max_size=30),
        st.lists(st.booleans(), max_size=60),
    )
    def test_no_record_of_a_source_is_passed_over(
        self, messages: list[tuple[str, bytes, bytes | None, ConflictPolicy]], fired: list[bool]
    ) -> None:
        entries: list[Entry] = [
            schedule(id, payload, key=key, policy=policy, source="t:0", offset=n)
            for n, (id, payload, key, policy) in enumerate(messages)
        ]
        model = ModelStore()
        changes = iter(fired)
        left, stored = entries, []
        while left:
            model.fired = {id for id in "abcde" if next(changes, False)}
            answers = store(model, left)
            again = []
            for entry, answer in zip(left, answers, strict=True):
                if answer in (None, IN_FLIGHT):
                    again.append(entry)
                else:  # a conflict is quarantined, and so done
                    stored.append(entry)
            left = again
        by_bucket: dict[int, list[int]] = {}
        for entry in stored:
            assert isinstance(entry, Schedule)
            place = verbs.bucket_of(entry.accepted.shard_key, BUCKETS)
            by_bucket.setdefault(place, []).append(entry.offset)
        assert sorted(sum(by_bucket.values(), [])) == list(range(len(entries)))
        assert all(offsets == sorted(offsets) for offsets in by_bucket.values())

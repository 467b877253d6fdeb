"""How a record of a delay topic is read: every row of the list of bad input."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delaybridge.ingest.entries import Change, Quarantine
from delaybridge.ingest.kafka.group import member_settings
from delaybridge.ingest.kafka.offsets import skips
from delaybridge.ingest.routes import Route
from delaybridge.message import MessagePlan, OnConflict, Record, decode_record, rank_of
from tests.rigs.raw_records import (
    DELAY,
    DUE,
    FAR_MS,
    HOUR,
    TOPIC_ID,
    Pairs,
    kept,
    read,
    reader,
    reason,
    record,
    scheduled,
)

REFUSED: dict[str, tuple[Pairs | None, str]] = {
    "K-1": ([(DELAY, b"")], f"bad_time {DELAY}"),
    "K-3": ([(DELAY, (5000).to_bytes(8, "big"))], f"binary_number {DELAY}: 8 bytes"),
    "K-3 int": ([("x-delay", (5000).to_bytes(4, "big"))], "binary_number x-delay: 4 bytes"),
    "K-4": ([(DELAY, None)], f"bad_header {DELAY}: null"),
    "K-5": ([(DELAY, b"5s"), (DELAY, b"6s")], f"duplicate_header {DELAY}"),
    "K-6": ([(DELAY, b"\xff\xfe5000")], f"bad_time {DELAY}: not UTF-8"),
    "K-7": ([(DELAY, "5000".encode("utf-16-le"))], f"binary_number {DELAY}"),
    "K-7 be": ([(DELAY, "50000".encode("utf-16"))], f"bad_time {DELAY}"),
    "K-9": ([(DELAY, b"5000.5")], f"bad_time {DELAY}"),
    "K-10": ([(f"h{n}", b"") for n in range(1001)], "too_many_headers headers: 1001"),
    "K-10 bytes": ([("h", b"x" * 40_000)], "headers_too_large headers"),
    "K-11": (None, "bad_header headers: a header's name"),
    "K-26": ([("delaybridge-destination", b"kafka:orders.delay")], "self_loop"),
    "K-29": ([(DUE, b"2030-01-01T00:00:00")], f"zone_required {DUE}"),
    "K-30": ([(DELAY, b"5s"), (DUE, b"2030-01-01T00:00:00Z")], "time_ambiguous"),
    "K-30 plugin": ([("x-delay", b"5"), (DELAY, b"5s")], "time_ambiguous"),
    "too far": ([(DELAY, b"4000d")], "too_far delay: "),
    "due too far": ([(DUE, str(FAR_MS - 1).encode())], "too_far"),
    "negative": ([(DELAY, b"-5s")], f"negative_delay {DELAY}"),
    "seconds": ([(DUE, b"1900000000")], f"looks_like_seconds {DUE}"),
    "unknown": ([("delaybridge-dely", b"5s")], "reserved_header delaybridge-dely"),
    "id empty": ([("delaybridge-id", b"")], "bad_id"),
    "id long": ([("delaybridge-id", b"x" * 256)], "bad_id"),
    "id no text": ([("delaybridge-id", b"\xff")], "bad_id"),
    "cancel without id": ([("delaybridge-cancel", b"true")], "bad_id"),
    "cancel what": ([("delaybridge-cancel", b"yes")], "bad_flag"),
    "elsewhere": ([("delaybridge-destination", b"kafka:pay")], "destination_not_allowed"),
    "no topic": ([("delaybridge-destination", b"kafka:a b")], "bad_destination"),
    "no broker": ([("delaybridge-destination", b"nowhere:a")], "unknown_destination"),
}


@pytest.mark.parametrize(("headers", "why"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_record_is_quarantined_unchanged(headers: Pairs | None, why: str) -> None:
    one = reader()
    entry = one.read(record(headers))
    assert reason(entry).startswith(f"ingress:{why}")
    # and kept unchanged, for the destination it would have had
    assert isinstance(entry, Quarantine)
    assert decode_record(entry.payload) == Record(
        "kafka:orders", b"body", tuple(headers or ()), None, b"k"
    )
    assert entry.own_id == f"orders.delay-{TOPIC_ID}-00003-0000000000000000007"
    assert entry.id == f"{entry.own_id}~1"
    # read again it is the same, except for how far ahead its time is
    again = one.read(record(headers))
    assert isinstance(again, Quarantine)
    assert (again.id, again.payload) == (entry.id, entry.payload)


ACCEPTED: dict[str, tuple[Pairs, str]] = {
    "K-2": ([(DELAY, b"5000")], "+5000"),
    "K-5 twice the same": ([(DELAY, b"5s"), (DELAY, b"5s")], "+5000"),
    "K-8": ([(DELAY, b"5000ms")], "+5000"),
    "unit": ([(DELAY, b"15m")], "+900000"),
    "plugin": ([("x-delay", b"5000")], "+5000"),
    "plugin 0": ([("x-delay", b"0")], "+0"),
    "plugin negative": ([("x-delay", b"-1")], "+0"),
    "commercial": ([("x-opt-delivery-delay", b"5000")], "+5000"),
    "K-31": ([(DUE, b"2020-01-01T00:00:00Z")], "1577836800000"),
    "due": ([(DUE, b"1577836800000")], "1577836800000"),
    "none": ([], "+0"),
    "others": ([("traceparent", b"00"), ("ce_id", None)], "+0"),
}


@pytest.mark.parametrize(("headers", "when"), ACCEPTED.values(), ids=ACCEPTED)
def test_a_record_is_scheduled_at_the_time_in_its_headers(headers: Pairs, when: str) -> None:
    entry = scheduled(read(headers))
    assert entry.accepted.when == when
    assert entry.accepted.id == f"orders.delay-{TOPIC_ID}-00003-0000000000000000007"
    assert (entry.source, entry.offset, entry.policy) == (f"{TOPIC_ID}:3", 7, OnConflict.FAIL)
    others = tuple((n, v) for n, v in headers if not n.startswith("delaybridge-"))
    assert kept(entry) == Record("kafka:orders", b"body", others, None, b"k")


class TestKeyValueAndPlace:
    @pytest.mark.parametrize(
        "key", [None, b"", b"\xff", b"k" * 2**20], ids=["none", "empty", "bytes", "1 MiB"]
    )
    def test_any_key_is_kept(self, key: bytes | None) -> None:  # K-12, K-13
        entry = scheduled(read(HOUR, key=key))
        assert kept(entry).key == key
        assert entry.accepted.shard_key == (entry.accepted.id.encode() if key is None else key)

    @pytest.mark.parametrize("value", [None, b"", b"\x00\x00\x00\x00\x07avro"])
    def test_any_value_is_kept(self, value: bytes | None) -> None:  # K-32
        assert kept(read(HOUR, value=value)).body == value

    def test_a_value_that_is_too_large_is_quarantined_whole(self) -> None:  # K-15
        entry = reader(body_bytes=10).read(record(HOUR, value=b"x" * 11))
        assert reason(entry).startswith("ingress:body_too_large body: 11 bytes")
        assert isinstance(entry, Quarantine)
        assert decode_record(entry.payload).body == b"x" * 11

    @pytest.mark.parametrize("timestamp_ms", [-1, 0, FAR_MS])
    def test_the_record_s_own_timestamp_is_ignored(self, timestamp_ms: int) -> None:  # K-19
        assert read(HOUR, timestamp_ms=timestamp_ms) == read(HOUR)

    def test_the_partition_is_kept_only_if_the_settings_say_so(self) -> None:
        assert kept(read(HOUR)).partition is None
        assert kept(reader(keep_partition=True).read(record(HOUR))).partition == 3

    def test_headers_may_give_an_id_and_a_destination(self) -> None:
        headers: Pairs = [
            *HOUR,
            ("delaybridge-id", "é".encode()),
            ("delaybridge-destination", b"kafka:pay"),
        ]
        entry = reader(allowed=("kafka:p*",)).read(record(headers))
        assert scheduled(entry).accepted.id == "é"
        assert kept(entry).destination == "kafka:pay"

    def test_headers_may_ask_for_everything_that_a_client_may(self) -> None:
        asked: Pairs = [
            ("delaybridge-priority", b"9"),
            ("delaybridge-ttl", b"15m"),
            ("delaybridge-at-most-once", b"true"),
            ("delaybridge-key", b"order-1"),
            ("delaybridge-on-conflict", b"replace"),
        ]
        entry = scheduled(read([*asked, *HOUR]))
        assert entry.policy is OnConflict.REPLACE
        assert (entry.accepted.rank, entry.accepted.shard_key) == (rank_of(9), b"order-1")
        expected = Record("kafka:orders", b"body", (), None, b"order-1", None, 900_000, True)
        assert kept(entry) == expected
        fraction = scheduled(read([("x-delay", b"3599999.5")]))
        assert fraction.accepted.when == "+3600000"

    def test_headers_may_give_a_retry_plan(self) -> None:
        entry = read([("delaybridge-max-attempts", b"3"), ("own", b"kept"), *HOUR])
        assert kept(entry).retry == MessagePlan(max_attempts=3)
        assert kept(entry).headers == (("own", b"kept"),)

    def test_delaybridge_s_headers_of_an_earlier_delivery_are_removed(self) -> None:
        headers: Pairs = [
            ("delaybridge-due-ms", b"1"),
            ("delaybridge-attempt", b"2"),
            ("own", b"kept"),
        ]
        assert kept(read(headers)).headers == (("own", b"kept"),)

    def test_a_header_named_almost_like_an_instruction_is_counted(self) -> None:
        one = reader()
        assert scheduled(one.read(record([("X-Delay", b"5000")]))).accepted.when == "+0"
        one.read(record(HOUR))
        assert one.near_misses == 1


class TestIds:
    def test_a_recreated_topic_has_other_ids_and_another_source(self) -> None:  # K-23
        old, new = (scheduled(reader(id).read(record(HOUR))) for id in (TOPIC_ID, "x" * 22))
        assert old.accepted.id != new.accepted.id
        assert old.source != new.source
        assert old.stamp != new.stamp

    def test_without_topic_ids_only_the_stamp_identifies_a_redelivery(self) -> None:
        entry = scheduled(reader("").read(record(HOUR)))
        assert (entry.source, entry.policy) == ("", OnConflict.FAIL)
        assert entry.accepted.id == "orders.delay-00003-0000000000000000007"

    @given(
        st.lists(st.tuples(st.integers(0, 99_999), st.integers(0, 2**63 - 1)), max_size=20),
        st.integers(1, 249),
        st.integers(80, 255),
    )
    def test_ids_sort_as_read_fit_and_differ(
        self, places: list[tuple[int, int]], length: int, id_bytes: int
    ) -> None:
        route = Route("kafka", "kafka", "t" * length, "target")
        one = reader(route=route, id_bytes=id_bytes)
        reads = [record(HOUR, partition=p, offset=o) for p, o in sorted(set(places))]
        ids = [scheduled(one.read(each)).accepted.id for each in reads]
        assert ids == sorted(ids)
        spoilt = [one.read(replace(each, headers=None)) for each in reads]
        kept_ids = [entry.id for entry in spoilt if isinstance(entry, Quarantine)]
        assert len({*ids, *kept_ids}) == 2 * len(reads)
        assert all(len(id.encode()) <= id_bytes for id in (*ids, *kept_ids))

    @given(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 9))))
    def test_each_record_has_its_own_stamp(self, places: set[tuple[str, int, int]]) -> None:
        stamps = [
            scheduled(
                reader(topic * 22).read(record(HOUR, partition=partition, offset=offset))
            ).stamp
            for topic, partition, offset in places
        ]
        assert len(set(stamps)) == len(places)
        assert {len(stamp) for stamp in stamps} <= {4}


class TestCancel:
    def test_a_header_cancels(self) -> None:
        headers: Pairs = [("delaybridge-cancel", b"true"), ("delaybridge-id", b"x")]
        entry = read(headers)
        assert isinstance(entry, Change)
        assert (entry.id, entry.shard_key, entry.offset) == ("x", b"k", 7)
        without_key = read(headers, key=None)
        assert isinstance(without_key, Change)
        assert without_key.shard_key is None

    def test_a_header_reschedules(self) -> None:
        headers: Pairs = [("delaybridge-reschedule", b"true"), ("delaybridge-id", b"x"), *HOUR]
        for more, shard_key in (([], b"k"), ([("delaybridge-key", b"order-1")], b"order-1")):
            entry = read([*headers, *more])
            assert isinstance(entry, Change)
            assert (entry.id, entry.shard_key, entry.when) == ("x", shard_key, "+3600000")

    def test_a_tombstone_cancels_or_is_a_message(self) -> None:
        entry = read([], value=None)
        assert isinstance(entry, Change)
        assert (entry.id, entry.shard_key) == ("k", b"k")
        assert entry.otherwise is not None
        assert kept(entry.otherwise) == Record("kafka:orders", None, (), None, b"k")
        assert entry.stamp == entry.otherwise.stamp

    @pytest.mark.parametrize("key", [None, b"", b"\xff"], ids=["none", "empty", "no text"])
    def test_a_tombstone_whose_key_cannot_be_an_id_is_a_message(self, key: bytes | None) -> None:
        assert kept(read([], value=None, key=key)).key == key

    def test_a_null_value_with_any_header_is_a_message(self) -> None:
        assert kept(read([("a", b"")], value=None)).body is None


class TestSettings:
    def test_the_offset_to_skip_is_the_last_one_not_read(self) -> None:
        assert skips(["orders.delay/3=41", "a/0=0"]) == {("orders.delay", 3): 42, ("a", 0): 1}

    @pytest.mark.parametrize("window_bytes", [1, 32 * 2**20, 2**40])
    def test_librdkafka_accepts_the_settings_of_any_window_and_lease(
        self, window_bytes: int
    ) -> None:
        for silent_ms in (100, 600_000):
            settings = member_settings(group="g", window_bytes=window_bytes, silent_ms=silent_ms)
            Consumer({**settings, "log_level": 0}).close()

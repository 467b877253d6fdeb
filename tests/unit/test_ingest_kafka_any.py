"""Any record of a delay topic, whatever was read before it, and records in etf1's dialect."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.ingest.entries import Change, Quarantine, Schedule
from delaybridge.message import OnConflict, Record, decode_record
from tests.rigs.raw_records import (
    DELAY,
    DUE,
    HOUR,
    TOPIC_ID,
    Pairs,
    kept,
    reader,
    reason,
    record,
    scheduled,
)

NOW_S = int(time.time())
ETF1: Pairs = [
    ("scheduler-epoch", b"%d" % (NOW_S + 3600)),
    ("scheduler-target-topic", b"videos"),
    ("scheduler-target-key", b"vid1"),
    ("own", b"\xff"),
]
ETF1_READER = reader(allowed=("kafka:videos",))


class TestMemory:
    @pytest.mark.parametrize(
        "headers",
        [
            *(HOUR, [], [("own", b"1"), *HOUR], [("delaybridge-delay", b"20y")]),
            *([("delaybridge-due", b"2000000000000")], [("delaybridge-due", b"1")]),
            *([*HOUR, ("delaybridge-destination", b"kafka:audit")], [("X-Delay", b"5")]),
            *([*HOUR, ("delaybridge-destination", b"kafka:other")], [("own", None)]),
            *([*HOUR, ("delaybridge-id", b"mine")], [*HOUR, ("delaybridge-id", b" ")]),
            *([*HOUR, ("delaybridge-key", b"other")], [*HOUR, ("delaybridge-priority", b"9")]),
            *([*HOUR, ("delaybridge-ttl", b"1m")], [*HOUR, ("delaybridge-on-conflict", b"keep")]),
            *([("delaybridge-cancel", b"true"), ("delaybridge-id", b"mine")], ETF1),
        ],
    )
    def test_a_record_is_read_the_same_whatever_was_read_before(self, headers: Pairs) -> None:
        given = {"keep_partition": True, "allowed": ("kafka:audit", "kafka:videos")}
        one_by_one, together = (reader(**given, body_bytes=50) for _ in "12")  # type: ignore[arg-type]
        product = itertools.product((b"body", b"b" * 51, None), (b"k", b"", None, b"\xff"))
        records = [
            record(headers, key=key, value=value, offset=offset, partition=offset % 4 // 2)
            for offset, (value, key) in enumerate(product)
        ]
        fresh = [reader(**given, body_bytes=50).read(one) for one in records]  # type: ignore[arg-type]
        for _ in range(2):
            assert [*map(one_by_one.read, records)] == fresh
            assert together.read_all(records) == fresh

    def test_of_records_with_the_same_headers_all_but_the_first_take_a_shorter_way(self) -> None:
        used, headers = reader(), [*HOUR]  # one list, equal to that of the batch before
        used.read_all([record(HOUR), record(HOUR)])
        records = [record(headers, offset=offset) for offset in range(9)]
        found: list[Any] = []
        used.read = lambda one: found.append(one) or reader().read(one)  # type: ignore[method-assign,func-returns-value]
        assert used.read_all(records) == [reader().read(one) for one in records]
        assert found == records[:1]


class TestEtf1:
    def test_a_record_in_etf1_s_dialect_is_scheduled(self) -> None:
        entry = scheduled(ETF1_READER.read(record(ETF1, key=b"video-1")))
        assert entry.policy is OnConflict.REPLACE
        assert (entry.source, entry.offset) == (f"{TOPIC_ID}:3", 7)
        accepted = entry.accepted
        assert (accepted.id, accepted.shard_key) == ("video-1", b"video-1")
        assert accepted.when == str((NOW_S + 3600) * 1000)
        stamps = (
            ("scheduler-timestamp", b"1700000000"),
            ("scheduler-key", b"video-1"),
            ("scheduler-topic", b"orders.delay"),
        )
        assert kept(entry) == Record("kafka:videos", b"body", (*ETF1, *stamps), None, b"vid1")

    def test_the_partition_is_kept_if_the_settings_say_so(self) -> None:
        entry = reader(keep_partition=True, allowed=("kafka:*",)).read(record(ETF1))
        assert kept(entry).partition == 3

    def test_without_a_target_key_the_message_has_none(self) -> None:
        entry = ETF1_READER.read(record(ETF1[:2], key=b"video-1"))
        assert kept(entry).key is None

    def test_an_epoch_in_the_past_is_due_now(self) -> None:
        headers: Pairs = [("scheduler-epoch", b"1577836800"), ETF1[1]]
        assert scheduled(ETF1_READER.read(record(headers))).accepted.when == "1577836800000"

    @pytest.mark.parametrize("headers", [ETF1, [("scheduler-x", b"")]], ids=["all", "any"])
    def test_a_null_value_cancels(self, headers: Pairs) -> None:  # K-14
        entry = ETF1_READER.read(record(headers, key=b"video-1", value=None))
        assert isinstance(entry, Change)
        assert (entry.id, entry.shard_key, entry.otherwise) == ("video-1", b"video-1", None)
        assert (entry.source, entry.offset) == (f"{TOPIC_ID}:3", 7)

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"key": None}, "bad_id key"),
            ({"key": b""}, "bad_id key"),
            ({"key": b"\xff"}, "bad_id key: not valid UTF-8"),
            ({"key": b"x" * 256}, "bad_id"),
            ({"headers": [ETF1[0]]}, "bad_destination scheduler-target-topic"),
            ({"headers": [ETF1[0], (ETF1[1][0], b"")]}, "bad_destination scheduler-target"),
            ({"headers": [ETF1[0], (ETF1[1][0], b"\xff")]}, "bad_destination"),
            ({"headers": [ETF1[0], (ETF1[1][0], b"pay")]}, "destination_not_allowed"),
            ({"headers": [ETF1[0], (ETF1[1][0], b"orders.delay")]}, "self_loop"),
            ({"headers": [("scheduler-epoch", b"soon"), ETF1[1]]}, "bad_time scheduler-epoch"),
            ({"headers": [("scheduler-epoch", b""), ETF1[1]]}, "bad_time scheduler-epoch"),
            ({"headers": [("scheduler-epoch", b"99999999999"), ETF1[1]]}, "too_far"),
        ],
    )
    def test_an_invalid_record_in_etf1_s_dialect_is_quarantined(
        self, change: dict[str, Any], why: str
    ) -> None:
        given = {"headers": ETF1, "key": b"video-1", **change}
        assert reason(ETF1_READER.read(record(**given))).startswith(f"ingress:{why}")


NAMES = st.one_of(
    st.sampled_from([DELAY, DUE, "delaybridge-id", "delaybridge-cancel", "x-delay"]),
    st.sampled_from(["delaybridge-destination", "scheduler-epoch", "scheduler-target-topic"]),
    st.text(max_size=5),
)
VALUES = st.one_of(
    st.none(),
    st.sampled_from([b"true", b"5000", b"1h", b"kafka:orders", b"%d" % (NOW_S + 5), b"orders"]),
    st.binary(max_size=9),
)


@given(
    st.one_of(st.none(), st.lists(st.tuples(NAMES, VALUES), max_size=5)),
    st.one_of(st.none(), st.binary(max_size=5)),
    st.one_of(st.none(), st.binary(max_size=5)),
    st.integers(-1, 2**62),
)
def test_any_record_is_scheduled_changed_or_quarantined(
    headers: Pairs | None, key: bytes | None, value: bytes | None, timestamp_ms: int
) -> None:
    given = record(headers, key=key, value=value, timestamp_ms=timestamp_ms)
    entry = reader().read(given)
    if isinstance(entry, Quarantine):
        spoilt = decode_record(entry.payload)
        assert (spoilt.body, spoilt.headers, spoilt.key) == (value, tuple(headers or ()), key)
    elif isinstance(entry, Schedule):
        sent = kept(entry)
        assert sent.body == value
        assert isinstance(sent.headers, tuple)
        assert not any(name.startswith("delaybridge-") for name, _ in sent.headers)
    elif isinstance(entry, Change) and entry.otherwise is not None:
        assert (value, headers) == (None, [])

"""Records, as they lie in the store: any is read back, and any other bytes are a decode error."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import DecodeError
from delaybridge.message import Record, decode_record, encode_record
from delaybridge.store.protocol.record import (
    BACKDATED,
    HEAD_SIZE,
    HEAD_VERSION,
    MAX_SCORE,
    ORPHAN_SCORE,
    Tried,
    due_score,
    joined_record,
    parse_tried,
    since_ms,
    split_record,
)

RECORDS = st.builds(
    Record,
    destination=st.text(alphabet=st.characters(codec="utf-8")),
    body=st.none() | st.binary(),
    headers=st.binary()
    | st.lists(
        st.tuples(st.text(alphabet=st.characters(codec="utf-8")), st.none() | st.binary())
    ).map(tuple),
    properties=st.none() | st.tuples(st.integers(0, 2**16 - 1), st.binary(), st.binary()),
    key=st.none() | st.binary(),
    partition=st.none() | st.integers(0, 2**31 - 1),
    ttl_ms=st.none() | st.integers(0, 2**53),
    at_most_once=st.booleans(),
)


@given(RECORDS)
def test_a_record_is_read_back_as_it_was(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    assert record.size >= len(record.body or b"")


@given(st.binary())
def test_bytes_that_are_not_a_record_are_a_decode_error(data: bytes) -> None:
    try:
        decode_record(data)
    except DecodeError as exc:
        assert exc.code == "undecodable"


@given(RECORDS, st.data())
def test_a_damaged_record_is_read_or_a_decode_error(record: Record, data: st.DataObject) -> None:
    encoded = bytearray(encode_record(record))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for damaged in (bytes(encoded), bytes(encoded[:cut])):
        try:
            decode_record(damaged)
        except DecodeError:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode(["d"]),
        msgspec.msgpack.encode({"destination": "d", "body": b""}),
        msgspec.msgpack.encode(["d", "text", b"", None, None, None, None, "yes"]),
        msgspec.msgpack.encode([b"\xff", b"", b""]),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        encode_record(Record("d", b""))[:1].replace(b"\x98", b"\x99")
        + encode_record(Record("d", b""))[1:]
        + b"\x91" * 100_000,
        b"\x92\xa1\xff\xc4\x00",
    ],
)
def test_hostile_bytes_are_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="undecodable"):
        decode_record(data)


def test_a_record_of_a_later_version_with_more_fields_is_read() -> None:
    later = msgspec.msgpack.encode(["d", b"", b"", None, None, None, None, False, "more"])
    assert decode_record(later).destination == "d"


@given(st.binary(max_size=40))
def test_an_unknown_head_is_a_decode_error(data: bytes) -> None:
    try:
        _, payload = split_record(data)
    except DecodeError as exc:
        assert exc.code == "undecodable"
    else:
        assert len(data) >= HEAD_SIZE
        assert data[0] in (HEAD_VERSION, BACKDATED)
        assert payload == data[HEAD_SIZE : len(data) if data[0] == HEAD_VERSION else -8]


@pytest.mark.parametrize(
    ("text", "tried"),
    [
        (b"", Tried()),
        (b"0:1:", Tried(0, True)),
        (b"16:0:1800000000000", Tried(16, False, 1_800_000_000_000)),
        (b"by hand", Tried(0, True)),  # nobody knows: it may have been delivered
    ],
)
def test_the_note_of_failures_is_read_back(text: bytes, tried: Tried) -> None:
    assert parse_tried(text) == tried


def test_a_record_that_was_backdated_is_late_from_when_it_was_accepted() -> None:
    plain, accepted = joined_record(1000.5, 7, b"payload"), struct.Struct(">d").pack
    assert (split_record(plain), since_ms(plain)) == ((1000.5, b"payload"), 1000)
    for at_ms, late_from_ms in ((3000.0, 3000), (500.0, 1000), (float(MAX_SCORE), 1000)):
        record = bytes([BACKDATED]) + plain[1:] + accepted(at_ms)
        assert (split_record(record), since_ms(record)) == ((1000.5, b"payload"), late_from_ms)


@pytest.mark.parametrize("score", [-1.0, float(MAX_SCORE), float("nan")])
def test_a_head_without_a_due_time_is_a_decode_error(score: float) -> None:
    with pytest.raises(DecodeError, match="no due time"):
        split_record(joined_record(score, 7, b"payload"))


def test_an_orphan_is_parked_by_its_due_time() -> None:
    assert [due_score(ORPHAN_SCORE + due) for due in (0.0, 7.0)] == [0.0, 7.0]
    assert due_score(ORPHAN_SCORE - 1.0) == ORPHAN_SCORE - 1.0

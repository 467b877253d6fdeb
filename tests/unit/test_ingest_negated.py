"""A message of an exchange that a front made: the delay that its consumer sees, and the rest."""

from __future__ import annotations

import struct
from time import time_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.amqp.encoding import encode_table
from delaybridge.ingest.entries import Quarantine, Schedule
from delaybridge.ingest.negated import negated
from delaybridge.ingest.rabbitmq.messages import Immediate, MessageReader
from delaybridge.ingest.routes import fronted
from tests.rigs.header_tables import TABLES
from tests.rigs.raw_messages import delivered, raw, reader, record_of
from tests.rigs.raw_messages import read as read_by

D = fronted("rabbitmq", "orders", ".due")
SIGNED = {
    b"b": ">b", b"s": ">h", b"U": ">h", b"I": ">i", b"l": ">q", b"L": ">q", b"f": ">f", b"d": ">d"
}  # fmt: skip
UNSIGNED = {b"B": ">B", b"u": ">H", b"i": ">I"}
OF_D = {"source": D.source, "target": D.target, "intake": D.intake}


def long(value: int, name: str = "x-delay") -> bytes:
    return raw(name, b"l", struct.pack(">q", value))


def text(value: bytes, kind: bytes = b"S") -> bytes:
    return raw("x-delay", kind, struct.pack(">I", len(value)) + value)


def number(kind: bytes, layout: str, value: int) -> bytes:
    return raw("x-delay", kind, struct.pack(layout, value))


@pytest.mark.parametrize(
    ("table", "seen", "when"),
    [
        *((number(k, of, 100), number(k, of, -100), "+100") for k, of in SIGNED.items()),
        *((number(k, of, 200), long(-200), "+200") for k, of in UNSIGNED.items()),
        (number(b"i", ">I", 2**32 - 1), long(1 - 2**32), f"+{2**32 - 1}"),
        (long(2**32 + 7), long(-(2**32) - 7), f"+{2**32 + 7}"),
        (raw("x-delay", b"D", b"\1\0\0\0\x0f"), raw("x-delay", b"D", b"\1\xff\xff\xff\xf1"), "+2"),
        (text(b"5000"), text(b"-5000"), "+5000"),
        (text(b"0.5", b"x"), text(b"-0.5", b"x"), "+1"),
        (long(9, "x-opt-delivery-delay"), long(-9, "x-opt-delivery-delay"), "+9"),
        (long(7) + raw("x-opt-delivery-delay", b"V", b""),
         long(-7) + raw("x-opt-delivery-delay", b"V", b""), "+7"),
    ],
)  # fmt: skip
def test_a_consumer_sees_the_delay_as_a_negative_number_of_its_type(
    table: bytes, seen: bytes, when: str
) -> None:
    around = raw("a", b"I", b"\0\0\0\1"), raw("x-delaye", b"S", b"\0\0\0\1z")
    message = delivered(around[0] + table + around[1], message_id="m")
    for ways in (OF_D, {"negates": True}):
        one = reader(**ways)
        # The third is read by the form of the first two, the fourth with care again.
        again = delivered(around[0] + table + around[1], message_id="m", redelivered=True)
        for each in (message, message, message, again):
            entry = read_by(each, one)
            assert isinstance(entry, Schedule)
            assert entry.accepted.when == when
            assert record_of(entry).headers == around[0] + seen + around[1]
    assert isinstance(read_by(delivered(seen), reader(**OF_D)), Immediate), "delayed once"


@pytest.mark.parametrize(
    "value",
    [b"t\1", b"t\0", b"V", b"l" + bytes(8), b"I\xff\xff\xff\xfe", b"S\0\0\0\2-5", b"d" + bytes(8)],
)
def test_what_means_now_goes_at_once_with_its_header_as_it_was(value: bytes) -> None:
    table = raw("x-delay", value[:1], value[1:])
    entry = read_by(delivered(table), reader(**OF_D))
    assert isinstance(entry, Immediate)
    assert record_of(entry).headers == table
    assert str(entry.destination) == "rabbitmq:orders.due/some.key"


@pytest.mark.parametrize("value", [b"S\0\0\0\3abc", b"A\0\0\0\0", b"d\x7f\xf0" + bytes(6)])
def test_what_is_no_number_is_kept_as_it_was(value: bytes) -> None:
    table = raw("x-delay", value[:1], value[1:])
    entry = read_by(delivered(table), reader(**OF_D))
    assert isinstance(entry, Quarantine)
    assert record_of(entry).headers == table


def test_a_delay_exchange_keeps_the_header_and_refuses_true() -> None:
    assert record_of(read_by(delivered(long(5)))).headers == long(5)
    message = delivered(raw("x-delay", b"t", b"\1"))
    assert isinstance(read_by(message, reader(negates=True)), Quarantine)


@given(TABLES, st.integers(1, 2**62), st.integers(0, 8))
def test_all_other_headers_keep_their_bytes(
    table: dict[str, Any], delay_ms: int, place: int
) -> None:
    others = [encode_table([pair]) for pair in table.items() if pair[0][:2] != "x-"]
    before, after = b"".join(others[:place]), b"".join(others[place:])
    found = negated(before + long(delay_ms) + after)
    assert found == before + long(-delay_ms) + after
    assert negated(before + after) == before + after


@pytest.mark.parametrize(
    ("ago_ms", "counts_from_ms"), [(60_000, -60_000), (0, 0), (-60_000, 0), (None, None)]
)
def test_a_delay_counts_from_the_stamp_of_the_broker_but_from_none_in_the_future(
    ago_ms: int | None, counts_from_ms: int | None
) -> None:
    now_ms = time_ns() // 1_000_000
    stamp = raw("timestamp_in_ms", b"S", b"\0\0\0\1x")
    if ago_ms is not None:
        stamp = long(now_ms - ago_ms, "timestamp_in_ms")
    one = reader(**OF_D, trusts_stamp=True)
    for _ in range(3):
        when = _when(one, stamp)
        if counts_from_ms is None:
            assert when == "+100000"
        else:
            late_ms = int(when) - (now_ms + counts_from_ms + 100_000)
            assert 0 <= late_ms <= time_ns() // 1_000_000 - now_ms
    assert _when(reader(**OF_D), stamp) == "+100000", "only if the setting says so"


def _when(one: MessageReader, stamp: bytes) -> str:
    entry = read_by(delivered(stamp + long(100_000), message_id="m"), one)
    assert isinstance(entry, Schedule)
    assert record_of(entry).headers == stamp + long(-100_000)
    return str(entry.accepted.when)

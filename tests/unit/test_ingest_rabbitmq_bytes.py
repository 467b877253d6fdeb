"""Any bytes that a delay exchange delivers are kept as they are or quarantined, each time alike."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from delaybridge.amqp.decoding import split_content_header
from delaybridge.amqp.encoding import encode_table
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.rabbitmq.messages import RawMessage
from delaybridge.message import Limits
from tests.rigs.header_tables import NAMES, TABLES
from tests.rigs.raw_messages import STAMP, delivered, read, reader, record_of

INSTRUCTED = st.dictionaries(
    st.sampled_from(["delaybridge-id", "delaybridge-delay", "delaybridge-due-ms"]),
    st.sampled_from(["5000"]),
)
USABLE = TABLES.filter(
    lambda table: not any(n.lower().startswith(("delaybridge-", "x-")) for n in table)
)


@given(USABLE, INSTRUCTED, st.booleans(), st.binary(max_size=50), st.randoms())
def test_every_header_survives_byte_for_byte(
    table: dict[str, Any], ours: dict[str, Any], is_delayed: bool, body: bytes, random: Any
) -> None:
    if is_delayed and "delaybridge-delay" not in ours:
        table = table | {"x-delay": 5000}
    names = [*table, *ours]
    random.shuffle(names)
    message = delivered({name: (table | ours)[name] for name in names}, body, correlation_id="c")
    record = record_of(read(message, reader(limits=Limits(headers=99, headers_bytes=10**6))))
    assert record.headers == encode_table((n, table[n]) for n in names if n in table)
    content = split_content_header(message.header)
    assert record.properties == (content.flags, content.before, content.after)
    assert record.body == body


@given(st.binary(max_size=120), st.binary(max_size=20), st.binary(max_size=20), st.booleans())
def test_unreadable_bytes_are_quarantined(
    header: bytes, key: bytes, body: bytes, redelivered: bool
) -> None:
    entry = read(RawMessage(1, redelivered, key, header, body))
    if isinstance(entry, Quarantine):
        assert record_of(entry).body == body


def test_a_content_header_that_is_cut_short_is_quarantined() -> None:
    texts = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id")
    whole = delivered({"x-delay": 5}, priority=1, **dict.fromkeys(texts, "text"))
    for size in range(len(whole.header)):
        cut = replace(whole, header=whole.header[:size])
        assert isinstance(read(cut), Quarantine), size


@given(st.lists(st.tuples(NAMES, st.sampled_from(b"tbBsUuIilLfdDTVSxAF?")), max_size=4), st.data())
def test_tables_with_broken_entries_are_read_or_quarantined(
    names: list[tuple[str, int]], data: st.DataObject
) -> None:
    table = b"".join(
        bytes([len(name.encode())]) + name.encode() + bytes([kind]) + data.draw(st.binary())
        for name, kind in names
    )
    read(delivered(b"\x07x-delayI\0\0\0\x05" + table, message_id="m"))


# messages of a form seen before


PROPERTIES: list[dict[str, Any]] = [
    *({}, {"content_type": "text/plain"}, {"content_type": ""}, {"content_encoding": "gzip"}),
    *({"delivery_mode": 2}, {"priority": 9}, {"delivery_mode": 2, "priority": 9, "type": "t"}),
    *({"correlation_id": "c"}, {"correlation_id": ""}, {"reply_to": "r"}, {"expiration": "9"}),
    *({"timestamp": 2**40, "app_id": "app"}, {"content_type": "a", "content_encoding": "b"}),
]
HEADERS: list[dict[str, Any]] = [
    *({}, {"x-delay": 0}, {"x-delay": 2**39}, {"x-delay": "abc"}, {"X-Delay": 5}, {"trace": "00"}),
    *({"delaybridge-id": "other"}, {"delaybridge-key": "k"}, {"delaybridge-priority": 3}),
    *({"delaybridge-ttl": "1m"}, {"delaybridge-at-most-once": True}, {"x-delivery-count": 1}),
    *({"delaybridge-on-conflict": "keep"}, {"delaybridge-on-conflict": "replace"}),
    *({"delaybridge-destination": "rabbitmq:y/k"}, {"delaybridge-destination": "eu:y/k"}),
    *({"delaybridge-cancel": True}, {"delaybridge-reschedule": True}, {"x-delay": None}),
    *({"x-death": [{"queue": "x.delay", "count": 9}]}, {"h": "x" * 300}),
    {"x-delay": None, "delaybridge-due": 2 * 10**12},
    *({"delaybridge-max-attempts": 3}, {"delaybridge-backoff": "1s", "x-delay": 5}),
]
ODD_IDS = [b"order-17", b"m m", b" m", b"m ", b"", "é".encode(), b"\xff", b"a\nb", b"\x7f", None]


def variants(headers: dict[str, Any], properties: dict[str, Any]) -> Iterator[RawMessage]:
    """Two plain messages of one form, and then messages of it that are odd in one way."""
    yield delivered({"x-delay": 5}, message_id="m")  # with the same routing key
    make = partial(delivered, {"x-delay": 5} | headers, **properties)
    for id in (b"m", b"m", *ODD_IDS, b"i" * 100, b"i" * 101, b"i" * 255, b"m"):
        yield make() if id is None else make(message_id=id)
    for body, key in ((b"b" * 50, b"k"), (b"b" * 51, b"k"), (b"", b""), (b"b", b"\xff")):
        for _ in range(2):
            yield make(body, key=key, message_id="m")
    yield make(message_id="m", redelivered=True)
    whole = make(message_id="order-17")
    for size in range(len(whole.header)):
        yield replace(whole, header=whole.header[:size])


def comparable(entry: Any) -> Any:
    """The entry without an id drawn at random."""
    is_random = isinstance(entry, Quarantine) and not entry.own_id
    return replace(entry, id="") if is_random else entry


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_messages_of_a_form_seen_before_are_read_the_same(headers: dict[str, Any]) -> None:
    allowed, limits = ("rabbitmq:y", "eu:*"), Limits(body_bytes=50, id_bytes=100)
    for properties in PROPERTIES:
        quick, careful = (reader(allowed=allowed, limits=limits) for _ in range(2))
        for message in variants(headers, properties):
            quickly = quick.read(message, STAMP, "known")
            carefully = careful.read_carefully(message, STAMP, "known")
            assert comparable(quickly) == comparable(carefully), message
        assert (quick.near_misses, quick.without_id) == (careful.near_misses, careful.without_id)


def test_a_message_of_a_form_seen_before_is_not_read_carefully() -> None:
    mine = reader()
    first, *others = (delivered({"x-delay": 5}, message_id=f"m{n}") for n in range(4))
    for message in (first, first):
        mine.read_carefully(message, STAMP)
    mine.read_carefully = None  # type: ignore[assignment, method-assign]
    assert [mine.read(each, STAMP).accepted.id for each in others] == ["m1", "m2", "m3"]

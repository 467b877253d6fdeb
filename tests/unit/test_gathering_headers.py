"""Debounce and throttle in headers: of a delay exchange, a delay topic, and a drop-in producer."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from sqlite3 import connect
from typing import Any

import pytest

from delaybridge.errors import MessageError
from delaybridge.gathering import Debounce, Throttle
from delaybridge.ingest.counts import delays_of
from delaybridge.ingest.entries import Quarantine, Schedule
from delaybridge.ingest.instructions import instructions
from delaybridge.intercept import is_timed, timing_of
from delaybridge.message import (
    GatheredRecord,
    Message,
    Record,
    TenantRecord,
    decode_record,
    encode_record,
    planned,
    tenant_text,
)
from delaybridge.outbox.rows import SqlOutbox
from tests.rigs import raw_messages, raw_records

DEBOUNCED: dict[str, Any] = {
    "delaybridge-debounce": "page:42", "delaybridge-quiet": "30s", "delaybridge-longest": "10m",
}  # fmt: skip
THROTTLED: dict[str, Any] = {"delaybridge-throttle": "user:7", "delaybridge-every": 5000}


def test_headers_say_what_is_gathered() -> None:
    asked = instructions(DEBOUNCED.items())
    spans = timedelta(seconds=30), timedelta(minutes=10)
    assert asked.gathering == Debounce("page:42", *spans)
    assert (asked.name, asked.is_timed, asked.needs_store) == ("page:42", True, True)
    throttled = instructions(THROTTLED.items()).gathering
    assert throttled == Throttle("user:7", timedelta(seconds=5))
    assert instructions([("delaybridge-throttle", b"k")]).gathering == Throttle("k")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (DEBOUNCED | {"x-delay": 5}, "x-delay", "time_ambiguous"),
    (DEBOUNCED | {"delaybridge-throttle": "k"}, "delaybridge-throttle", "time_ambiguous"),
    (DEBOUNCED | {"delaybridge-every": "1m"}, "delaybridge-every", "bad_time"),
    ({"delaybridge-quiet": "1m"}, "delaybridge-quiet", "bad_time"),
    ({"delaybridge-every": "1m"}, "delaybridge-every", "bad_time"),
    (THROTTLED | {"delaybridge-longest": "1m"}, "delaybridge-longest", "bad_time"),
    (DEBOUNCED | {"delaybridge-debounce": 5}, "delaybridge-debounce", "bad_id"),
    (DEBOUNCED | {"delaybridge-quiet": "soon"}, "delaybridge-quiet", "bad_time"),
    (DEBOUNCED | {"delaybridge-cancel": True}, "delaybridge-reschedule", "bad_flag"),
]


@pytest.mark.parametrize(("headers", "field", "code"), REFUSED)
def test_what_is_wrong_is_named(headers: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(MessageError) as refused:
        instructions(headers.items())
    assert (refused.value.field, refused.value.code) == (field, code)


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_delay_exchange_gathers(redelivered: bool) -> None:
    """The third of a form is read in another way, and a message_id is not the key."""
    reader = raw_messages.reader()
    for n in range(3):
        message = raw_messages.delivered(DEBOUNCED, message_id=f"m{n}", redelivered=redelivered)
        entry = raw_messages.read(message, reader)
        assert isinstance(entry, Schedule)
        accepted = entry.accepted
        assert (accepted.id, accepted.when) == ("page:42", "~30000:600000")
        assert isinstance(decode_record(accepted.payload), GatheredRecord)
    assert delays_of([entry, entry])[1] == 60_000
    bad = raw_messages.delivered(DEBOUNCED | {"delaybridge-longest": "1s"})
    refused = raw_messages.read(bad, reader)
    assert isinstance(refused, Quarantine) and "longest" in refused.reason


def test_a_delay_topic_gathers() -> None:
    headers = [(name, str(value).encode()) for name, value in THROTTLED.items()]
    entry = raw_records.read(headers, key=b"of Kafka")
    assert isinstance(entry, Schedule)
    assert (entry.accepted.id, entry.accepted.when) == ("user:7", "^5000")
    record = decode_record(entry.accepted.payload)
    assert isinstance(record, GatheredRecord) and record.key == b"of Kafka"
    assert delays_of([entry])[1] == 5000


def test_a_drop_in_takes_headers_and_arguments() -> None:
    assert is_timed(DEBOUNCED)
    timing = timing_of(DEBOUNCED, None, None)
    assert timing is not None and isinstance(timing.delay, Debounce) and timing.id is None
    given = timing_of({}, Throttle("k"), None)
    assert given is not None and given.delay == Throttle("k")
    with pytest.raises(MessageError):
        timing_of(THROTTLED, "5m", None)


def test_an_outbox_refuses_it() -> None:
    with closing(connect(":memory:")) as connection, pytest.raises(MessageError) as refused:
        SqlOutbox().schedule(connection, Message("kafka:t", b"", delay=Throttle("k")))
    assert refused.value.field == "delay"


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_a_record_keeps_tenant_and_plan(tenant: str) -> None:
    plain = Record("kafka:t", b"x")
    made = planned(plain, None, tenant, Throttle("k"))
    payload = encode_record(made)
    assert payload[-9:] == b"\xcb" + bytes(8)  # where the script writes
    assert decode_record(payload) == made
    assert tenant_text(payload) == tenant
    assert tenant_text(payload[:1] + payload[-41:]) == tenant
    assert made.given_id(f"{tenant}/k" if tenant else "k", 7) == "k@7"
    # Of a later version: the plan is ignored, the rest is not.
    bad = payload.replace(b"\xc2\xc0", b"\xc2\x05")
    assert decode_record(bad) == made
    assert type(decode_record(encode_record(planned(plain, None, "acme")))) is TenantRecord

"""Retry plans: what is accepted, what is stored, and what versions without plans read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import accept
from delaybridge.accept.destination import check_plan
from delaybridge.errors import MessageError
from delaybridge.message import (
    Destination,
    Limits,
    Message,
    MessagePlan,
    PlannedRecord,
    Record,
    decode_record,
    encode_record,
)

KINDS = {"rabbitmq": "rabbitmq", "eu": "rabbitmq", "kafka": "kafka"}
WHOLE: dict[str, Any] = {
    "max_attempts": 3, "base_ms": 10_000, "factor": 3.0, "max_ms": 60_000, "jitter": 0.0,
    "dead_letter": "rabbitmq:/failed",
}  # fmt: skip


class OldRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`Record` as it was before there were plans."""

    destination: str
    body: bytes | None
    headers: bytes | tuple[tuple[str, bytes | None], ...] = ()
    properties: tuple[int, bytes, bytes] | bytes | None = None
    key: bytes | None = None
    partition: int | None = None
    ttl_ms: int | None = None
    at_most_once: bool = False


def payload(**fields: Any) -> bytes:
    message = Message("rabbitmq:orders/close", b"x", delay=1, id="a", **fields)
    return accept(message, KINDS, Limits()).payload


@pytest.mark.parametrize("retry", [None, {}, MessagePlan(), {"max_attempts": None}])
def test_a_message_without_a_plan_is_stored_byte_for_byte_as_before(retry: Any) -> None:
    before = OldRecord("rabbitmq:orders/close", b"x", b"")
    assert payload(retry=retry) == msgspec.msgpack.encode(before)


@pytest.mark.parametrize("form", [dict, lambda fields: MessagePlan(**fields)])
def test_a_plan_is_stored_and_versions_without_plans_read_the_rest(form: Any) -> None:
    stored = payload(retry=form(WHOLE))
    assert decode_record(stored).retry == MessagePlan(**WHOLE)
    plain = decode_record(payload())
    old = msgspec.msgpack.decode(stored, type=OldRecord)
    assert msgspec.structs.astuple(old) == msgspec.structs.astuple(plain)


def test_equal_plans_have_equal_bytes_however_they_were_given() -> None:
    turned = dict(reversed(WHOLE.items())) | {"jitter": 0, "factor": 3}
    assert payload(retry=turned) == payload(retry=MessagePlan(**WHOLE))


@pytest.mark.parametrize(
    ("retry", "field", "what"),
    [
        (5, "retry", "got 5; give a MessagePlan or a mapping"),
        ([("max_attempts", 3)], "retry", "got list"),
        ({"max_atempts": 3}, "retry", "did you mean max_attempts?"),
        ({5: 3}, "retry", "5 is unknown; known: max_attempts"),
        ({"max_attempts": 0}, "retry.max_attempts", "from 1 to 1000"),
        ({"max_attempts": 1001}, "retry.max_attempts", "got 1001"),
        ({"max_attempts": True}, "retry.max_attempts", "whole number"),
        ({"max_attempts": 2.0}, "retry.max_attempts", "whole number"),
        ({"max_attempts": "3"}, "retry.max_attempts", "got '3'"),
        ({"base_ms": -1}, "retry.base_ms", "from 1 to 86400000"),
        ({"base_ms": 10**400}, "retry.base_ms", "got int"),
        ({"base_ms": 10, "max_ms": 9}, "retry.base_ms", "above max_ms"),
        ({"max_ms": 86_400_001}, "retry.max_ms", "from 1 to 86400000"),
        ({"factor": 1}, "retry.factor", "above 1, at most 100"),
        ({"factor": float("nan")}, "retry.factor", "got nan"),
        ({"factor": 10**400}, "retry.factor", "got int"),
        ({"base_ms": 0}, "retry.base_ms", "got 0; give whole milliseconds from 1 to 86400000"),
        ({"jitter": float("inf")}, "retry.jitter", "from 0 to 1"),
        ({"jitter": -0.1}, "retry.jitter", "from 0 to 1"),
        ({"dead_letter": 5}, "retry.dead_letter", "got 5; write BROKER:ADDRESS"),
        ({"dead_letter": "nowhere:x"}, "retry.dead_letter", "no broker is named 'nowhere'"),
        ({"dead_letter": "kafka:failed"}, "retry.dead_letter", "give one of kind rabbitmq"),
        ({"dead_letter": "rabbitmq:orders/close"}, "retry.dead_letter", "the destination itself"),
    ],
)
def test_a_wrong_plan_is_refused_by_field(retry: Any, field: str, what: str) -> None:
    with pytest.raises(MessageError) as caught:
        payload(retry=retry)
    assert (caught.value.code, caught.value.field) == ("bad_retry", field)
    assert what in caught.value.detail


def test_a_dead_letter_may_be_at_another_broker_of_the_same_kind() -> None:
    assert check_plan({"dead_letter": "eu:a%2fb/c"}, KINDS) == MessagePlan(dead_letter="eu:a%2Fb/c")
    here = Destination("rabbitmq", "rabbitmq", "orders", "close")
    assert check_plan({"dead_letter": "eu:/failed"}, KINDS, here) is not None


def test_a_message_that_is_never_tried_again_has_no_plan() -> None:
    with pytest.raises(MessageError, match=r"^retry: bad_retry: "):
        payload(retry={"max_attempts": 3}, at_most_once=True)


@pytest.mark.parametrize(
    "ninth", ["text", 5, {"max_attempts": 0}, {"factor": float("nan")}, {"base_ms": "1"}, [1]]
)
def test_a_stored_plan_that_is_invalid_is_ignored(ninth: Any) -> None:
    items = ["kafka:t", b"body", [], None, None, None, None, False, ninth]
    record = decode_record(msgspec.msgpack.encode(items))
    assert (record.retry, record.body) == (None, b"body")


def test_a_plan_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    later = {"max_attempts": 3, "colour": "red"}
    items = ["kafka:t", b"", [], None, None, None, None, False, later, "tenth"]
    assert decode_record(msgspec.msgpack.encode(items)).retry == MessagePlan(max_attempts=3)


PLANS: st.SearchStrategy[Mapping[Any, Any]] = st.dictionaries(
    st.sampled_from([*WHOLE]) | st.text(),
    st.integers() | st.floats() | st.text() | st.booleans() | st.none() | st.binary(),
)


@given(PLANS)
def test_whatever_is_given_is_refused_or_read_back_from_the_store(plan: Mapping[Any, Any]) -> None:
    try:
        checked = check_plan(plan, KINDS)
    except MessageError as exc:
        assert exc.code == "bad_retry"
        return
    if checked is not None:
        record = PlannedRecord("kafka:t", b"", retry=checked)
        assert decode_record(encode_record(record)) == record
        assert all(getattr(checked, name) == plan[name] for name in plan if name in WHOLE
                   and name != "dead_letter")  # fmt: skip


def test_records_without_a_plan_stay_of_the_plain_class() -> None:
    assert type(decode_record(encode_record(Record("kafka:t", b"")))) is Record

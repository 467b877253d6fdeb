"""The headers by which a producer delays its message: accepted and refused values."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.errors import MessageError
from delaybridge.ingest.instructions import INSTRUCTIONS, Instructions, instructions, is_instruction
from delaybridge.message import MessagePlan, OnConflict

DUE_MS = 1_893_456_000_000  # 2030-01-01
DELAYS = ("x-delay", "x-opt-delivery-delay", "delaybridge-delay")
DUES = ("x-opt-delivery-time", "delaybridge-due")

WHOLE = [5000, "5000", b"5000", 5000.0, Decimal(5000)]
REFUSED_NUMBERS = [
    *((text, "bad_time") for text in ("abc", "", b"", " 5000", "5000\n", "1_000", "٥", "５")),
    *((text, "bad_time") for text in ("0x10", "1e3", "+5", "1.", "9" * 10_000, b"\xff\xfe")),
    *((value, "bad_time") for value in (math.nan, math.inf, True, [5], {"ms": 5})),
    (datetime(2030, 1, 1, tzinfo=UTC), "bad_time"),
    *((ms.to_bytes(size), "binary_number") for ms, size in ((5000, 8), (5000, 4))),
    *((ms, "too_far") for ms in (2**53 + 1, 2**63 - 1, 2**64)),
]


def refused(*headers: tuple[str, Any]) -> MessageError:
    with pytest.raises(MessageError) as caught:
        instructions(headers)
    return caught.value


@pytest.mark.parametrize("name", DELAYS)
@pytest.mark.parametrize("value", WHOLE, ids=repr)
def test_a_delay_is_taken_as_any_type_of_whole_number(name: str, value: Any) -> None:
    assert instructions([(name, value)]) == Instructions(delay_ms=5000)


@pytest.mark.parametrize("name", DELAYS)
@pytest.mark.parametrize(("value", "code"), REFUSED_NUMBERS, ids=lambda v: repr(v)[:40])
def test_a_bad_delay_is_refused(name: str, value: Any, code: str) -> None:
    error = refused((name, value))
    assert (error.code, error.field) == (code, name)
    assert len(error.detail) <= 200


FRACTIONS = ["1.5", b"1.5", 1.5, 1.000001, Decimal("1.5"), Decimal("2.0")]


@pytest.mark.parametrize("name", ["x-delay", "x-opt-delivery-delay"])
@pytest.mark.parametrize("value", FRACTIONS, ids=repr)
def test_a_fraction_of_a_plugin_delay_rounds_up(name: str, value: Any) -> None:
    assert instructions([(name, value)]).delay_ms == 2


@pytest.mark.parametrize("value", FRACTIONS, ids=repr)
def test_our_own_delay_has_no_fraction_of_a_millisecond(value: Any) -> None:
    code = "bad_time" if isinstance(value, str | bytes) else "not_integer_ms"
    assert refused(("delaybridge-delay", value)).code == code


@pytest.mark.parametrize("name", ["x-delay", "x-opt-delivery-delay"])
@pytest.mark.parametrize(
    "value", [0, "-0.5", -0.5, "0", -1, "-1", -(2**63), False, None, 0.0, -1.0], ids=repr
)
def test_a_plugin_delay_of_zero_or_less_means_now(name: str, value: Any) -> None:
    assert not instructions([(name, value)]).is_timed


@pytest.mark.parametrize("value", [-1, "-1", b"-1"], ids=repr)
def test_our_own_delay_is_never_negative(value: Any) -> None:
    assert refused(("delaybridge-delay", value)).code == "negative_delay"


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [("15m", 900_000), (b"1h30m", 5_400_000), ("PT15M", 900_000), ("1.5s", 1500), ("0", 0)],
)
def test_our_own_delay_may_have_a_unit(value: Any, delay_ms: int) -> None:
    asked = instructions([("delaybridge-delay", value)])
    assert asked.delay_ms == delay_ms
    assert asked.is_timed


def test_a_unit_is_not_the_plugins() -> None:
    assert refused(("x-delay", "15m")).code == "bad_time"


@pytest.mark.parametrize("delay_ms", [2**31, 2**32 - 1, 2**32, 2**32 + 5])
def test_delays_that_the_plugin_got_wrong(delay_ms: int) -> None:
    assert instructions([("x-delay", delay_ms)]).delay_ms == delay_ms


@pytest.mark.parametrize("name", DUES)
@pytest.mark.parametrize(
    "value",
    [
        DUE_MS,
        str(DUE_MS),
        str(DUE_MS).encode(),
        float(DUE_MS),
        "2030-01-01T00:00:00Z",
        b"2030-01-01T02:00:00+02:00",
        datetime(2030, 1, 1, tzinfo=UTC),
    ],
    ids=repr,
)
def test_a_due_time(name: str, value: Any) -> None:
    assert instructions([(name, value)]) == Instructions(due_ms=DUE_MS)


@pytest.mark.parametrize("name", DUES)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("2030-01-01T00:00:00", "zone_required"),
        ("2024-02-30T00:00:00Z", "bad_time"),
        ("2030-01-01T24:00:00Z", "bad_time"),
        ("2030-W01-1", "bad_time"),
        ("tomorrow", "bad_time"),
        ("", "bad_time"),
        (DUE_MS // 1000, "looks_like_seconds"),
        (DUE_MS * 1000, "too_far"),
        (DUE_MS * 1_000_000, "too_far"),
        (32_503_680_000_000, "too_far"),
        (True, "bad_time"),
        (DUE_MS + 0.5, "not_integer_ms"),
    ],
    ids=repr,
)
def test_a_bad_due_time_is_refused(name: str, value: Any, code: str) -> None:
    error = refused((name, value))
    assert (error.code, error.field) == (code, name)


def test_a_moment_that_has_passed_is_a_due_time() -> None:
    assert instructions([("delaybridge-due", 1_500_000_000_000)]).due_ms == 1_500_000_000_000


@pytest.mark.parametrize(("first", "second"), list(permutations(DELAYS + DUES, 2)))
def test_two_times_are_ambiguous(first: str, second: str) -> None:
    values = dict.fromkeys(DELAYS, 5000) | dict.fromkeys(DUES, DUE_MS)
    error = refused((first, values[first]), (second, values[second]))
    assert (error.code, error.field) == ("time_ambiguous", second)
    assert first in error.detail


def test_a_null_header_counts_as_absent() -> None:
    void = [(name, None) for name in INSTRUCTIONS]
    assert instructions(void) == Instructions()
    rest = [(name, value) for name, value in void if name != "x-delay"]
    assert instructions([*rest, ("x-delay", 5)]) == Instructions(delay_ms=5)


@pytest.mark.parametrize("value", ["true", b"true", True], ids=repr)
def test_a_cancel(value: Any) -> None:
    asked = instructions([("delaybridge-cancel", value), ("delaybridge-id", "x")])
    assert asked == Instructions(cancel=True, id="x")


@pytest.mark.parametrize("value", ["false", b"false", False, None], ids=repr)
def test_a_false_cancel_is_not_a_cancel(value: Any) -> None:
    assert not instructions([("delaybridge-cancel", value)]).cancel


@pytest.mark.parametrize("value", ["yes", "TRUE", "", "1", 1, 0, b"\x01", b"\xff", []], ids=repr)
def test_a_flag_is_true_or_false(value: Any) -> None:
    assert refused(("delaybridge-cancel", value)).code in ("bad_flag", "binary_number")


@pytest.mark.parametrize("form", [str, str.encode])
def test_headers_offer_the_same_as_the_client(form: Any) -> None:
    given = {
        "key": "k",
        "priority": "9",
        "ttl": "15m",
        "at-most-once": "true",
        "on-conflict": "replace",
    }
    asked = instructions([(f"delaybridge-{name}", form(text)) for name, text in given.items()])
    assert asked == Instructions(
        key=b"k", rank=246, ttl_ms=900_000, at_most_once=True, policy=OnConflict.REPLACE
    )
    assert asked.needs_store
    assert not asked.is_timed


def test_values_may_have_amqp_types() -> None:
    asked = instructions([("delaybridge-priority", 0), ("delaybridge-at-most-once", False)])
    assert asked == Instructions()
    assert not asked.needs_store


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(("priority", value, "bad_priority") for value in (256, -1, "-1", "high", True, 1.0, b"")),
        *(("on-conflict", value, "bad_policy") for value in ("Replace", "", b"\xff", 1)),
        *(("ttl", value, "bad_time") for value in ("soon", "")),
        ("ttl", "-5s", "negative_delay"),
        ("at-most-once", "yes", "bad_flag"),
        ("key", 5, "bad_key"),
        ("reschedule", "true", "time_required"),
    ],
)
def test_bad_values_are_refused(name: str, value: Any, code: str) -> None:
    assert refused((f"delaybridge-{name}", value)).code == code


def test_a_reschedule_needs_a_time_and_excludes_a_cancel() -> None:
    flag, delay = ("delaybridge-reschedule", True), ("delaybridge-delay", "5s")
    assert instructions([flag, delay]) == Instructions(delay_ms=5000, reschedule=True)
    assert refused(flag, delay, ("delaybridge-cancel", True)).code == "bad_flag"


@pytest.mark.parametrize("form", [str, str.encode])
def test_headers_give_a_message_its_own_retry_plan(form: Any) -> None:
    given = [("delaybridge-max-attempts", form("3")), ("delaybridge-backoff", form("10s"))]
    asked = instructions(given)
    assert asked == Instructions(retry=MessagePlan(max_attempts=3, base_ms=10_000))
    assert asked.needs_store
    assert instructions(given[1:]).retry == MessagePlan(base_ms=10_000)
    assert refused(*given, ("delaybridge-at-most-once", True)).code == "bad_retry"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(("max-attempts", value, "bad_retry") for value in (0, "0", -1, 1001, 10**30)),
        *(("max-attempts", value, "bad_retry") for value in ("many", True, "", 2.0, b"\xff")),
        *(("backoff", value, "bad_retry") for value in (0, "0s", "25h", 86_400_001)),
        ("backoff", "soon", "bad_time"),
        ("backoff", -1, "negative_delay"),
    ],
)
def test_a_bad_plan_in_headers_is_refused(name: str, value: Any, code: str) -> None:
    error = refused((f"delaybridge-{name}", value))
    assert (error.code, error.field) == (code, f"delaybridge-{name}")


@pytest.mark.parametrize("name", ["delaybridge-id", "delaybridge-destination"])
@pytest.mark.parametrize("value", [5, 1.5, True, [], {}, b"\xff\xfe"], ids=repr)
def test_ids_and_destinations_are_text(name: str, value: Any) -> None:
    error = refused((name, value))
    code = "bad_id" if name == "delaybridge-id" else "bad_destination"
    assert (error.code, error.field) == (code, name)


def test_an_id_and_a_destination_are_given_as_written() -> None:
    asked = instructions(
        [("delaybridge-id", b"order-\xe2\x82\xac"), ("delaybridge-destination", "rabbitmq:x/k")]
    )
    assert asked == Instructions(id="order-€", destination="rabbitmq:x/k")


def test_one_header_twice() -> None:
    assert instructions([("x-delay", b"5"), ("x-delay", b"5")]).delay_ms == 5
    error = refused(("x-delay", b"5"), ("x-delay", b"6"))
    assert (error.code, error.field) == ("duplicate_header", "x-delay")


def test_an_unknown_header_of_ours_is_refused_with_the_likely_one() -> None:
    error = refused(("delaybridge-dely", "15m"))
    assert (error.code, error.field) == ("reserved_header", "delaybridge-dely")
    assert "delaybridge-delay" in error.detail
    assert refused(("delaybridge-zzzzzzz", "1")).code == "reserved_header"


def test_headers_that_delaybridge_adds_are_ignored() -> None:
    sent_on = [("delaybridge-due-ms", 5), ("delaybridge-attempt", 1), ("other", object())]
    assert instructions(sent_on) == Instructions()


@pytest.mark.parametrize("name", ["X-Delay", "X-DELAY", "Delaybridge-Delay"])
def test_another_case_is_a_near_miss(name: str) -> None:
    asked = instructions([(name, 5000)])
    assert not asked.is_timed
    assert asked.near_miss == name


def test_headers_with_the_reserved_prefix_are_instructions() -> None:
    assert is_instruction("delaybridge-delay")
    assert is_instruction("delaybridge-attempt")
    assert not is_instruction("x-delay"), "the plugin's consumers see it"
    assert not is_instruction("x-opt-delivery-delay")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(allow_nan=False),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.integers()),
    st.datetimes(),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(INSTRUCTIONS)), JUNK), max_size=3))
def test_any_header_is_understood_or_refused(headers: list[tuple[str, Any]]) -> None:
    try:
        asked = instructions(headers)
    except MessageError:
        return
    assert asked.delay_ms is None or 0 <= asked.delay_ms < 32_503_680_000_000
    assert asked.due_ms is None or 0 < asked.due_ms < 32_503_680_000_000
    assert asked.delay_ms is None or asked.due_ms is None

"""Delays and due times: rows T1 to T34 of bad-input.md, as the client takes them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import when
from delaybridge.errors import DelayOutOfRange, MessageError
from delaybridge.message import Limits
from delaybridge.times import YEAR_3000_MS, at_ms, delay_ms, format_duration, format_time
from tests.rigs.accepting import cases, rows

YEAR_2001_MS = 1_000_000_000_000
FOREVER = Limits(delay_ms=YEAR_3000_MS)
HUGE = 10**10_000
CALENDAR = st.datetimes(datetime(2002, 1, 1), datetime(2999, 12, 30))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))


def refusal(take: Any, value: Any) -> MessageError:
    with pytest.raises(MessageError) as caught:
        take(value)
    assert len(caught.value.detail) <= 200
    assert caught.value.detail.isprintable()
    return caught.value


@pytest.mark.parametrize(
    ("delay", "ms"),
    rows(
        ("T2", 0, 0),
        ("T2", "0ms", 0),
        ("T2", timedelta(0), 0),
        ("T3", -0.0, 0),
        ("T3", "-0s", 0),
        ("T4", 1.5, 1500),
        ("T4", "1.5s", 1500),
        ("T4", 0.1, 100),
        ("T6", "5s", 5000),
        ("T6", "1h30m", 5_400_000),
        ("T6", "500ms", 500),
        ("T6", "7d", 604_800_000),
        ("T6", "1d2h3m4s5ms", 93_784_005),
        ("T6", "PT15M", 900_000),
        ("T6", "P1DT1.5S", 86_401_500),
        ("T6", 60, 60_000),
        ("T6", timedelta(minutes=15), 900_000),
        ("T18", "2147483648ms", 2**31),
        ("T18", 2**31 / 1000, 2**31),
        ("T19", "4294967296ms", 2**32),
        ("T19", timedelta(milliseconds=2**32), 2**32),
    ),
)
def test_a_delay_is_accepted(delay: Any, ms: int) -> None:
    assert delay_ms(delay) == ms


@pytest.mark.parametrize(
    ("delay", "code"),
    cases(
        {
            "T1": [-1, -0.001, "-1s", "-PT1S", timedelta(microseconds=-1)],
            "T21": [-1e300, timedelta.min],
            "T22": [-HUGE],
        },
        "negative_delay",
    )
    + cases({"T4": ["1.5ms", "0.0005s"]}, "not_integer_ms")
    + cases(
        {
            "T20": [2**53 + 1, "9007199254740993ms"],
            "T21": [2**63, 2**64, f"{2**63}ms", f"{2**64}s", 1e300, timedelta.max],
            "T22": [HUGE],
        },
        "too_far",
    )
    + cases(
        {
            "T5": ["5000"],
            "T7": ["5 s", " 5", "5\n", "5s\n", " 5s"],
            "T8": ["1_000", "1_000s"],
            "T9": ["٥", "５s", "PT٥S"],
            "T10": ["0x10", "1e3", "+5", "+5s", "1e3s"],
            "T11": [math.nan, "NaN"],
            "T12": [math.inf, -math.inf, "Infinity", "∞"],
            "T13": [True, "true"],
            "T16": ["", "-", "P", "PT"],
            "T17": [[5], {"ms": 5}, b"5s", Decimal(5)],
            "T22": ["1" * 10_000, "1" * 10_000 + "s", "PT" + "1" * 10_000 + "S"],
            "T31": ["2030-W01-1"],
            "T32": [
                *"tomorrow,in 5 min,5min,5M,30m1h,1h1h,P1Y,P1M,pt5m,PT-5M,--5s".split(","),
                *("\x1b[2J5s", "5s\ud800"),
            ],
            "T33": ["*/5 * * * *"],
        },
        "bad_time",
    ),
)
def test_a_delay_is_refused(delay: Any, code: str) -> None:
    assert refusal(delay_ms, delay).code == code


@pytest.mark.parametrize(
    "delay", [True, Decimal(1), memoryview(bytearray(b"1")), type("Odd", (), {"__hash__": None})()]
)
def test_a_delay_that_equals_a_cached_one_or_has_no_hash_is_refused(delay: Any) -> None:
    assert delay_ms(1) == delay_ms(1.0) == 1000
    assert refusal(delay_ms, delay).code == "bad_time"


@pytest.mark.parametrize(
    ("delay", "ms"),
    [(1234.5671, 1_234_568), ("20m34.567s", 1_234_567), (timedelta(seconds=1234.567), 1_234_567)],
)
def test_the_caller_s_decimal_context_does_not_round(delay: Any, ms: int) -> None:
    with localcontext(prec=3):
        assert delay_ms(delay) == ms
        assert at_ms("2030-01-31T09:00:00.1239999Z") % 1000 == 124


@pytest.mark.parametrize(
    ("at", "ms"),
    rows(
        ("T23", "2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("T23", "2026-01-01t00:00:00z", 1_767_225_600_000),
        ("T23", "2026-01-01 00:00:00+00:00", 1_767_225_600_000),
        ("T23", "2026-01-01T00:00:00.5Z", 1_767_225_600_500),
        ("T23", "2026-01-01T00:00:00.0000001Z", 1_767_225_600_001),
        ("T23", "2026-01-01T05:30:00+05:30", 1_767_225_600_000),
        ("T23", datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000),
        ("T23", datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1_767_225_600_001),
        ("T26", "2999-12-31T23:59:59.999Z", YEAR_3000_MS - 1),
        ("T29", "2024-02-29T00:00:00Z", 1_709_164_800_000),
    ),
)
def test_a_time_is_accepted(at: Any, ms: int) -> None:
    assert at_ms(at) == ms


@pytest.mark.parametrize(
    ("at", "code"),
    cases(
        {
            "T24": [
                *("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC), 0, 1_700_000_000),
                *("1700000000", "2001-09-09T01:46:39.999Z"),
                datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
            ]
        },
        "looks_like_seconds",
    )
    + cases(
        {
            "T26": [
                *("3000-01-01T00:00:00Z", "2999-12-31T23:59:59.9999Z"),
                datetime(3000, 1, 1, tzinfo=UTC),
            ],
            "T27": [
                "9999-12-31T23:59:59-14:00",
                datetime.max.replace(tzinfo=timezone(-timedelta(hours=14))),
            ],
        },
        "too_far",
    )
    + cases({"T28": ["2030-01-01T00:00:00", datetime(2030, 1, 1)]}, "zone_required")
    + cases(
        {
            "T9": ["２０３０-01-01T00:00:00Z"],
            "T11": [math.nan],
            "T12": [math.inf],
            "T13": [True],
            "T16": [""],
            "T17": [[2030], b"2030-01-01T00:00:00Z"],
            "T22": [HUGE, -HUGE, "1" * 10_000],
            "T25": [1_700_000_000_000_000, 1_700_000_000_000_000_000, "1700000000000000"],
            "T29": [
                *("2024-02-30T00:00:00Z", "2023-02-29T00:00:00Z", "2030-13-01T00:00:00Z"),
                *("2030-01-01T00:00:00+25:00", "2030-01-01T00:00:00+01:60"),
            ],
            "T30": ["2030-01-01T24:00:00Z", "2030-01-01T23:59:60Z"],
            "T31": [
                *("2030-W01-1", "20300101T000000Z", "2030-01-01", "2030-01-01T00:00Z"),
                *("2030-01-01T00:00:00+0100", "2030-01-01T00:00:00,5Z", "2030-01-01T00:00:00Z\n"),
            ],
            "T32": ["tomorrow", "5m"],
        },
        "bad_time",
    ),
)
def test_a_time_is_refused(at: Any, code: str) -> None:
    assert refusal(at_ms, at).code == code


def test_a_delay_is_counted_by_redis_and_a_time_is_used_as_it_is() -> None:
    assert when("15m", None, FOREVER) == "+900000"
    assert when(None, "2026-01-01T00:00:00Z", FOREVER) == "1767225600000"


def test_the_longest_delay_is_ten_years_unless_another_is_set() -> None:
    years = timedelta(days=3652)
    assert when(years, None, Limits()) == f"+{3652 * 86_400_000}"
    with pytest.raises(DelayOutOfRange):
        when(years + timedelta(days=3), None, Limits())


@pytest.mark.parametrize(
    ("delay", "at"), [("11d", None), (None, datetime.now(UTC) + timedelta(days=11))]
)
def test_a_time_beyond_the_limit_is_refused_and_both_numbers_are_named(delay: Any, at: Any) -> None:
    limits = Limits(delay_ms=10 * 86_400_000)  # T34
    with pytest.raises(DelayOutOfRange, match="more than limits.delay, 10d$") as caught:
        when(delay, at, limits)
    assert caught.value.code == "too_far"
    assert caught.value.detail.split()[0] in {"11d", "10d23h"}


@given(st.text() | st.binary() | st.floats() | st.integers() | st.timedeltas() | st.none())
def test_any_value_given_as_a_delay_is_accepted_or_refused(value: Any) -> None:
    try:
        assert 0 <= delay_ms(value) < YEAR_3000_MS
    except MessageError as exc:
        assert exc.field == "delay"


@given(st.text() | st.binary() | st.floats() | st.integers() | st.datetimes() | st.none())
def test_any_value_given_as_a_time_is_accepted_or_refused(value: Any) -> None:
    try:
        assert YEAR_2001_MS <= at_ms(value) < YEAR_3000_MS
    except MessageError as exc:
        assert exc.field == "at"


@given(st.text(alphabet="0123456789dhms.P T-", max_size=20))
def test_text_that_looks_like_a_delay_is_accepted_or_refused(text: str) -> None:
    try:
        assert 0 <= delay_ms(text) < YEAR_3000_MS
    except MessageError:
        pass


@given(st.integers(0, YEAR_3000_MS // 1000 - 1))
def test_seconds_milliseconds_and_timedeltas_mean_the_same(seconds: int) -> None:
    ms = seconds * 1000
    assert delay_ms(seconds) == delay_ms(f"{ms}ms") == delay_ms(timedelta(milliseconds=ms)) == ms


@given(st.floats(0, 10**9))
def test_a_fraction_of_a_millisecond_is_rounded_up_never_down(seconds: float) -> None:
    exact = Fraction(str(seconds)) * 1000
    assert exact <= delay_ms(seconds) < exact + 1


@given(st.integers(0, 10**13))
def test_a_duration_in_words_is_read_back_to_its_smaller_unit(ms: int) -> None:
    text = format_duration(ms)
    units = {"d": 3_600_000, "h": 60_000, "m": 1000}
    unit = next((units[u] for u in "dhm" if u in text.removesuffix("ms")), 1)
    assert delay_ms(text) == ms - ms % unit
    assert format_duration(-ms).removeprefix("-") == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *((0, "0ms"), (999, "999ms"), (1000, "1s"), (12_300, "12.3s"), (59_999, "59.999s")),
        *((60_000, "1m"), (899_000, "14m59s"), (11_100_000, "3h05m"), (86_400_000, "1d")),
        *((604_799_999, "6d23h"), (-1500, "-1.5s")),
    ],
)
def test_a_duration_has_its_two_largest_units(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(CALENDAR, ZONES)
def test_a_datetime_and_its_text_are_the_same_time(naive: datetime, zone: timezone) -> None:
    moment = naive.replace(tzinfo=zone)
    exact_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert at_ms(moment) == at_ms(moment.isoformat()) == -(-exact_us // 1000)


@given(st.integers(YEAR_2001_MS, YEAR_3000_MS - 1))
def test_a_time_in_words_is_read_back(ms: int) -> None:
    assert at_ms(format_time(ms)) == ms


@pytest.mark.parametrize("ms", [0, -1, YEAR_3000_MS, 10**18, -(10**18)])
def test_any_number_can_be_shown(ms: int) -> None:
    assert format_time(ms).isascii()

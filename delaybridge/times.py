"""Delays and due times, converted from what people and programs write to integer milliseconds.

A delay is a `timedelta`, a number of seconds, or text with units (`15m`, `1h30m`, `500ms`,
`1.5s`, ISO 8601 `PT15M`). A time is an aware `datetime` or RFC 3339 text. Text must be ASCII and
unambiguous: instead of guessing, the error says what to write. Parts of a millisecond are rounded
up, so that nothing is due early.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

import msgspec

from delaybridge import late
from delaybridge.errors import DelayOutOfRange, MessageError, quoted

Delay = timedelta | float | str | None  # a number is in seconds
At = datetime | str | None
YEAR_3000_MS = 32_503_680_000_000
YEAR_MS = 31_557_600_000  # of 365.25 days
MOST_SKEW_MS = 2000  # by which a host's clock may differ from Redis'
CACHED = (str, int, float, timedelta)  # types of delays for `cached_delay_ms`
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_2001_MS = 1_000_000_000_000  # smaller numbers are taken for seconds
_TEN_DIGITS = 10_000_000_000  # no time before the year 2286 has more in seconds
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_EXACT = Context(prec=50)  # the caller's decimal context may round
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,9})?)"
_DURATION = late.pattern("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNIT_MS))
_WORDY = late.pattern(  # `90 min`, `1 Hour`; not 1M, which might be a month
    r"(?<![0-9.])([0-9.]++) *(ms|[dDhHmsS])(?:ays?|(?:ou)?rs?|in(?:ute)?s?|ec(?:ond)?s?)? *"
)
_RFC3339 = late.pattern(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])"
    r"(?:\.([0-9]{1,9}))?([Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)
_ROUND_MS = ((86_395_000, 3_600_000), (595_000, 60_000), (10_000, 1000), (1000, 100))
_DELAY_HINT = "write a number with a unit, as 500ms, 15s, 15m, 1h30m, 7d or PT15M"
_TIME_HINT = "write RFC 3339 with a zone, as 2030-01-31T09:00:00Z"


def delay_ms(value: timedelta | float | str, *, field: str = "delay") -> int:
    """A delay in whole milliseconds, at least 0.

    field: names the delay in errors. MessageError `bad_time`, `not_integer_ms`; DelayOutOfRange
    `negative_delay`, `too_far`.
    """
    # Not bool: the cache would take True for 1. Not others: they may have no hash.
    if type(value) in CACHED:
        return cached_delay_ms(value, field)
    return _delay_ms(value, field)


def at_ms(value: datetime | str, *, field: str = "at") -> int:
    """A due time in epoch milliseconds.

    field: names the time in errors. MessageError `bad_time`, `zone_required`,
    `looks_like_seconds`; DelayOutOfRange `too_far`.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise MessageError("zone_required", field, "the datetime is naive; give it a tzinfo")
        due_ms = -((_EPOCH - value) // timedelta(milliseconds=1))
    elif isinstance(value, str):
        due_ms = _text_at_ms(value, field)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        code = "looks_like_seconds" if abs(value) < _TEN_DIGITS else "bad_time"
        raise MessageError(code, field, f"got a number; give an aware datetime, or {_TIME_HINT}")
    else:
        raise MessageError("bad_time", field, f"got {type(value).__name__}; {_TIME_HINT}")
    return epoch_ms(due_ms, field=field)


def epoch_ms(due_ms: int, *, field: str) -> int:
    """Return `due_ms` if it is between the years 2001 and 3000.

    MessageError `looks_like_seconds`; DelayOutOfRange `too_far`.
    """
    if due_ms < _YEAR_2001_MS:
        what = f"{quoted(due_ms)} ms, {format_time(due_ms)}, is before 2001; were these seconds?"
        raise MessageError("looks_like_seconds", field, what)
    if due_ms >= YEAR_3000_MS:
        raise DelayOutOfRange(
            "too_far",
            field,
            f"{quoted(due_ms)} ms is the year 3000 or later; are these microseconds?",
        )
    return due_ms


def format_duration(ms: int) -> str:
    """A duration in its two largest units: 950ms, 12.3s, 14m59s, 3h05m, 6d23h."""
    if ms < 0:
        return "-" + format_duration(-ms)
    if ms < 1000:
        return f"{ms}ms"
    if ms < 60_000:
        return f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    for unit, lower, size in (("d", "h", 86_400_000), ("h", "m", 3_600_000), ("m", "s", 60_000)):
        if ms >= size:
            rest = ms % size // _UNIT_MS[lower]
            return f"{ms // size}{unit}{rest:02d}{lower}" if rest else f"{ms // size}{unit}"
    raise AssertionError("unreachable")


def format_time(due_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds; outside the years 1 to 9999 the number and `ms`."""
    seconds, ms = divmod(due_ms, 1000)
    try:
        return f"{_second(seconds)}.{ms:03d}Z"
    except OverflowError:
        return f"{quoted(due_ms)}ms"


@lru_cache(maxsize=100)  # many messages are due in one second
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]


def _delay_ms(value: timedelta | float | str, field: str) -> int:
    if isinstance(value, str):
        return _text_delay_ms(value, field)
    if isinstance(value, timedelta):
        return _accepted(Fraction(value // timedelta(microseconds=1), 1000), field)
    if isinstance(value, bool):
        raise MessageError("bad_time", field, f"got {value!r}; give seconds, not a boolean")
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            raise MessageError("bad_time", field, f"got {value!r}; give a finite number of seconds")
        near = max(-YEAR_3000_MS, min(value, YEAR_3000_MS))  # str() refuses very long integers
        return _accepted(Decimal(str(near)).scaleb(3, _EXACT), field)
    raise MessageError("bad_time", field, f"got {type(value).__name__}; {_DELAY_HINT}")


cached_delay_ms = lru_cache(maxsize=1000)(_delay_ms)  # applications use few different delays


def got_delay(value: str | float) -> str:
    """What is wrong with this delay, and what to write: of a bare number in both units."""
    text = str(value).strip()
    plain = _WORDY.sub(lambda found: found[1] + found[2].lower(), text)
    hint = f'write "{plain}"' if plain and _DURATION.fullmatch(plain) else _DELAY_HINT
    if re.fullmatch(_NUMBER, text):
        seconds, ms = _written(text, "s"), _written(text, "ms")
        hint = f'write "{seconds}"'
        if "." not in text and ms != seconds:
            hint += f' if these are seconds, "{ms}" if milliseconds'
    return f"got {quoted(value)}; {hint}"


def _written(number: str, unit: str) -> str:
    """The shortest text of this many seconds or ms, as 1h for 3600 s."""
    ms = Fraction(number) * _UNIT_MS[unit]
    short = format_duration(int(ms))
    parts = re.findall(f"{_NUMBER}([a-z]+)", short)
    return short if sum(Fraction(n) * _UNIT_MS[u] for n, u in parts) == ms else number + unit


def _text_delay_ms(text: str, field: str) -> int:
    if len(text) > 64 or not text.isascii():
        raise MessageError("bad_time", field, f"{len(text)} characters; {_DELAY_HINT}")
    negative = text.startswith("-")
    bare = text[1:] if negative else text
    found = _DURATION.fullmatch(bare) if bare else None
    if found:
        parts = zip(found.groups(), _UNIT_MS.values(), strict=True)
        exact = sum((Fraction(n) * size for n, size in parts if n), Fraction(0))
        if exact.denominator != 1:
            raise MessageError("not_integer_ms", field, f"{text!r} has a fraction of a millisecond")
    elif bare.startswith("P"):
        try:
            span = msgspec.convert(bare, timedelta)
        except msgspec.ValidationError:
            raise MessageError("bad_time", field, got_delay(text)) from None
        exact = Fraction(span // timedelta(microseconds=1), 1000)
    else:
        raise MessageError("bad_time", field, got_delay(text))
    return _accepted(-exact if negative else exact, field)


def _text_at_ms(text: str, field: str) -> int:
    found = _RFC3339.fullmatch(text) if len(text) <= 64 else None
    if not found:
        seconds_since_epoch = len(text) <= 10 and text.isascii() and text.isdigit()
        code = "looks_like_seconds" if seconds_since_epoch else "bad_time"
        raise MessageError(code, field, f"got {text[:64]!r}; {_TIME_HINT}")
    moment, fraction, zone = found.groups()
    if zone is None:
        raise MessageError("zone_required", field, f"{text!r} has no zone; {_TIME_HINT}")
    try:
        whole = datetime.fromisoformat(moment.upper() + zone.upper())
    except ValueError:
        raise MessageError("bad_time", field, f"{text!r} does not exist; {_TIME_HINT}") from None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    return seconds * 1000 + math.ceil(Fraction(f"0.{fraction or 0}") * 1000)


def _accepted(exact: Decimal | Fraction, field: str) -> int:
    if exact < 0:
        raise DelayOutOfRange("negative_delay", field, "the delay is below zero; give 0 for now")
    if exact >= YEAR_3000_MS:
        raise DelayOutOfRange("too_far", field, "the delay reaches beyond the year 3000")
    return math.ceil(exact)


def offset_ms(text: str, *, field: str = "by") -> int:
    """A span with a sign, as `+10m` or `-1h`, in milliseconds. MessageError."""
    sign, rest = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("+", text)
    if not rest or rest[:1] in ("+", "-"):
        raise MessageError("bad_time", field, f"got {quoted(text)}; write +10m or -1h")
    span_ms = delay_ms(rest, field=field)
    return -span_ms if sign == "-" else span_ms


def in_time(wait_ms: int) -> str:
    """`in 15m`, or `41ms ago`."""
    return f"in {roughly(wait_ms)}" if wait_ms >= 0 else f"{roughly(-wait_ms)} ago"


def roughly(ms: int) -> str:
    """A rounded duration: 41ms, 2.3s, 42s, 4m12s, 15m, 3h05m, 6d23h."""
    step_ms = next((step for least, step in _ROUND_MS if ms >= least), 1)
    return format_duration((ms + step_ms // 2) // step_ms * step_ms)

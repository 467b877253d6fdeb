"""Instructions in the headers of an ordinary message: when to deliver it, where, under which id.

Every entrance understands these headers: `x-delay` (the RabbitMQ plugin's),
`x-opt-delivery-delay` and `x-opt-delivery-time` (RabbitMQ's commercial delayed queues; AMQP 1.0
annotations), `delaybridge-delay` and `delaybridge-due`; and also `delaybridge-id`,
`delaybridge-key`, `delaybridge-destination`, `delaybridge-priority`, `delaybridge-ttl`,
`delaybridge-at-most-once`, `delaybridge-on-conflict`, `delaybridge-cancel` and
`delaybridge-reschedule`. In place of a delay `delaybridge-debounce`, with `delaybridge-quiet` and
`delaybridge-longest`, or `delaybridge-throttle`, with `delaybridge-every`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil, isfinite
from typing import Any, NamedTuple

from delaybridge import times
from delaybridge.amqp.encoding import utf8
from delaybridge.backoff import ATTEMPTS_LIMIT, WAIT_LIMIT_MS
from delaybridge.errors import MessageError, nearest, quoted
from delaybridge.gathering import FIELDS, Gathering, gathering_of
from delaybridge.message import (
    MAX_PRIORITY,
    OWN_HEADERS,
    RESERVED_PREFIX,
    MessagePlan,
    OnConflict,
    rank_of,
)

PLUGIN_DELAY = "x-delay"
ID = "delaybridge-id"
_MOST_DIGITS = 20
_FRACTION = re.compile(r"-?[0-9]+\.[0-9]+", re.ASCII)


class Instructions(NamedTuple):
    """The instructions of one message. At most one of delay_ms, due_ms and gathering is set; none:
    now.

    id and destination: as written, not checked. near_miss: a header spelt almost like an
    instruction. reschedule: give the pending message of that id this time. rank: from the priority
    (`rank_of`). policy: None for `fail`, and if it is not given.
    """

    delay_ms: int | None = None
    due_ms: int | None = None
    id: str | None = None
    destination: str | None = None
    cancel: bool = False
    near_miss: str | None = None
    reschedule: bool = False
    key: bytes | None = None
    rank: int = MAX_PRIORITY
    ttl_ms: int | None = None
    at_most_once: bool = False
    policy: OnConflict | None = None
    retry: MessagePlan | None = None
    gathering: Gathering | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a time is given. An `x-delay` of zero or less does not count."""
        times = self.delay_ms, self.due_ms, self.gathering
        return any(time is not None for time in times)

    @property
    def name(self) -> str | None:
        """The id that the message asks for."""
        return self.id if self.gathering is None else self.gathering.key

    @property
    def needs_store(self) -> bool:
        """Whether it must go through the store even if it is due now."""
        return (
            self.delay_ms is not None
            or self.due_ms is not None
            or self.policy is not None
            or self.key is not None
            or self.at_most_once
            or self.retry is not None
            or self.gathering is not None
        )


def instructions(headers: Iterable[tuple[str, Any]]) -> Instructions:
    """Read the instructions in these headers; other headers are ignored.

    A value is AMQP's as decoded (int, float, Decimal, str, bytes, bool, None, datetime, ...) or
    Kafka's bytes. None counts as absent. MessageError names the header at fault: bad_time,
    not_integer_ms, binary_number, zone_required, looks_like_seconds, negative_delay, too_far,
    time_ambiguous, time_required, duplicate_header, bad_flag, reserved_header, bad_destination,
    bad_priority, bad_policy, bad_key, bad_retry.
    """
    found, near_miss = _found(headers)
    given = {name: value for name, value in found.items() if value is not None}
    asked = [name for name in given if name in _TIMES]
    if len(asked) > 1:
        raise MessageError("time_ambiguous", asked[1], f"{asked[0]} is given, too; give one")
    parts = {}
    for name, value in given.items():
        part, read = _READERS[name]
        parts[part] = read(value, name)
    plan = {name: parts.pop(name) for name in _OF_PLAN & parts.keys()}
    retry = MessagePlan(**plan) if plan else None
    gathered = {name: parts.pop(name) for name in FIELDS if name in parts}
    gathering = gathering_of(gathered, RESERVED_PREFIX) if gathered else None
    return _consistent(Instructions(**parts, near_miss=near_miss, retry=retry, gathering=gathering))


def _found(headers: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], str | None]:
    """The instructions among the headers, and the last header that almost is one."""
    found: dict[str, Any] = {}
    near_miss = None
    for name, value in headers:
        if not isinstance(name, str):
            raise MessageError("bad_header", "headers", f"a name is text, not {quoted(name)}")
        if name in _READERS:
            if name in found and found[name] != value:
                raise MessageError("duplicate_header", name, "given twice, with two values")
            found[name] = value
        elif _near_miss(name):
            near_miss = name
    return found, near_miss


def _near_miss(name: str) -> bool:
    """Whether another header is spelt almost like an instruction.

    MessageError if it has the reserved prefix.
    """
    if name.startswith(RESERVED_PREFIX) and name not in OWN_HEADERS:
        raise MessageError("reserved_header", name, _unknown(name))
    return name.lower() in _READERS


def _consistent(asked: Instructions) -> Instructions:
    name = "delaybridge-reschedule"
    if asked.reschedule and asked.cancel:
        raise MessageError("bad_flag", name, "a message cancels or reschedules; give one")
    if asked.reschedule and not asked.is_timed:
        raise MessageError("time_required", name, "say when: delaybridge-delay, delaybridge-due")
    if asked.gathering is not None and (asked.reschedule or asked.cancel):
        raise MessageError("bad_flag", name, "only with delaybridge-delay or delaybridge-due")
    if asked.retry is not None and asked.at_most_once:
        what = "an at-most-once message is never tried again"
        raise MessageError("bad_retry", "delaybridge-at-most-once", what)
    return asked


def is_instruction(name: str) -> bool:
    """Whether a header has the prefix reserved for delaybridge."""
    return name.startswith(RESERVED_PREFIX)


def _unknown(name: str) -> str:
    near = nearest(name, filter(is_instruction, _READERS))
    return f"unknown; did you mean {near[0]!r}?" if near else "unknown, and the prefix is reserved"


def _plugin_delay(value: Any, name: str) -> int | None:
    """`x-delay`: zero and less mean now, as in the plugin. Fractions round up."""
    if value is False:
        return None
    delay_ms = _whole_ms(_rounded_up(value), name)
    return _within_calendar(delay_ms, name) if delay_ms > 0 else None


def _rounded_up(value: Any) -> Any:
    """A fraction rounded up to a whole number; any other value unchanged."""
    if isinstance(value, str | bytes) and len(value) <= _MOST_DIGITS:
        text = value if isinstance(value, str) else value.decode(errors="replace")
        value = Decimal(text) if _FRACTION.fullmatch(text) else value
    if isinstance(value, Decimal):
        return ceil(value) if value.is_finite() and value.adjusted() < _MOST_DIGITS else value
    return ceil(value) if isinstance(value, float) and isfinite(value) else value


def _delay(value: Any, name: str) -> int:
    """A duration with its unit, or whole milliseconds."""
    if isinstance(value, str | bytes) and not _is_digits(text := _text(value, name)):
        return times.delay_ms(text, field=name)
    delay_ms = _whole_ms(value, name)
    if delay_ms < 0:
        return times.delay_ms(delay_ms, field=name)
    return _within_calendar(delay_ms, name)


def _span(value: Any, name: str) -> timedelta:
    return timedelta(milliseconds=_delay(value, name))


def _due(value: Any, name: str) -> int:
    """RFC 3339 or epoch milliseconds."""
    if isinstance(value, datetime):
        return times.at_ms(value, field=name)
    if isinstance(value, str | bytes) and not _is_digits(text := _text(value, name)):
        return times.at_ms(text, field=name)
    return times.epoch_ms(_whole_ms(value, name), field=name)


def _id(value: Any, name: str) -> str:
    if not isinstance(value, str | bytes):
        raise MessageError("bad_id", name, f"got {type(value).__name__}; give text")
    return _text(value, name, "bad_id")


def _destination(value: Any, name: str) -> str:
    if not isinstance(value, str | bytes):
        raise MessageError("bad_destination", name, f"got {type(value).__name__}; give text")
    return _text(value, name, "bad_destination")


def _key(value: Any, name: str) -> bytes:
    if not isinstance(value, str | bytes):
        raise MessageError("bad_key", name, f"got {type(value).__name__}; give text")
    return utf8(value, "bad_key", name) if isinstance(value, str) else value


def _priority(value: Any, name: str) -> int:
    priority = _whole_number(value, name, "bad_priority")
    if priority is None or not 0 <= priority <= MAX_PRIORITY:
        raise MessageError("bad_priority", name, f"got {quoted(value)}; give 0 to {MAX_PRIORITY}")
    return rank_of(priority)


def _whole_number(value: Any, name: str, code: str) -> int | None:
    """An integer or digits as a number; None for any other value."""
    text = quoted(value) if isinstance(value, int) and not isinstance(value, bool) else value
    text = _text(text, name, code) if isinstance(text, str | bytes) else ""
    return int(text) if _is_digits(text) else None


def _attempts(value: Any, name: str) -> int:
    return _in_plan(_whole_number(value, name, "bad_retry"), value, name, ATTEMPTS_LIMIT)


def _backoff(value: Any, name: str) -> int:
    return _in_plan(_delay(value, name), value, name, WAIT_LIMIT_MS, " ms")


def _in_plan(number: int | None, value: Any, name: str, most: int, unit: str = "") -> int:
    if number is None or not 1 <= number <= most:
        raise MessageError("bad_retry", name, f"got {quoted(value)}; give 1 to {most}{unit}")
    return number


def _policy(value: Any, name: str) -> OnConflict | None:
    text = _text(value, name, "bad_policy") if isinstance(value, str | bytes) else ""
    try:
        policy = OnConflict(text)
    except ValueError:
        known = ", ".join(OnConflict)
        raise MessageError("bad_policy", name, f"got {text[:40]!r}; give {known}") from None
    return None if policy is OnConflict.FAIL else policy


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    text = _text(value, name, "bad_flag") if isinstance(value, str | bytes) else ""
    if text not in ("true", "false"):
        raise MessageError("bad_flag", name, f"got {quoted(value)}; give true or false")
    return text == "true"


def _whole_ms(value: Any, name: str) -> int:
    """A whole number of any numeric type, or digits; MessageError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str | bytes) and _is_digits(text := _text(value, name)):
        return int(text)
    if isinstance(value, float) and isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    is_fraction = isinstance(value, Decimal) or (isinstance(value, float) and isfinite(value))
    code = "not_integer_ms" if is_fraction else "bad_time"
    hint = "; for a time use delaybridge-due" if isinstance(value, datetime) else ""
    raise MessageError(code, name, f"got {quoted(value)}; give whole milliseconds{hint}")


def _is_digits(text: str) -> bool:
    bare = text.removeprefix("-")
    return 0 < len(bare) <= _MOST_DIGITS and bare.isascii() and bare.isdigit()


def _text(value: str | bytes, name: str, code: str = "bad_time") -> str:
    if isinstance(value, str):
        return value
    if b"\0" in value and len(value) in (1, 2, 4, 8):
        raise MessageError(
            "binary_number", name, f"{len(value)} bytes of a binary number; write digits as text"
        )
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MessageError(code, name, "not UTF-8; write it as text") from None


def _within_calendar(delay_ms: int, name: str) -> int:
    if delay_ms < times.YEAR_3000_MS:
        return delay_ms
    return times.delay_ms(delay_ms, field=name)  # which raises


_Reader = Callable[[Any, str], Any]
_TIMES: Mapping[str, tuple[str, _Reader]] = {
    PLUGIN_DELAY: ("delay_ms", _plugin_delay),
    "x-opt-delivery-delay": ("delay_ms", _plugin_delay),
    "delaybridge-delay": ("delay_ms", _delay),
    "x-opt-delivery-time": ("due_ms", _due),
    "delaybridge-due": ("due_ms", _due),
    "delaybridge-debounce": ("debounce", _id),
    "delaybridge-throttle": ("throttle", _id),
}
_READERS: Mapping[str, tuple[str, _Reader]] = {
    **_TIMES,
    ID: ("id", _id),
    "delaybridge-destination": ("destination", _destination),
    "delaybridge-cancel": ("cancel", _flag),
    "delaybridge-reschedule": ("reschedule", _flag),
    "delaybridge-key": ("key", _key),
    "delaybridge-priority": ("rank", _priority),
    "delaybridge-ttl": ("ttl_ms", _delay),
    "delaybridge-at-most-once": ("at_most_once", _flag),
    "delaybridge-on-conflict": ("policy", _policy),
    "delaybridge-max-attempts": ("max_attempts", _attempts),
    "delaybridge-backoff": ("base_ms", _backoff),
    "delaybridge-quiet": ("quiet", _span),
    "delaybridge-longest": ("longest", _span),
    "delaybridge-every": ("every", _span),
}
_OF_PLAN = {"max_attempts", "base_ms"}
INSTRUCTIONS = frozenset(_READERS)
"""Names of the headers that are read."""

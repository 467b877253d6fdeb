"""Debounce and throttle: when a message is due depends on the others of its key.

Scripts and `Accepted.when` have them as a word: `~QUIET:LONGEST` or `^EVERY`, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from delaybridge.errors import DelayOutOfRange, MessageError
from delaybridge.times import delay_ms

Span = timedelta | float | str  # a number is in seconds
FIRST_CHAR = "^"  # of their words, or a higher one; other due times begin with a lower one


class Debounce(msgspec.Struct, frozen=True):
    """Deliver the last message of a key once the key has been quiet for some time.

    Args:
        key: names the message, and takes the place of its id.
        quiet: each message of the key postpones the delivery until this long after it.
        longest: but never longer than this after the first one.
    """

    key: str
    quiet: Span = "5m"
    longest: Span = "1h"

    def word(self, most_ms: int) -> str:
        """As scripts take it; MessageError if a span is wrong, or longer than this."""
        quiet_ms = _span(self.quiet, "quiet", most_ms)
        longest_ms = _span(self.longest, "longest", most_ms)
        if longest_ms < quiet_ms:
            what = f"{longest_ms} ms is shorter than quiet, {quiet_ms} ms; give a longer one"
            raise MessageError("bad_time", "longest", what)
        return f"~{quiet_ms}:{longest_ms}"


class Throttle(msgspec.Struct, frozen=True):
    """Deliver a message of a key at once, and of those that follow soon only the last.

    Args:
        key: names the message, and takes the place of its id.
        every: the last message within this time after a delivery is delivered when it ends.
    """

    key: str
    every: Span = "1m"

    def word(self, most_ms: int) -> str:
        """As scripts take it; MessageError if the span is wrong, or longer than this."""
        return f"^{_span(self.every, 'every', most_ms)}"


Gathering = Debounce | Throttle
Later = timedelta | float | str | Debounce | Throttle | None
"""When a new message is due: a `Delay`, or what takes its place."""


def spanned(due: Any, until_ms: int) -> Any:
    """A due time as scripts take it, of a throttle with the time until which its span is known."""
    every, dot, rank = str(due).partition(".")
    return f"{every}:{until_ms}{dot}{rank}" if every.startswith("^") else due


def _span(value: Span, name: str, most_ms: int) -> int:
    found_ms = delay_ms(value, field=name)
    if not 0 < found_ms <= most_ms:
        what = f"{found_ms} ms; give 1 to {most_ms} ms (limits.delay)"
        raise DelayOutOfRange("too_far" if found_ms else "bad_time", name, what)
    return found_ms


FIELDS = ("debounce", "throttle", "quiet", "longest", "every")
"""What messages of other forms have for a gathering: its key, and its spans."""


def gathering_of(fields: Mapping[str, Any], prefix: str = "") -> Gathering | None:
    """The gathering that these fields ask for, None without a key; MessageError names the field at
    fault, with this prefix."""
    given = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    debounce, throttle = given.pop("debounce", None), given.pop("throttle", None)
    if debounce is not None and throttle is not None:
        raise MessageError("time_ambiguous", f"{prefix}throttle", "given with debounce; give one")
    for name in given:
        key, of = (throttle, "throttle") if name == "every" else (debounce, "debounce")
        if key is None:
            raise MessageError("bad_time", f"{prefix}{name}", f"only with {prefix}{of}: give that")
    if debounce is not None:
        return Debounce(debounce, **given)
    return None if throttle is None else Throttle(throttle, **given)

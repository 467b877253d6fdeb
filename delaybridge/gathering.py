"""Debounce and throttle: when a message is due depends on the others of its key.

Scripts and `Accepted.when` have them as a word: `~QUIET:LONGEST` or `^EVERY`, in milliseconds.
"""

from __future__ import annotations

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


def gathering_of(
    debounce: str | None = None,
    throttle: str | None = None,
    *,
    quiet: Span | None = None,
    longest: Span | None = None,
    every: Span | None = None,
    prefix: str = "",
) -> Gathering | None:
    """The gathering that fields ask for, None without a key; MessageError names the field at fault.

    debounce, throttle: keys. prefix: of the names in errors.
    """
    home = "debounce" if debounce is not None else "throttle"
    spans = {"quiet": quiet, "longest": longest, "every": every}
    given = {name: value for name, value in spans.items() if value is not None}
    key = throttle if debounce is None else debounce
    if debounce is not None and throttle is not None:
        raise MessageError("time_ambiguous", f"{prefix}throttle", "given with debounce; give one")
    for name in given:
        own = "throttle" if name == "every" else "debounce"
        if own != home or key is None:
            raise MessageError("bad_time", f"{prefix}{name}", f"only with {prefix}{own}: give that")
    if key is None:
        return None
    return Debounce(key, **given) if home == "debounce" else Throttle(key, **given)

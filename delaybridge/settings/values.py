"""Validators of single values. Each raises a ValueError that states the values allowed.

In the environment every value is text, so text stands for a number, a list or a truth value.
Neither `true` nor `1_000` is a number. A text that is too long is refused before anything else
looks at it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import TypeGuard

from delaybridge import late, times
from delaybridge.errors import MessageError
from delaybridge.settings.durability import DURABILITY_FORM, read_durability
from delaybridge.settings.namespace import (
    BUCKETS_FORM,
    NAMESPACE_FORM,
    is_bucket_count,
    is_namespace,
)

_WORD_CHARS = 64  # of a number, a duration, a truth value, a durability
_ITEM_CHARS, _LIST_CHARS, _ITEMS = 1000, 65_536, 1000
_INTEGER = late.pattern(r"-?[0-9]{1,18}")
_NUMBER = late.pattern(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")
_MAX_DELAY_MS = 900 * times.YEAR_MS
_LIST_FORM = (
    f'a list of up to {_ITEMS} printable texts, as ["a", "b"], in the environment also a,b; each '
    f"up to {_ITEM_CHARS} characters"
)
_WRITTEN = ("[", "{", "(", '"', "'")  # a text that begins so is a list that is written wrongly
_ADDRESS = late.pattern(r"\[[0-9A-Fa-f:.]+\]")  # or a host


def is_word(value: object) -> TypeGuard[str]:
    """Whether it is a text, and short enough to be looked at."""
    return isinstance(value, str) and len(value) <= _WORD_CHARS


def _integer(value: object) -> int | None:
    """The whole number that was written, as such or as text; None if it is something else."""
    if is_word(value) and _INTEGER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def whole(low: int, high: int) -> Callable[[object], int]:
    """A whole number from `low` to `high`."""

    def check(value: object) -> int:
        integer = _integer(value)
        if integer is None or not low <= integer <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return integer

    return check


def number(low: float, high: float, *, above: bool = False) -> Callable[[object], float]:
    """A number from `low` (with `above`: greater than it) to `high`."""

    def check(value: object) -> float:
        if is_word(value) and _NUMBER.fullmatch(value):
            value = float(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or (above and value == low):  # type: ignore[operator]
            raise ValueError(f"a number {'above' if above else 'from'} {low:g} to {high:g}")
        return float(value)  # type: ignore[arg-type]

    return check


def printable(length: int) -> Callable[[object], str]:
    """A text of at most `length` printable characters."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > length or not value.isprintable():
            raise ValueError(f"at most {length} printable characters")
        return value

    return check


def text(pattern: str, form: str, most: int = 255) -> Callable[[object], str]:
    """A text of at most `most` characters, all of which `pattern` describes."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > most or not re.fullmatch(pattern, value):
            raise ValueError(form)
        return value

    return check


def short(most: int, least: int = 0) -> Callable[[object], str]:
    """Any text of `least` to `most` characters that can be encoded."""
    return text(rf"[^\ud800-\udfff]{{{least},}}", f"a text of {least} to {most} characters", most)


def texts(pattern: str = ".+", form: str = _LIST_FORM) -> Callable[[object], tuple[str, ...]]:
    """A list of texts that all match `pattern`.

    A single text is a JSON list if it begins as one, else it is split at its commas.
    """

    def check(value: object) -> tuple[str, ...]:
        found = _read_list(value) if isinstance(value, str) else value
        if (
            not isinstance(found, list | tuple)
            or len(found) > _ITEMS
            or not all(map(_is_item, found))
        ):
            raise ValueError(_LIST_FORM)
        if not all(re.fullmatch(pattern, text) for text in found):
            raise ValueError(form)
        return tuple(found)

    return check


def networks(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for text in value:
            ip_network(text)
    except ValueError:
        raise ValueError('a list of addresses or networks, as ["10.0.0.0/8", "::1"]') from None
    return value


def _read_list(text: str) -> object:
    """The list that a text spells; None if it is too long to be read."""
    if len(text) > _LIST_CHARS:
        return None
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_item(value: object) -> bool:
    if not isinstance(value, str) or not 0 < len(value) <= _ITEM_CHARS or not value.isprintable():
        return False
    return not value.startswith(_WRITTEN) or _ADDRESS.fullmatch(value) is not None


def switch(value: object) -> bool:
    if is_word(value):
        value = {"true": True, "false": False}.get(value.lower())
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def delay(value: object) -> int:
    try:
        delay_ms = times.delay_ms(value if is_word(value) else "")
    except MessageError:
        delay_ms = -1
    if not 0 < delay_ms <= _MAX_DELAY_MS:
        raise ValueError("a duration with a unit, as 90m, 30d or P1DT12H, up to 900 years")
    return delay_ms


def namespace(value: object) -> str:
    if not is_word(value) or not is_namespace(value):
        raise ValueError(NAMESPACE_FORM)
    return value


def buckets(value: object) -> int:
    count = _integer(value)
    if count is None or not is_bucket_count(count):
        raise ValueError(BUCKETS_FORM)
    return count


def durability(value: object) -> str:
    if not is_word(value) or read_durability(value) is None:
        raise ValueError(DURABILITY_FORM)
    return value


def each_once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len({*value}) < len(value):
        raise ValueError("each once")
    return value

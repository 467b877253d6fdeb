"""Values that break a program which trusts them, and a strategy for anything else.

No strategy draws from `HARD`: hypothesis prints what failed, and some of it fills the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

SURROGATE = "\ud800"
HUGE_NUMBER = 10**5000  # Python prints no integer of more than 4300 digits
DEEP = 100_000


def deep_list() -> list[Any]:
    """Deeper than Python's stack."""
    value: list[Any] = []
    for _ in range(DEEP):
        value = [value]
    return value


def deep_tuple() -> tuple[Any, ...]:
    """The same with a hash, which cannot be computed."""
    value: tuple[Any, ...] = ()
    for _ in range(DEEP):
        value = (value,)
    return value


def deep_dict() -> dict[str, Any]:
    """The same by name."""
    value: dict[str, Any] = {}
    for _ in range(DEEP):
        value = {"n": value}
    return value


def bomb() -> list[Any]:
    """A few hundred bytes whose text would fill the memory."""
    value: list[Any] = ["x"]
    for _ in range(100):
        value = [value, value]
    return value


def tuple_bomb() -> tuple[Any, ...]:
    """The same, which may be the key of a dict: its hash takes for ever, too."""
    value: tuple[Any, ...] = ("x",)
    for _ in range(20):
        value = (value, value)
    return value


def cyclic() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


class List(list[Any]):
    """A kind of list that reprlib does not know."""


HARD: dict[str, Any] = {
    "deep list": deep_list(),
    "deep dict": deep_dict(),
    "deep tuple": deep_tuple(),
    "bomb": bomb(),
    "bomb in a dict": {"n": bomb()},
    "bomb in another list": List(bomb()),
    "bomb in an ordered dict": OrderedDict(n=bomb()),
    "tuple bomb": tuple_bomb(),
    "cyclic": cyclic(),
    "surrogate": SURROGATE,
    "surrogate in a name": {SURROGATE: SURROGATE},
    "surrogate in a list": [SURROGATE],
    "huge number": HUGE_NUMBER,
    "huge negative number": -HUGE_NUMBER,
    "huge text": "x" * 5_000_000,
    "huge surrogates": SURROGATE * 1_000_000,
    "huge bytes": b"\xff" * 5_000_000,
    "no UTF-8": b"\xff\xfe",
    "nul": "\0",
    "huge decimal": Decimal("1e999999"),
    "signalling": Decimal("sNaN"),
    "before": datetime.min,
    "after": datetime.max.replace(tzinfo=UTC),
    "longest": timedelta.max,
    "object": object(),
    "class": object,
    "set": {1, 2},
    "complex": 1j,
}
"""By the name of the test."""

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters())
    | st.just(SURROGATE)
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.timedeltas()
    | st.sampled_from([float("nan"), "\0", "\u202e", "5s\n", Decimal("sNaN"), 2**63]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.just(SURROGATE), inner)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)

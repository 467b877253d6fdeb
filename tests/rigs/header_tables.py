"""Strategies for AMQP header tables: every type that an application may put into one."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda name: len(name.encode()) <= 255
)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(
    lambda time: time.replace(microsecond=0)
)
DECIMALS = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
SCALARS = (
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none()
    | TIMES
    | DECIMALS
    | st.binary()
)


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and dicts of the given values."""
    return st.lists(children, max_size=4) | st.dictionaries(NAMES, children, max_size=4)


VALUES = SCALARS | containers(SCALARS) | containers(containers(SCALARS))
TABLES = st.dictionaries(NAMES, VALUES, max_size=8)

"""Arrays as PostgreSQL reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge.ledger.sql.arrays import array

WRITTEN: Sequence[tuple[str, list[Any], object]] = (
    ("bigint", [1, -2, 2**62], "{1,-2,4611686018427387904}"),
    ("text", ["a", "", "NULL", "a,b}", "ä"], '{"a","","NULL","a,b}","ä"}'),
    ("text", ['a"b'], '{"a\\"b"}'),
    ("text", ["a\\", "b"], '{"a\\\\","b"}'),
    ("text", ['","', "b"], '{"\\",\\"","b"}'),
    ("bytea", [b"\x00a", b""], '{"\\\\x0061","\\\\x"}'),
    ("text", [], "{}"),
    ("text", ["a", None], ["a", None]),
)


@pytest.mark.parametrize(("kind", "values", "written"), WRITTEN)
def test_an_array_is_written_as_text(kind: str, values: list[Any], written: object) -> None:
    assert array(kind, values) == written

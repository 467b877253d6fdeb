"""What Redis looks for in records before they are read: no message that fits lacks it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from delaybridge import Message
from delaybridge.accept.accept import accept
from delaybridge.message import Limits, State
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.store.protocol.record import UNTRIED, joined_record
from delaybridge.store.protocol.replies import Row
from delaybridge.store.protocol.stored import stored

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
TO = {"rabbitmq": "rabbitmq:/q", "kafka": "kafka:t"}
NAMES = ("n", "trace-id", "größe", "a b", "back\\slash")
TEXTS = ("blue", "feed", "42", "007", "é", "None", "True", "nan", "1e7", "a=b", "x" * 300, "")
OTHERS: tuple[Any, ...] = (
    *(0, 1, 127, 128, 255, 256, 42, -42, 77_777, 2**31, 2**40, 2**53, -(2**33)),
    *(None, True, False, 1.5, 1e16, 1e-07, b"\xff\x00", b"blue", Decimal("12.50"), Decimal(42)),
    *(["blue", 42], {"blue": 42}, datetime(2026, 1, 2, tzinfo=UTC)),
)


def written(draw: random.Random) -> Iterator[tuple[bytes, State, str]]:
    """Records with headers of every type, and what one may search for in them."""
    for broker in KINDS:
        values = (*TEXTS, *OTHERS) if broker == "rabbitmq" else (*TEXTS, b"\xff", b"blue")
        for value in values:
            name = draw.choice(NAMES)
            message = Message(TO[broker], b"-", delay=1, headers=[("first", "1"), (name, value)])
            accepted = accept(message, KINDS, Limits())
            yield joined_record(1e12, 7, accepted.payload), State.DELAYED, name


def searches() -> Iterator[str]:
    for name in NAMES:
        yield name
        for value in (*TEXTS, *map(str, OTHERS), "�\x00", "�"):
            yield f"{name}={value}"


def test_a_message_that_fits_has_all_that_redis_looks_for() -> None:
    fitting = narrowed = 0
    asked = [(Conditions(header=each), Conditions(header=each).needles) for each in searches()]
    for record, state, _ in written(random.Random(3)):
        one = stored(Row("id", state, 1e12, record, UNTRIED, "", False), 0)
        assert one.is_readable
        for conditions, needles in asked:
            found = [a in record or b in record for a, b in zip(*[iter(needles)] * 2, strict=True)]
            if conditions.fit(one, KINDS):
                fitting += 1
                assert all(found), (conditions.header, one.headers)
            narrowed += not all(found)
    assert fitting > len(TEXTS) + len(OTHERS), "each is found by its name and by its value"
    assert narrowed > fitting, "most others need not be read"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, []),
        ("trace", [b"trace", b"trace"]),
        ("trace=ab-12", [b"trace", b"trace", b"ab-12", b"ab-12"]),
        ("n=77777", [b"n", b"n", b"77777", b"\x01\x2f\xd1"]),
        ("n=0", [b"n", b"n", b"0", b"\x00"]),
        ("n=-5", [b"n", b"n"]),
        ("n=1e7", [b"n", b"n"]),
        ("n=Infinity", [b"n", b"n"]),
        ("n=blau grün", [b"n", b"n"]),
        ("back\\slash=ok", [b"ok", b"ok"]),
    ],
)
def test_what_is_looked_for(header: str | None, expected: list[bytes]) -> None:
    assert Conditions(header=header).needles == expected

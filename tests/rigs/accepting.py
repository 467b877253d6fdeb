"""Messages accepted or refused, as the client takes them, without a store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge.accept.accept import Accepted, accept
from delaybridge.errors import MessageError
from delaybridge.message import Limits, Message, Record, decode_record

KINDS = {name: name for name in ("rabbitmq", "kafka", "redis", "kombu")} | {"eu": "rabbitmq"}
LIMITS = Limits()
RABBITMQ, KAFKA = "rabbitmq:orders/close", "kafka:orders"
SURROGATE = "\ud800"


def taken(destination: Any = RABBITMQ, body: Any = b"", **fields: Any) -> tuple[Accepted, Record]:
    accepted = accept(Message(destination, body, **{"delay": 60} | fields), KINDS, LIMITS)
    return accepted, decode_record(accepted.payload)


def refusal(*args: Any, **fields: Any) -> MessageError:
    with pytest.raises(MessageError) as caught:
        taken(*args, **fields)
    assert len(caught.value.detail) <= 200
    assert caught.value.detail.isprintable()
    return caught.value


def rows(*found: tuple[Any, ...]) -> list[Any]:
    """Parametrised cases named after the row's number and the input."""
    return [pytest.param(*case, id=f"{row} {_shown(case[0])}") for row, *case in found]


def cases(found: dict[str, Sequence[Any]], *same: Any) -> list[Any]:
    """The same, of several inputs for each row; all of them have `same`, too."""
    return rows(*((row, value, *same) for row, values in found.items() for value in values))


def _shown(value: object) -> str:
    """The value as text, the same in every process: pytest-xdist compares the names of tests."""
    if isinstance(value, int) and abs(value) >= 10**4300:
        return "an integer that Python does not print"
    return re.sub(r" at 0x\w+", "", ascii(value))[:32]

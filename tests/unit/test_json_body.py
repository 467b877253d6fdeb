"""Bodies given as objects, with `json=`: what they become, and what is refused."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

from delaybridge import Message, MessageError
from delaybridge.accept.accept import Drafting, accept
from delaybridge.amqp.encoding import encode_properties
from delaybridge.message import Limits, Record, decode_record

KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
NAN = float("nan")
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Size(enum.Enum):
    LARGE = "L"


class Model(pydantic.BaseModel):
    at: datetime = AT
    price: Decimal = Decimal("1.10")
    weight: float = 1.5
    more: Any = None


@dataclass
class Line:
    model: Model
    id: uuid.UUID


class Order(msgspec.Struct):
    lines: list[Line]
    by_size: Any = None


MODEL = {"at": "2026-01-01T00:00:00Z", "price": "1.10", "weight": 1.5, "more": None}
LINE = {"model": MODEL, "id": "00000000-0000-0000-0000-000000000007"}
ORDER = Order([Line(Model(), uuid.UUID(int=7))], {Size.LARGE: {1}})


def record(destination: str = "rabbitmq:orders/k", **fields: Any) -> Record:
    return decode_record(accept(Message(destination, delay=1, **fields), KINDS, Limits()).payload)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (ORDER, {"lines": [LINE], "by_size": {"L": [1]}}),
        (MappingProxyType({"order": Model(more="é")}), {"order": MODEL | {"more": "é"}}),
        ([AT, Decimal("0.1"), 2**70, None], ["2026-01-01T00:00:00Z", "0.1", 2**70, None]),
        (None, None),
    ],
    ids=["structs", "mapping", "list", "null"],
)
def test_models_and_plain_data_are_sent_as_json(given: Any, read: Any) -> None:
    body = record(json=given).body
    assert body is not None
    assert json.loads(body) == read


def test_a_destination_that_has_content_types_gets_that_of_json_unless_another_is_given() -> None:
    for given, kept in ({}, "application/json"), ({"content_type": "text/x"}, "text/x"):
        sent = record(json=1, properties=given)
        assert sent.properties == encode_properties({"content_type": kept})
    assert record("kafka:orders", json=1) == Record("kafka:orders", b"1")


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (NAN, "json"),
        (Model(weight=NAN), "json.weight"),
        ({"a": [1, {"b": object()}]}, "json.a.1.b"),
        (Order([Line(Model(more=[object()]), uuid.UUID(int=7))]), "json.lines.0.model.more.0"),
        ({(1, 2): 3}, "json"),
        (["\ud800"], "json.0"),
        (CYCLE, "json" + 20 * ".0"),
    ],
    ids=["nan", "nan in a model", "deep", "in models", "key", "surrogate", "cycle"],
)
def test_what_cannot_be_json_is_refused_and_its_place_is_named(given: Any, field: str) -> None:
    with pytest.raises(MessageError) as refused:
        record(json=given)
    assert (refused.value.code, refused.value.field) == ("bad_json", field)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "body_required"),
        ({"body": b"x", "json": 1}, "body_ambiguous"),
        ({"body": None, "json": None}, "body_ambiguous"),
    ],
)
def test_a_message_has_either_a_body_or_json(given: dict[str, Any], code: str) -> None:
    with pytest.raises(MessageError) as refused:
        Drafting(KINDS, Limits(), lambda: "x").drafts([Message("kafka:orders", delay=1, **given)])
    assert refused.value.code == code

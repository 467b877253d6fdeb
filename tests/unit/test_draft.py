"""The short look at plain messages against `accept`: same records, same errors, for any message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.accept.accept import PLAIN_BYTES, Accepted, Draft, Drafting, accept
from delaybridge.errors import MessageError
from delaybridge.message import ContentHeader, Limits, Message, MessagePlan, decode_record

KINDS = {name: name for name in ("rabbitmq", "kafka", "redis", "kombu")} | {"eu": "rabbitmq"}
LIMITS = Limits(body_bytes=PLAIN_BYTES + 2, id_bytes=40, delay_ms=7 * 86_400_000)
ID = "drawn"


class Text(str):
    __slots__ = ()


class Octets(bytes):
    __slots__ = ()


class Number(int):
    pass


class Span(timedelta):
    pass


class Special(Message):
    pass


PLAIN: dict[str, Any] = {
    "destination": "rabbitmq:orders/close", "body": b"order 42", "delay": "1d", "at": None,
    "id": None, "key": None, "headers": {}, "properties": {}, "priority": 0, "ttl": None,
    "at_most_once": False, "retry": None,
}  # fmt: skip
SIZES = (0, 1, 255, 256, 257, PLAIN_BYTES - 1, PLAIN_BYTES, PLAIN_BYTES + 1, PLAIN_BYTES + 3)
ODD: dict[str, list[Any]] = {
    "destination": [
        *("kafka:orders", "eu:a%2Fb/k", "eu:/queue", "redis:s", "kombu:q", "kafka:" + "t" * 249),
        *(Text("kafka:orders"), "rabbitmq:é/" + "k" * 255, "", "kafka", "nowhere:x", "kafka:a b"),
        *(None, 5, b"kafka:orders", "rabbitmq:\ud800/x"),
    ],
    "body": [
        *(b"x" * size for size in SIZES),
        *(
            "text",
            "é",
            "\ud800",
            Octets(b"x"),
            Text("x"),
            bytearray(b"x"),
            memoryview(b"x"),
            None,
            5,
        ),
    ],
    "delay": [
        *("90s", 60, 60.0, 1, 1.0, True, 0, 0.0001, timedelta(days=1), Span(days=1), Text("1d")),
        *(Number(5), None, -1, float("nan"), float("inf"), 10**30, "8d", "soon", b"1d", [1]),
    ],
    "at": [
        *(datetime(2020, 1, 1, tzinfo=UTC), "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"),
        *(datetime(2020, 1, 1), Text("2020-01-01T00:00:00Z"), 5, "soon"),
    ],
    "id": ["order-42", "é", Text("order-42"), "", " x", "x\n", "x" * 41, "\ud800", 5, b"x"],
    "key": [b"k", "k", "", Octets(b"k"), "\ud800", 5, b"k" * (PLAIN_BYTES + 3)],
    "headers": [(), [], [("a", "b")], {"a": 1}, {"delaybridge-x": 1}, None, 0, "", {"a": []}],
    "properties": [
        *({"priority": 3}, {"partition": 1}, {"nope": 1}, None, (), [], 0),
        *(ContentHeader(0, 0, b"", b"", b""), ContentHeader(5, 0x8000, b"\x01a", b"", b"")),
    ],
    "priority": [1, 255, 256, -1, True, False, Number(7), 1.0, "1", None, 10**30],
    "ttl": ["1h", 60, -1, True, "soon"],
    "at_most_once": [True, 0, 1, None, "yes"],
    "retry": [
        {},
        MessagePlan(),
        {"max_attempts": 3},
        MessagePlan(base_ms=5),
        {"factor": 1},
        5,
        "3",
    ],
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A plain message with up to three odd fields."""
    names = draw(st.lists(st.sampled_from(sorted(ODD)), max_size=3, unique=True))
    odd = {name: draw(st.sampled_from(ODD[name])) for name in names}
    made = draw(st.sampled_from([Message] * 9 + [Special]))
    return made(**{**PLAIN, **odd})


def carefully(message: Any) -> Accepted:
    return accept(message, KINDS, LIMITS, None, lambda: ID)


def outcome(of: Any) -> Any:
    try:
        return of()
    except MessageError as exc:
        # How far ahead a time is depends on the millisecond of the call.
        return type(exc), exc.code, exc.field, re.sub(r"\S+ ahead", "ahead", exc.detail)
    except Exception as exc:
        return type(exc)


def encoded(one: Draft | Accepted) -> Accepted:
    return one.accepted(ID if one.id is None else one.id) if isinstance(one, Draft) else one


@given(st.lists(messages(), min_size=1, max_size=5))
def test_the_short_look_and_the_careful_path_agree(some: list[Message]) -> None:
    drafting = Drafting(KINDS, LIMITS, lambda: ID)
    apart = [
        outcome(lambda one=one: encoded(*drafting.drafts([one]))) for one in [*some, *some]
    ]  # each twice, since the look remembers what it saw
    assert apart == [outcome(lambda one=one: carefully(one)) for one in [*some, *some]]
    together = outcome(
        lambda: [encoded(one) for one in Drafting(KINDS, LIMITS, lambda: ID).drafts(some)]
    )
    assert together == outcome(lambda: [carefully(one) for one in some])


@pytest.mark.parametrize("name", ODD)
def test_each_odd_field_agrees_between_plain_messages(name: str) -> None:
    """The look compares each message with the one before it."""
    for odd in ODD[name]:
        drafting = Drafting(KINDS, LIMITS, lambda: ID)
        for message in (PLAIN, {**PLAIN, name: odd}, PLAIN):
            one = Message(**message)
            looked = outcome(lambda drafting=drafting, m=one: encoded(*drafting.drafts([m])))
            assert looked == outcome(lambda m=one: carefully(m)), odd


def test_the_first_message_is_checked_even_if_all_is_missing() -> None:
    message: Any = Message(None, b"", delay=None, priority=None)  # type: ignore[arg-type]
    drafting = Drafting(KINDS, LIMITS, lambda: ID)
    assert outcome(lambda: drafting.drafts([message])) == outcome(lambda: carefully(message))


def test_a_time_serves_no_message_that_has_none() -> None:
    timed = Message("kafka:orders", b"", at="2020-01-01T00:00:00Z")
    some = [timed, Message("kafka:orders", b"")]
    drafting = Drafting(KINDS, LIMITS, lambda: ID)
    assert outcome(lambda: drafting.drafts(some)) == outcome(lambda: [carefully(m) for m in some])


@pytest.mark.parametrize("thing", [None, 5, "kafka:orders", object(), {"destination": "kafka:x"}])
def test_what_is_not_a_message_fails_as_before(thing: Any) -> None:
    drafting = Drafting(KINDS, LIMITS, lambda: ID)
    assert outcome(lambda: drafting.drafts([thing])) == outcome(lambda: carefully(thing))


def test_plain_messages_are_drafts_and_their_bodies_come_back() -> None:
    drafting = Drafting(KINDS, LIMITS, lambda: ID)
    bodies = [b"x" * size for size in SIZES[:-2]]
    for destination in ("rabbitmq:a/b", "kafka:orders", "redis:s", "kombu:q"):
        found = drafting.drafts(Message(destination, body, delay=5) for body in bodies)
        assert all(isinstance(one, Draft) for one in found)
        assert [decode_record(encoded(one).payload).body for one in found] == bodies


def test_a_message_is_taken_as_it_is_when_the_iterable_yields_it() -> None:
    """A generator may change what it yielded before."""
    body, headers = bytearray(b"first"), dict[str, Any]()

    def changing() -> Iterator[Message]:
        yield (one := Message("kafka:orders", body, delay=5, headers=headers))  # type: ignore[arg-type]
        body[:] = b"later"
        headers["a"] = "b"
        yield one
        yield Message("kafka:orders", b"plain", delay=5, headers=headers)
        headers.clear()
        yield Message("kafka:orders", b"plain", delay=5, headers=headers)
        headers["c"] = "d"

    drafts = Drafting(KINDS, LIMITS, lambda: ID).drafts(changing())
    records = [decode_record(encoded(one).payload) for one in drafts]
    assert [record.body for record in records] == [b"first", b"later", b"plain", b"plain"]
    assert [record.headers for record in records] == [(), (("a", b"b"),), (("a", b"b"),), ()]

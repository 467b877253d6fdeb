"""Every "did you mean": never what was typed, and always accepted in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from delaybridge.accept.destination import check_plan
from delaybridge.amqp.encoding import PROPERTY_NAMES, encode_properties
from delaybridge.errors import ConfigError, MessageError, nearest
from delaybridge.ingest.instructions import INSTRUCTIONS, instructions, is_instruction
from delaybridge.message import MessagePlan
from delaybridge.publish import check_options
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.http.json_text import as_type
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.http.reading import query_of
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.settings.names import BROKERS, dotted, fields_of, near, near_variable, variable
from delaybridge.settings.settings import Settings
from delaybridge.times import delay_ms

HINT = re.compile(r"did you mean [`']?(.+?)[`']?\?")
KEYS = [path for path, *_ in fields_of(Settings)]
SECTIONS = [*dict.fromkeys(path[0] for path in KEYS)]


def said(call: Callable[..., Any], *args: Any) -> str:
    """What a call says that refuses its arguments; empty if it takes them."""
    try:
        call(*args)
    except (ConfigError, MessageError, Problem) as exc:
        return str(exc)
    return ""


def shapes() -> Iterator[tuple[str, type[msgspec.Struct], bool]]:
    for is_query in (True, False):
        kinds = [each.query if is_query else each.body for each in ENDPOINTS]
        for kind in dict.fromkeys(k for k in kinds if hasattr(k, "__struct_encode_fields__")):
            yield kind.__name__, kind, is_query


def asked(kind: type[msgspec.Struct], is_query: bool, name: str) -> str:
    if is_query:
        return said(query_of, f"{name}=1".encode(), kind)
    return said(as_type, msgspec.json.encode({name: None}), kind)


Known = list[str]
PLACES: dict[str, tuple[Callable[[str], str], Known]] = {
    f"{where} {'query' if is_query else 'body'}": (
        partial(asked, kind, is_query),
        list(kind.__struct_encode_fields__),
    )
    for where, kind, is_query in shapes()
} | {
    "AMQP": (lambda name: said(encode_properties, {name: "1"}), [*PROPERTY_NAMES]),
    "plan": (lambda name: said(check_plan, {name: 1}, {}), list(MessagePlan.__struct_fields__)),
    "instruction": (
        lambda name: said(instructions, [(name, b"1")]),
        [*filter(is_instruction, INSTRUCTIONS)],
    ),
    "option": (
        lambda name: said(check_options, "b", [name], ["linger.ms", "acks", "client.id"], "a URL"),
        ["linger.ms", "acks", "client.id"],
    ),
    "key": (
        lambda name: "" if name in SECTIONS else near(tuple(name.split(".")), KEYS),
        [*SECTIONS, *(dotted(path) for path in KEYS if path != BROKERS)],
    ),
    "variable": (
        lambda name: "" if name in map(variable, KEYS) else near_variable(name, KEYS),
        [variable(path) for path in KEYS if path != BROKERS],
    ),
}


def misspelt(name: str) -> set[str]:
    middle = len(name) // 2
    return {
        *(name[:-1], name[1:], f"{name}s", name[:middle], name[: middle - 1] + name[middle:]),
        *(name.upper(), name.lower(), name.title(), name.replace("_", "-"), name.replace("_", "")),
    }


@pytest.mark.parametrize("place", PLACES)
def test_a_hint_is_another_name_and_is_accepted(place: str) -> None:
    refused, known = PLACES[place]
    hints = 0
    for typed in sorted({each for name in known for each in misspelt(name)} - {*known}):
        for hint in " or ".join(HINT.findall(refused(typed))).split(" or "):
            if hint:
                hints += 1
                assert hint != typed
                assert hint in known
                assert "did you mean" not in refused(hint) and "unknown" not in refused(hint)
    assert hints


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("3600", [3_600_000, 3600]),
        ("900000", [900_000_000, 900_000]),
        ("61", [61_000, 61]),
        ("3661", [3_661_000, 3661]),
        ("0", [0]),
        ("1.5", [1500]),
        ("1 h", [3_600_000]),
        ("90min", [5_400_000]),
        ("2 Days 3 hours ", [183_600_000]),
        ("1M", []),  # a month?
        ("1 month", []),
        ("30m1h", []),
    ],
)
def test_what_to_write_instead_of_a_delay_is_accepted(typed: str, meant: list[int]) -> None:
    assert [delay_ms(each) for each in re.findall('"(.+?)"', said(delay_ms, typed))] == meant


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"delay": 3600}, "bad_time", 'got 3600; write "1h" if these are seconds, "3.6s" if milli'),
        ({"ttl": -5}, "bad_time", "write a number with a unit"),
        ({"delay": True}, "bad_time", 'got a boolean; write text in quotes, as "15m"'),
        ({"due": 1893456000}, "bad_time", 'as "2030-01-31T09:00:00Z"; epoch ms go into due_ms'),
        ({"due_ms": "1893456000000"}, "bad_time", "got text; write a whole number"),
        ({"body": {"a": 1}}, "bad_body", "got an object; write text in quotes; JSON goes into"),
        ({"priority": None}, "bad_priority", "got null; write a whole number"),
        ({"on_conflict": "new"}, "bad_value", "write one of fail, keep, replace"),
    ],
)
def test_a_value_of_another_type_is_told_in_words_of_json(
    body: dict[str, Any], code: str, says: str
) -> None:
    with pytest.raises(Problem) as refused:
        as_type(msgspec.json.encode({"destination": "a", **body}), NewMessage)
    assert (refused.value.code, refused.value.at) == (code, f"$.{next(iter(body))}")
    assert says in refused.value.detail


def test_the_typed_name_is_never_given_even_if_it_is_known() -> None:
    assert nearest("span", ["span", "spam"]) == ["spam"]
    assert nearest("span", ["span"]) == []


def test_a_key_of_a_section_is_not_its_own_hint() -> None:
    assert near(("redis.url",), KEYS) == "; write it without quotes"


def test_a_section_in_other_letters_is_told_as_a_section() -> None:
    assert near(("broker",), KEYS) == "; did you mean brokers?"
    assert near(("Redis",), KEYS) == "; did you mean redis?"

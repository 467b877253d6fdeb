"""JSON that a client sent: strict, and read in pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delaybridge.serve.http import json_text
from delaybridge.serve.http.json_text import PIECE, check_depth, decoded, elements
from delaybridge.serve.http.problems import Problem

TEXTS = st.text(st.sampled_from('a"\\[]{}:, é\n'), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
MANY = "[" + ",".join(["[]"] * 100_000) + "]"


def turns(reading: Awaitable[Any]) -> tuple[int, Any]:
    """How many turns of the loop were left to others, and the result."""
    steps, count = reading.__await__(), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return count, done.value
        count += 1


async def every(found: AsyncIterator[bytes]) -> list[bytes]:
    return [each async for each in found]


def listed(raw: bytes, most: int = 2**20) -> list[bytes]:
    return turns(every(elements(raw, "messages", most)))[1]  # type: ignore[no-any-return]


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, dict | list) else 0


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Any:
    """Whatever may be cut is cut somewhere in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "PIECE", 8)
        patch.setattr(json_text, "_DEPTH", 3)
        yield


@given(VALUES, st.booleans())
@example(["\\" * n + '"[[[[' for n in range(9)], True)
def test_the_depth_is_that_of_the_value_wherever_the_text_is_cut(value: Any, plain: bool) -> None:
    raw = json.dumps(value, ensure_ascii=plain).encode()
    try:
        check_depth(raw)
        is_deep = False
    except Problem:
        is_deep = True
    assert is_deep == (depth_of(value) > 3)


@given(st.lists(VALUES.filter(lambda value: depth_of(value) <= 1), max_size=6), st.booleans())
@example([123456789012345, -0.5e-300, "😀" * 9, True, None], False)
def test_the_elements_are_those_of_the_list_wherever_the_text_is_cut(
    values: list[Any], plain: bool
) -> None:
    written = [json.dumps(value, ensure_ascii=plain) for value in values]
    raw = ('{ "messages" :\t[' + " , ".join(written) + " ] }\n").encode()
    assert [each.decode() for each in listed(raw)] == written


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "bad_value"),
        ("[1]", "bad_value"),
        ('{"message": [1]}', "bad_value"),
        ('{"messages": {}}', "bad_value"),
        ('{"messages": [1', "bad_json"),
        ('{"messages": [1,]}', "bad_json"),
        ('{"messages": [1]', "bad_json"),
        ('{"messages": [1]} x', "bad_json"),
        ('{"messages": [1], "messages": [2]}', "bad_json"),
        ('{"messages": [1 2]}', "bad_json"),
        ('{"messages": [NaN]}', "bad_json"),
        ('{"messages": [tru]}', "bad_json"),
        ('{"messages": ["\\x"]}', "bad_json"),
        ('{"messages": ["' + "x" * 99, "bad_json"),
        ('{"messages": [{"a": 1, "\\u0061": 2}]}', "bad_json"),
        ('{"messages": [' + "[" * 40 + "]" * 40 + "]}", "bad_json"),
        ('{"messages": [' + "[" * 40, "bad_json"),
        ('{"messages": [1, [[2]]]}', "bad_json"),
        ('{"messages": [1, "' + "x" * 999 + '"]}', "message_too_large"),
    ],
)
def test_a_list_that_is_none_is_refused(text: str, code: str) -> None:
    with pytest.raises(Problem) as refused:
        listed(text.encode(), most=99)
    assert refused.value.code == code


def test_a_list_of_bytes_that_are_no_text_is_refused() -> None:
    with pytest.raises(Problem, match="bad_json"):
        listed(b'{"messages": ["\xff"]}')


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '[{"b": {"a":1,"a":2}}]', '{"a": {"x": 1}, "\\u0061": 2}']
)
def test_a_key_that_is_given_twice_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(Problem, match="given twice"):
        turns(decoded(text.encode(), msgspec.Raw))


DENSE = {
    "lists": "[],", "objects": "{},", "keys": '{"a" :1},', "numbers": "0,", "texts": '"",',
    "nested": "[[[]]],", "short texts": '"' + "x" * 60 + '",',
}  # fmt: skip


@pytest.mark.parametrize("form", DENSE)
def test_what_would_hold_up_others_is_refused_before_it_is_parsed(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes beside long strings cost most, and parsing them is one step."""
    monkeypatch.setattr(json_text, "PIECE", PIECE)
    monkeypatch.setattr(json_text, "_DEPTH", 9)
    values = "[" + DENSE[form] * (1_600_000 // len(DENSE[form])) + "0]"
    after = '"' + "x" * 65 + '"]'
    for text in (values, values[:-1] + "," + after):
        batch = f'{{"messages": [{{}}, {text}]}}'.encode()
        for reading in (decoded(text.encode(), Any), every(elements(batch, "messages", 2**21))):
            with pytest.raises(Problem) as refused:
                turns(reading)  # type: ignore[arg-type]
            assert (refused.value.status, refused.value.code) == (413, "message_too_large")


def test_long_texts_and_other_messages_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "PIECE", PIECE)
    body = json.dumps({"body": '[{",\\' * 300_000})
    many = "[" + "0," * 50_000 + "0]"
    for text in (body, many):
        turns(decoded(text.encode(), Any, 110_000))
    batch = f'{{"messages": [{body}, {",".join([many] * 9)}]}}'.encode()
    found = turns(every(elements(batch, "messages", 2**22, 110_000)))[1]
    assert found == [body.encode(), *[many.encode()] * 9]
    count, _ = turns(decoded(b'["' + b"\\" * len(body) + b'"]', list))
    assert count >= len(body) // PIECE


def test_a_large_text_leaves_others_a_turn_after_each_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_text, "PIECE", PIECE)
    monkeypatch.setattr(json_text, "_DEPTH", 4)
    count, _ = turns(decoded(MANY.encode(), list[Any]))
    assert count >= len(MANY) // PIECE
    objects = "[" + ",".join(['{"a":1}'] * 30_000) + "]"
    count, _ = turns(decoded(objects.encode(), list[Any]))
    assert count >= len(objects) // PIECE + 3
    count, found = turns(every(elements(f'{{"messages": [{MANY}]}}'.encode(), "messages", 2**21)))
    assert count >= len(MANY) // PIECE and len(found) == 1
    small = ",".join(['"x"'] * 10_000)
    count, found = turns(every(elements(f'{{"messages": [{small}]}}'.encode(), "messages", 99)))
    assert count >= len(found) // 100

"""Many messages read in one go are those that each text alone is; what alone is refused is not."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise, product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.message import Message
from delaybridge.serve.api.messages.plain import plain_batch, plain_lines
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.api.messages.together import stored_together
from delaybridge.serve.http.json_text import decoded, strings
from delaybridge.serve.http.problems import Problem

PLAIN = b'{"destination":"kafka:a","body":"b","delay":"1d"}'
GOOD = (
    PLAIN,
    b' { "id" : "i-1", "delay" :"5m" , "destination":"rabbitmq:x/y","body":"" }',
    json.dumps({"destination": "kafka:a", "body": '{"a": ["\\\\"]}', "delay": "1d"}).encode(),
    '{"destination":"kafka:ä","body":"\\u0041\\"\\\\","delay":"1d","id":"\\u00e4"}'.encode(),
    b'{"d\\u0065stination":"kafka:a","body":"},\\n{","delay":"1d"}',
)
BAD = (
    b'{"destination":"kafka:a","body":"b","delay":"1d","delay":"1d"}',
    b'{"destination":"kafka:a","body":"b","delay":"1d","d\\u0065lay":"1d"}',
    b'{"destination":"kafka:a","body":"b","delay":"1d","id":null}',
    b'{"destination":"kafka:a","body":"b","delay":"1d","key":"k"}',
    b'{"destination":"kafka:a","body":"\\ud800","delay":"1d"}',
    b'{"destination":"kafka:a","body":"\xff","delay":"1d"}',
    b'{"destination":"kafka:a","delay":"1d"}',
    PLAIN[:-1],
    PLAIN + PLAIN,
    PLAIN + b"," + PLAIN,
    PLAIN[:20],
    PLAIN[20:],
    b'{"destination":"kafka:a}',
    b'{","body":"b","delay":"1d"}',
    b"\xef\xbb\xbf" + PLAIN,
    PLAIN + b"]",
    b"[" + PLAIN + b"]",
    b"",
)


def alone(text: bytes) -> Message | None:
    try:
        return asyncio.run(decoded(text, NewMessage)).message()
    except (Problem, UnicodeEncodeError):
        return None


def shown(message: Message | None) -> object:
    return message and (message.destination, message.body, message.delay, message.id)


def test_texts_are_read_as_each_is_alone() -> None:
    whole = plain_batch(b'{"messages": [%b]}' % b" , ".join(GOOD))
    wanted = [shown(alone(text)) for text in GOOD]
    assert None not in wanted
    assert [*map(shown, whole or ())] == wanted
    assert [*map(shown, plain_lines([text + b"\r" for text in GOOD]) or ())] == wanted


def test_what_is_refused_alone_or_is_not_plain_is_not_read() -> None:
    for text, *rest in (*product(BAD, GOOD), *product(BAD, BAD, GOOD), *product(BAD, BAD, BAD)):
        for lines in ([text, *rest], [*rest, text]):
            assert plain_lines(lines) is None, lines
    whole = [PLAIN + b"," + PLAIN, *(BAD[at] for at in (-1, 8)), BAD[10] + BAD[11]]
    for text in {*BAD}.difference(whole):
        assert plain_batch(b'{"messages": [%b,%b]}' % (PLAIN, text)) is None, text
    for body in (b"", b"[]", b'{"messages": []} ]', b'{"messages": [], "messages": [%b]}' % PLAIN):
        assert not plain_batch(body), body


def test_texts_that_are_damaged_are_read_as_alone_or_not_at_all() -> None:
    random, read = Random(41), 0
    pieces = (b'"', b"\\", b"\\\\", b"{", b"}", b",", b":", b"\r", b" ", b'"id"', b"u0022", b"id")
    for _ in range(4000):
        lines = random.choices(GOOD, k=2)
        for at, line in enumerate(lines):
            first, last = sorted(random.randrange(len(line) + 1) for _ in range(2))
            last = min(last, first + random.randrange(4))
            lines[at] = line[:first] + random.choice(pieces) + line[last:]
        if (found := plain_lines(lines)) is not None:
            read += 1
            assert [*map(shown, found)] == [shown(alone(line)) for line in lines], lines
    assert read > 20  # of some that are still messages


def test_strings_are_counted_whatever_is_in_them() -> None:
    for texts in pairwise(["", "a", '"', "\\", '\\"', '":"', "\\\\", "ä\n", '"\\\\"', "u0022"]):
        assert strings(json.dumps(texts).encode()) == strings(b'["","", 1]') == 2


async def test_an_error_of_a_whole_batch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def schedule_each(messages: list[Message], **_: Any) -> list[Exception]:
        return [RuntimeError("the inner state")] * len(messages)

    call: Any = SimpleNamespace(client=SimpleNamespace(schedule_each=schedule_each))
    items = await stored_together(call, plain_lines([PLAIN] * 3) or [])
    assert [(item.status, item.code) for item in items] == [(500, "internal")] * 3
    assert caplog.text.count("incident") == 1
    items[0].at = "$.messages[0]"
    assert items[1].at is None

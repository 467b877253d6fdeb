"""What parsers cost is in proportion to what somebody else sent: requests, messages, answers."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from delaybridge import errors, times
from delaybridge.accept.accept import accept
from delaybridge.accept.destination import parse_destination
from delaybridge.amqp.decoding import decode_table
from delaybridge.ingest.instructions import INSTRUCTIONS, instructions
from delaybridge.message import Limits, Message
from delaybridge.operate.cli.messages.lines import read_lines
from delaybridge.operate.terminal import layout, logs
from delaybridge.operate.terminal.grammar import cursor_of
from delaybridge.publishers.http.outcomes import wait_ms
from delaybridge.recurring.cron import check_cron, check_zone
from delaybridge.recurring.template import check_template
from delaybridge.serve.access.sessions import cookies
from delaybridge.serve.api.messages.raw import STRUCTURED, _attributes
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.console import bodies, lists, rendering
from delaybridge.serve.http import json_text, reading
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.problems import Problem, undecodable
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.settings import urls
from delaybridge.store.protocol.record import first_word
from delaybridge.worker.eventlog import text_of
from tests.rigs import raw_messages, raw_records
from tests.rigs.cost import is_linear

PIECES = [
    "a", "0", " ", "\n", "[", "[]", "{", '{"a":', '"', '\\"', "\\", "'", "%", "%41", "/", "../",
    "://", "a://", "a:", "@", "?", "&", "a=1&", ";", "a; ", ",", "a,", "-", "+", ".", "a.", "é",
    "\x00", "\x1b[", "`", " - at `", "unknown field `", "1h", "redis://:p@h ", "${", "$", "*",
    "a: b\r\n", "<", "😀",
]  # fmt: skip
KINDS = {kind: kind for kind in ("rabbitmq", "kafka", "redis", "http")}
LIMITS = Limits(headers=10**6, headers_bytes=10**9)
OPEN_STRING = b"[]" * 33 + b'"'
POST: Endpoint = next(each for each in ENDPOINTS if each.path == "/v1/messages" and each.body)
Act = Callable[[str], object]


class Query(msgspec.Struct, forbid_unknown_fields=True):
    a: str = ""
    b: int = 0


def each_of(*acts: Act) -> Act:
    """All of them, whatever they raise."""

    def act(text: str) -> None:
        for one in acts:
            try:
                one(text)
            except (errors.DelayBridgeError, Problem, ValueError):
                pass

    return act


def encoded(act: Callable[[bytes], object]) -> Act:
    return lambda text: act(text.encode())


def decoded(raw: bytes, wanted: Any) -> object:
    return asyncio.run(json_text.decoded(raw, wanted))


def as_json(make: Callable[[str], object], wanted: Any) -> Act:
    return lambda text: decoded(json.dumps(make(text)).encode(), wanted)


def accepted(**fields: Callable[[str], Any]) -> Act:
    def act(text: str) -> None:
        given = {"destination": "kafka:a", "delay": 60}
        given |= {name: make(text) for name, make in fields.items()}
        accept(Message(body=b"", **given), KINDS, LIMITS)

    return act


def with_header(name: str) -> Act:
    return lambda text: reading.check_request("POST", {name: text, "host": "a"}, POST, [])


def logged(formatter: logging.Formatter) -> Act:
    def act(text: str) -> None:
        formatter.format(logging.LogRecord("delaybridge", 20, "", 1, "%s", (text,), None))

    return act


def structured(text: str) -> object:
    event = dict.fromkeys(("id", "source", "specversion", "type", text), text)
    body, site = json.dumps(event).encode(), SimpleNamespace(most_dense=10**9)
    call: Any = SimpleNamespace(media=STRUCTURED, body=body, headers={}, site=site)
    return asyncio.run(_attributes(call))


def binary(text: str) -> object:
    headers = {"ce-specversion": "1.0", "ce-id": f'"{text}"', "ce-source": text, "ce-type": text}
    call: Any = SimpleNamespace(media="", headers=headers)
    return asyncio.run(_attributes(call))


def unknown(text: str) -> object:
    return undecodable(msgspec.ValidationError(f"unknown field `{text}` - at `$.a`"), NewMessage)


PARSERS: dict[str, Act] = {
    "JSON": encoded(lambda raw: decoded(raw, dict)),
    "JSON's depth": encoded(lambda raw: json_text.check_depth(OPEN_STRING + raw)),
    "JSON: a field": as_json(lambda text: {text: 1}, NewMessage),
    "JSON: values": as_json(lambda text: dict.fromkeys(("id", "delay", "due"), text), NewMessage),
    "JSON: headers": as_json(lambda text: {"headers": [[text, text]]}, NewMessage),
    "query": encoded(lambda raw: reading.query_of(raw, Query)),
    "query: a value": encoded(lambda raw: reading.query_of(b"b=" + raw, Query)),
    "path": lambda text: reading.segment(text, "id"),
    "refusal": lambda text: Problem(400, "x", text, text).content,
    "refusal by msgspec": unknown,
    **{f"header: {name}": with_header(name) for name in ("accept", "origin", "content-type")},
    "header: host": lambda text: reading.check_request("GET", {"host": text}, POST, ["a"]),
    "header: cookie": lambda text: cookies({"cookie": text}),
    "header: language": lambda text: rendering.language_of({"accept-language": text}, ""),
    "CloudEvent": each_of(structured, binary),
    "console: a body": encoded(lambda raw: bodies.viewed(raw)),
    "console: a body with an open string": encoded(
        lambda raw: bodies.viewed(b"[" + OPEN_STRING + raw)
    ),
    "console: a body's forms": encoded(lambda raw: [bodies.viewed(raw, f) for f in bodies.FORMS]),
    "console: a time": lambda text: lists.point_ms(text, 1, "x"),
    "console: links": lambda text: lists.pager("/m", {"a": text}, text, text, text),
    "console: a path": lambda text: rendering.link(f"/m/{rendering.segment(text)}", a=text),
    "times": each_of(times.delay_ms, times.at_ms, times.offset_ms),
    "instructions": each_of(
        *(lambda text, name=name: instructions([(name, text)]) for name in sorted(INSTRUCTIONS)),
        lambda text: instructions([(text, text)]),
        lambda text: instructions([(f"delaybridge-{text}", text)]),
    ),
    "destination": each_of(
        *(lambda text, at=at: parse_destination(f"{at}:{text}", KINDS) for at in KINDS),
        lambda text: parse_destination(text, KINDS),
        lambda text: parse_destination(f"rabbitmq:a/{text}", KINDS),
    ),
    "message": each_of(
        *(accepted(**{name: str}) for name in ("id", "key", "delay", "destination")),
        accepted(headers=lambda text: {text: text}),
        accepted(properties=lambda text: {text: text}),
        accepted(at=str, delay=lambda _: None),
    ),
    "a URL in a text": urls.redact_text,
    "a URL": lambda text: urls.redact(urls.SecretUrl(text)),
    "a URL's options": lambda text: urls.redact(urls.SecretUrl(f"amqp://h/?{text}")),
    "Retry-After": wait_ms,
    "Retry-After: a date": lambda text: wait_ms(f"Mon, 01 Jan {text} 00:00:00 GMT"),
    "cron": each_of(lambda text: check_cron(text, 1_700_000_000_000), check_zone),
    "template": encoded(lambda raw: check_template(raw, "body")),
    "log": each_of(
        lambda text: text_of({"a": text}),
        logged(logs.JsonFormatter()),
        logged(logs.TextFormatter()),
        errors.printable,
        errors.quoted,
        first_word,
    ),
    "command line": each_of(lambda text: layout.shortened(text, 40), cursor_of),
    "command line: lines": encoded(lambda raw: list(read_lines(io.BytesIO(raw), 1 << 20))),
    "AMQP table": encoded(decode_table),
    "AMQP headers": each_of(
        *(
            lambda text, name=name: raw_messages.read(raw_messages.delivered({name: text}))
            for name in ("x-delay", "delaybridge-due", "delaybridge-destination", "x-other")
        )
    ),
    "Kafka headers": each_of(
        *(
            lambda text, name=name: raw_records.read([(name or text, text.encode())])
            for name in ("delaybridge-due", "delaybridge-destination", "scheduler-epoch", "")
        )
    ),
}


def repeated(piece: str) -> Callable[[int], str]:
    return lambda size: piece * (size // len(piece))


@pytest.mark.parametrize("parser", PARSERS)
def test_a_text_twice_as_long_costs_less_than_three_times_as_much(parser: str) -> None:
    hard = (piece for piece in PIECES if not is_linear(PARSERS[parser], repeated(piece)))
    assert next(hard, None) is None


def many_headers(count: int) -> bytes:
    """As in a table of AMQP."""
    return b"".join(raw_messages.raw(f"h{n}", b"S", b"\0\0\0\1x") for n in range(count // 8))


MANY: dict[str, tuple[Callable[[Any], object], Callable[[int], Any]]] = {
    "fields": (
        lambda raw: decoded(raw, dict),
        lambda n: b"{" + b",".join(b'"a%d" :1' % i for i in range(n // 8)) + b"}",
    ),
    "headers of a message": (
        lambda pairs: accept(Message("kafka:a", b"", delay=1, headers=pairs), KINDS, LIMITS),
        lambda n: [(f"h{i}", b"x") for i in range(n // 8)],
    ),
    "headers of a message from RabbitMQ": (
        lambda table: raw_messages.read(raw_messages.delivered(table)),
        many_headers,
    ),
    "headers of a record": (
        raw_records.read,
        lambda n: [("delaybridge-delay", b"1h"), *[("X-Delay", b"x")] * (n // 8)],
    ),
    "cursors of a console's link": (
        lambda back: lists.pager("/m", {}, "c", back, "d"),
        lambda n: "c." * (n // 2),
    ),
}


@pytest.mark.parametrize("what", MANY)
def test_twice_as_many_cost_less_than_three_times_as_much(what: str) -> None:
    assert is_linear(*MANY[what])

"""No text that comes from outside is interned: some versions of Python 3.12 keep it for ever."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import delaybridge
from delaybridge.accept.destination import parse_destination
from delaybridge.amqp.decoding import decode_table
from delaybridge.amqp.encoding import encode_table
from delaybridge.ingest.instructions import instructions
from delaybridge.message import Record, decode_record, encode_record
from delaybridge.operate.notices import event_channel
from delaybridge.serve.api.messages.messages import OfKey
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.http.json_text import as_type
from delaybridge.serve.http.reading import query_of, segment
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.serve.stored.jobs import Job

COUNT = 50
BODIES = {each.body for each in ENDPOINTS if each.body not in (None, bytes)}


def texts_in(found: Any) -> Iterator[str]:
    """Every text in a value: also names, and what is in structs."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, msgspec.Struct):
        yield from texts_in([getattr(found, name) for name in found.__struct_fields__])
    elif isinstance(found, dict):
        yield from texts_in([*found, *found.values()])
    elif isinstance(found, list | tuple):
        for each in found:
            yield from texts_in(each)


def is_interned(text: str) -> bool:
    copy = "".join([*text])  # another object; `intern` answers with the one that was interned
    return sys.intern(copy) is not copy


def nested(kind: type, text: str) -> bytes:
    """JSON that this struct takes, with the text wherever one may be."""
    schema = _schema(kind)
    return json.dumps(_value(schema, schema.get("$defs", {}), text)).encode()


@cache
def _schema(kind: type) -> dict[str, Any]:
    return msgspec.json.schema(kind)


def _value(schema: dict[str, Any], defs: dict[str, Any], text: str) -> Any:
    if "$ref" in schema:
        return _value(defs.get(schema["$ref"].rpartition("/")[2], {}), defs, text)
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if each != {"type": "null"}]
        return _value(kinds[0], defs, text)
    if "enum" in schema:
        return schema["enum"][0]
    if "contentEncoding" in schema:
        return ""
    kind = schema.get("type")
    if kind == "object":
        own = {n: _value(each, defs, text) for n, each in schema.get("properties", {}).items()}
        more = schema.get("additionalProperties")
        return own or {text: _value(more if isinstance(more, dict) else {}, defs, text)}
    if kind == "array":
        return [_value(schema.get("items") or {}, defs, text)]
    given = {"integer": 1, "number": 1.5, "boolean": True, "string": text}
    return given.get(kind or "", {text: [text]})


def of_body(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        found = as_type(nested(kind, text), kind)
        raws = getattr(found, "messages", [])
        return [found, *(as_type(bytes(each), dict[str, Any]) for each in raws)]

    return read


def of_message(text: str) -> Any:
    found = NewMessage(destination=f"kafka:{text}", body="", delay=f"{int(text[1:], 16)}ms")
    made = found.message()
    return [made.destination, made.delay]


def of_record(text: str) -> Any:
    raw = encode_record(Record(f"kafka:{text}", b"", ((text, text.encode()),), None))
    return decode_record(raw)


def of_beat(text: str) -> Any:
    told = {"at_ms": 1, "level": 20, "event": text, "fields": {text: text}}
    beat = {"worker": text, "instance": text, "number": 1, "lines": [told]}
    return event_channel.read(json.dumps(beat))


WITH_TEXT = [
    kind for kind in sorted(BODIES, key=lambda k: k.__name__) if b"a text" in nested(kind, "a text")
]
READERS: dict[str, Callable[[str], Any]] = {
    **{f"body {kind.__name__}": of_body(kind) for kind in WITH_TEXT},
    "job": of_body(Job),
    "message": of_message,
    "record": of_record,
    "beat": of_beat,
    "segment": lambda text: segment(f"{text}%20", "id"),
    "query": lambda text: query_of(f"key={text}".encode(), OfKey),
    "table": lambda text: decode_table(encode_table([(text, text), ("a", {text: [text]})])),
    "instructions": lambda text: instructions(
        [("delaybridge-delay", b"5s"), ("delaybridge-id", text.encode())]
    ),
    "destination": lambda text: parse_destination(f"kafka:{text}", {"kafka": "kafka"}),
}


@pytest.mark.parametrize("reader", READERS)
def test_texts_that_were_read_are_not_interned(reader: str) -> None:
    held = [READERS[reader](f"x{id(reader):x}{number:06x}") for number in range(COUNT)]
    own = [text for text in texts_in(held) if re.search(r"x[0-9a-f]{8,}|[0-9]{9,}ms", text)]
    assert len(own) >= COUNT
    assert sum(map(is_interned, set(own))) == 0  # asking about one may keep it, in Python 3.12


def test_nothing_in_the_package_interns_by_itself() -> None:
    root = Path(delaybridge.__file__).parent
    found = [
        p for p in root.rglob("*.py") if re.search(r"\bintern\b\(|import intern", p.read_text())
    ]
    assert found == []

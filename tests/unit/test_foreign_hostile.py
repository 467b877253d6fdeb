"""Whatever stands in the place of an entry of another system: a line, or a fault that is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaybridge.carry.line import BadLine, Line
from delaybridge.foreign.bullmq import BullMQ
from delaybridge.foreign.celery import CeleryRedis
from delaybridge.foreign.redis_source import RedisSource

WORDS = st.sampled_from(
    ["headers", "properties", "body", "task", "id", "eta", "content-type", "content-encoding"]
    + ["body_encoding", "x"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=9,
)
BYTES = st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode())
SCORES = st.floats()


PLACES = [
    (CeleryRedis, b"queue", "queue"),
    (CeleryRedis, b"unacked", ""),
    (BullMQ, b"bull:queue:delayed", "queue"),
]


@pytest.mark.parametrize(("kind", "key", "queue"), PLACES)
@settings(deadline=None, max_examples=20)
@given(entries=st.lists(st.tuples(BYTES, SCORES, BYTES | st.none()), max_size=3), data=st.data())
def test_an_entry_is_a_line_or_a_fault(
    kind: type[RedisSource], key: bytes, queue: str, entries: list[Any], data: st.DataObject
) -> None:
    source = kind("redis://127.0.0.1:1", "kafka:{queue}", (), "")
    row = st.lists(BYTES | st.none(), min_size=6, max_size=6) if kind is BullMQ else st.none()
    replies = [data.draw(row) if kind is BullMQ else each for _, _, each in entries]
    source.hashes = lambda *_: replies  # type: ignore[method-assign]
    marks = {b"queue": [None] * 3, b"unacked": [b"tag"] * 3}.get(key)
    members = [(raw, marks[0] if marks else score) for raw, score, _ in entries]
    if key == b"unacked":
        members = [(b'[%b, 1, "queue"]' % raw, tag) for raw, tag in members]
    for line in source.page(key, queue, members):
        assert line is None or isinstance(line, Line | BadLine)
        assert not isinstance(line, BadLine) or str(line).isprintable()

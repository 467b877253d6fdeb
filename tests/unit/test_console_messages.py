"""The console's messages without a server: how bodies are shown, times read, pages linked."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from delaybridge.errors import MessageError
from delaybridge.ledger.recording.life_of_id import RecordedCall, RecordedLife, RecordedStep
from delaybridge.message import new_id
from delaybridge.serve.api.messages.shapes import StoredMessage
from delaybridge.serve.console.bodies import MOST_BYTES, viewed
from delaybridge.serve.console.lists import drawn_ms, pager, point_ms
from delaybridge.serve.console.timeline import gaps_of, steps_of

NOW = 1_900_000_000_000


@pytest.mark.parametrize(
    ("body", "form", "text"),
    [
        (b'{"a": 1e400, "b": [12345678901234567890]}', "json",
         '{\n  "a": 1e400,\n  "b": [\n    12345678901234567890\n  ]\n}'),
        (b"order 42", "text", "order 42"),
        (b"42", "text", "42"),
        (b"{not json", "text", "{not json"),
        ("中文\n".encode(), "text", "中文\n"),
        (msgspec.msgpack.encode({"a": [1, b"x"]}), "msgpack",
         '{\n  "a": [\n    1,\n    "eA=="\n  ]\n}'),
        (msgspec.msgpack.encode({b"k": 1, None: 2}), "msgpack", '{\n  "aw==": 1,\n  "None": 2\n}'),
        (b"\x00\x01\xff binary", "hex",
         "00000000  00 01 ff 20 62 69 6e 61 72 79                    ... binary"),
        (b"\x80\x04\x95cposix\nsystem\n", "hex", None),  # a pickle is bytes
    ],
)  # fmt: skip
def test_a_body_is_shown_as_what_it_is(body: bytes, form: str, text: str | None) -> None:
    found = viewed(body)
    assert (found.form, found.is_cut) == (form, False)
    assert text is None or found.text == text


def test_a_body_is_shown_as_asked_if_it_can_be() -> None:
    body = b'{"a":1}'
    assert [viewed(body, form).form for form in ("json", "text", "hex")] == ["json", "text", "hex"]
    assert viewed(b"42", "json").text == "42"
    assert viewed(b"nothing", "json").form == "text"
    assert viewed(b"\xff\xfe", "text").text == "\ufffd\ufffd"
    assert viewed(b"\x07", "msgpack").text == "7"


@pytest.mark.parametrize("body", [b"[" * 40_000, b"\x91" * 40_000, b"[" * 60 + b"]" * 60])
def test_nesting_does_not_make_a_page_large(body: bytes) -> None:
    found = viewed(body)
    assert found.form in ("text", "hex") and len(found.text) < 6 * MOST_BYTES


def test_a_large_body_is_cut() -> None:
    text = viewed(json.dumps(["é" * 50_000], ensure_ascii=False).encode())
    assert (text.form, text.is_cut) == ("text", True)
    assert len(text.text.encode()) <= MOST_BYTES
    raw = viewed(bytes(range(256)) * 1000)
    assert (raw.form, raw.is_cut, raw.text.count("\n")) == ("hex", True, MOST_BYTES // 16 - 1)


def test_an_id_of_ours_tells_when_it_was_drawn() -> None:
    before_ms, id, after_ms = time.time_ns() // 1_000_000, new_id(), time.time_ns() // 1_000_000
    drawn = drawn_ms(id)
    assert drawn is not None and before_ms <= drawn <= after_ms
    assert [drawn_ms(id) for id in ("order-42", "0" * 26, "", "z" * 26)] == [None] * 4


@pytest.mark.parametrize(
    ("text", "away_ms"),
    [("now", 0), ("10m", 600_000), ("+10m", 600_000), ("-1h30m", -5_400_000), ("PT15M", 900_000)],
)
def test_a_time_may_be_relative(text: str, away_ms: int) -> None:
    assert point_ms(text, NOW, "due_from") == NOW + away_ms


def test_a_time_may_be_absolute_or_is_refused() -> None:
    assert point_ms("2030-01-31T09:00:00Z", NOW, "due_from") == 1_896_080_400_000
    for text in ("tomorrow", "10", "2030-01-31", "--5m", "1700000000"):
        with pytest.raises(MessageError):
            point_ms(text, NOW, "due_from")


def test_the_pages_of_a_list_lead_forth_and_back() -> None:
    first = pager("/m", {"a": 1}, None, "", "c2")
    assert first == ("/m?a=1&cursor=c2", None)
    second = pager("/m", {"a": 1}, "c2", "", "c3")
    assert second == ("/m?a=1&cursor=c3&back=c2", "/m?a=1")
    third = pager("/m", {"a": 1}, "c3", "c2", None)
    assert third == (None, "/m?a=1&cursor=c2")
    assert pager("/m", {}, "c4", "c2.c3", None).before == "/m?cursor=c3&back=c2"


def test_the_links_of_a_long_list_stay_short() -> None:
    back, cursor = "", "0" * 300
    for _ in range(50):
        found = pager("/m", {}, cursor, back, cursor)
        assert found.following is not None and len(found.following) < 3000
        back = found.following.partition("back=")[2]
        assert set(back.split(".")) == {cursor}  # none is cut in two


def stored(**fields: object) -> StoredMessage:
    given = {"id": "a", "state": "delayed", "destination": "memory:q", "due": "", "due_ms": NOW,
             "attempts": 0, "body_bytes": 0, **fields}  # fmt: skip
    return StoredMessage(**given)  # type: ignore[arg-type]


def test_a_life_is_told_in_order_by_the_ledger() -> None:
    call = RecordedCall("published", 5000, "memory:q", 3, "", "", 1000, 5900)
    steps = [
        RecordedStep("in_flight", "delayed", "", 5100, "w", 3, "broker_away: refused"),
        RecordedStep("in_flight", "published", "", 5900, "w", 3, ""),
    ]
    life = RecordedLife([call], steps)
    found = steps_of(stored(state="published", due_ms=5000, life=life), NOW)
    assert [(step.what, step.at_ms, step.where) for step in found] == [
        ("scheduled", 1000, "bucket 3"), ("due", 5000, ""), ("failed", 5100, "w, bucket 3"),
        ("published", 5900, "w, bucket 3"),
    ]  # fmt: skip
    assert [step.note for step in found if step.is_bad] == ["broker_away: refused"]
    assert [(gap.ms, gap.is_bad) for gap in gaps_of(found)] == [
        (4000, False), (100, True), (800, False),
    ]  # fmt: skip
    assert [gap.width for gap in gaps_of(found)] == [5, 3, 4]


def test_without_a_ledger_a_life_is_what_the_record_says() -> None:
    item = stored(first_due_ms=NOW - 9000, failing_since_ms=NOW - 8990, last_error="broker_away: x",
                  due_ms=NOW + 1000, attempts=2)  # fmt: skip
    assert [(step.what, step.at_ms - NOW, step.is_ahead) for step in steps_of(item, NOW)] == [
        ("first_due", -9000, False), ("failed_first", -8990, False), ("due", 1000, True),
    ]  # fmt: skip

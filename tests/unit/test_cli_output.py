"""How results are printed: escaped, aligned, fitted to the terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.cells import cell_len

from delaybridge.errors import StoreError
from delaybridge.ingest.rabbitmq import remedies
from delaybridge.ingest.routes import Route
from delaybridge.message import State
from delaybridge.operate.cli.messages import stored as stored_page
from delaybridge.operate.terminal import layout, output, streams
from delaybridge.operate.terminal.failure import Failure, failure_of
from delaybridge.operate.terminal.grammar import cursor_of
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.logs import log_text
from delaybridge.store.protocol.stored import Stored
from delaybridge.times import in_time

HOSTILE = "\x1b[31m\u202e\r\n\x07\x9b"


def stored(**more: Any) -> Stored:
    fields = {"state": State.DELAYED, "due_ms": 1_900_000_000_000, "priority": 0, "bucket": 3}
    return Stored(**{"id": "x", "destination": "kafka:t", "body": b"", **fields, **more})


def test_hostile_bytes_are_escaped_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    message = stored(
        id=HOSTILE,
        destination=HOSTILE,
        body=HOSTILE.encode(),
        headers=[(HOSTILE, HOSTILE), ("b", b"\xff\x1b")],
        properties={"app_id": HOSTILE},
        reason=HOSTILE,
        key=HOSTILE.encode(),
    )
    call = Invocation(output.Output())
    stored_page.show_stored(call, message, "text", 0)
    call.output.table(
        [message], lambda item: stored_page.cells_of(item, 0), data=stored_page.described
    )
    call.note(HOSTILE)
    stored_page.show_stored(Invocation(output.Output(json=True)), message, "text", 0)
    failure_of(StoreError(HOSTILE)).show(as_json=False)
    failure_of(StoreError(HOSTILE)).show(as_json=True)
    out, err = capsys.readouterr()
    for char in ("\x1b", "\u202e", "\x07", "\x9b", "\r"):
        assert char not in out + err
    assert "\\x1b[31m\\u202e" in out
    assert log_text(f"log {HOSTILE}").count("\n") == 0


@pytest.mark.parametrize(
    ("body", "form", "expected"),
    [
        (b"a\tb\nc", "text", ["a\\x09b", "c"]),
        (b"\xff", "text", ["\\xff"]),
        (b'{"a":[1]}', "json", ["{", '  "a": [', "    1", "  ]", "}"]),
        (b"A\x00", "hex", ["00000000  41 00" + " " * 44 + "A."]),
    ],
)
def test_bodies(
    capsys: pytest.CaptureFixture[str], body: bytes, form: str, expected: list[str]
) -> None:
    stored_page.show_stored(Invocation(output.Output()), stored(body=body), form, 0)
    assert capsys.readouterr().out.splitlines()[-len(expected) :] == expected


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(Failure, match="not JSON"):
        stored_page.show_stored(Invocation(output.Output()), stored(body=body), "json", 0)


def test_a_raw_body_is_only_its_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    stored_page.show_stored(Invocation(output.Output()), stored(body=b"\xff\x1b\n"), "raw", 0)
    assert capfdbinary.readouterr().out == b"\xff\x1b\n"


def test_a_raw_body_is_not_printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with pytest.raises(Failure, match="control this terminal"):
        stored_page.show_stored(Invocation(output.Output()), stored(body=b"x"), "raw", 0)


def test_a_null_body_is_not_shown_as_an_empty_one(capsys: pytest.CaptureFixture[str]) -> None:
    for body in (None, b""):
        stored_page.show_stored(Invocation(output.Output()), stored(body=body), "text", 0)
    out = capsys.readouterr().out
    assert out.count("body is null") == 1


@pytest.mark.parametrize(
    ("env", "tty", "refused", "colored"),
    [
        ({"TERM": "xterm"}, True, False, True),
        ({"TERM": "xterm"}, False, False, False),
        ({"TERM": "xterm"}, True, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False, True),
        ({"TERM": "dumb"}, True, False, False),
        ({}, True, False, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], tty: bool, refused: bool, colored: bool
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: tty)
    assert streams.wants_color(refused=refused, stream=stream) is colored


def test_a_verdict_is_coloured_and_its_text_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.Output(color=True).verdict({}, output.FAIL, HOSTILE)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[31mFAIL\x1b[0m  \\x1b[31m")
    assert out.count("\x1b") == 2


def show_table(rows: list[tuple[str, str]], *, number: str = "N") -> bool:
    return output.Output().table(rows, lambda row: {"NAME": row[0], number: row[1]})


def test_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_table([("a", "1"), ("long", "1000")], number=">N")
    assert capsys.readouterr().out == "NAME     N\na        1\nlong  1000\n"


TITLES = ("IN", "ID", "DESTINATION", ">TRY", "HEADERS", "REASON")
ROWS = [
    (
        "in 15m",
        "06ca3gjv7pui370b9dt0o79e7s",
        "rabbitmq:orders/close",
        "3",
        "order=42 shop=北京",
        "",
    ),
    ("2h ago", "order-" + "7" * 60, "kafka:t", "12", "", ""),
]


def fitted(width: int | None) -> list[str]:
    rows = [dict(zip(TITLES, row, strict=True)) for row in ROWS]
    return layout.table(rows, ("HEADERS", ">TRY"), width)


@pytest.mark.parametrize(
    ("width", "left"),
    [
        *((width, []) for width in (32, 40, 60)),
        *((width, ["TRY"]) for width in (66, 80)),
        *((width, ["TRY", "HEADERS"]) for width in (100, 120, 200)),
    ],
)
def test_tables_fit_the_terminal_and_leave_out_the_least_important_columns(
    width: int, left: list[str]
) -> None:
    lines = fitted(width)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) == 3
    assert lines[0].startswith("IN      ID")
    assert [title for title in ("TRY", "HEADERS") if title in lines[0]] == left


def test_tables_are_complete_in_a_pipe_or_if_they_fit() -> None:
    whole = fitted(None)
    assert fitted(200) == whole
    assert "order-" + "7" * 60 in whole[2]
    assert whole[1].endswith("shop=北京")


def test_ids_lose_their_middle_and_prose_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(66)[1].split()[2] == "06ca3gjv7pui370b9dt0o79e7s"
    assert layout.shortened("06ca3gjv7pui370b9dt0o79e7s", 11) == "06ca3…9dt0"[:5] + "…" + "79e7s"
    assert layout.shortened("unroutable: 312 NO_ROUTE", 12) == "unroutable:…"
    assert layout.shortened("北京北京北京", 8) == "北京…京"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert layout.shortened("06ca3gjv7pui370b9dt0o79e7s", 11) == "06ca...9e7s"


def test_wide_characters_are_two_cells(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([("北京", "1"), ("abc", "2")])
    assert capsys.readouterr().out == "NAME  N\n北京  1\nabc   2\n"


def test_a_verdict_is_wrapped_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "redis: appendonly no: a restart loses delayed messages. Set: appendonly yes"
    output.Output().verdict({}, output.WARN, text)
    assert capsys.readouterr().out == f"WARN  {text}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    output.Output().verdict({}, output.WARN, text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("      delayed")
    assert max(map(len, lines)) <= 50


@pytest.mark.parametrize("width", [10, 50, 80, 400])
@pytest.mark.parametrize(
    "command",
    [
        remedies.unbind("/", "orders.delay", "queue", "it's; a (queue)"),
        remedies.unbind("/", "orders.delay", "exchange", "wrong"),
        "rabbitmqctl set_policy x '^x(\\.y)?$' '{\"a\": 1}' && rabbitmqctl set_operator_policy x",
        "delaybridge ingest rabbitmq --convert rabbitmq:orders.delay=orders",
        remedies.convert(Route("rabbitmq", "rabbitmq", "a(b).delay", "$d")),
    ],
)
def test_a_command_is_not_broken_by_a_terminal(command: str, width: int) -> None:
    text = f"orders.delay: somebody did this; run: {command} (it said so); another; run: {command}"
    lines = layout.wrapped(text, width, "      ").split("\n      ")
    assert sum(line.count(command) for line in lines) == 2
    assert all(line == command for line in lines if len(line) > width)


def test_each_command_of_a_remedy_has_a_line_of_its_own() -> None:
    first = "rabbitmqadmin declare queue --name orders --type quorum --durable true --vhost shop.eu"
    then = "delaybridge dead kick --destination rabbitmq:/orders --yes"
    text = f"queue orders is missing. Declare it: {first}. Bring back what was given up: {then}"
    lines = layout.wrapped(text, 60, "").split("\n")
    assert first in lines and then in lines and "Bring back what was given up:" in lines


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "in 0ms"),
        (41, "in 41ms"),
        (2345, "in 2.3s"),
        (41_600, "in 42s"),
        (59_970, "in 1m"),
        (251_600, "in 4m12s"),
        (899_001, "in 15m"),
        (5_399_000, "in 1h30m"),
        (86_399_000, "in 1d"),
        (604_799_000, "in 7d"),
        (-7_000, "7s ago"),
    ],
)
def test_times_are_rounded_as_people_round_them(ms: int, text: str) -> None:
    assert in_time(ms) == text


def test_an_empty_table_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert not show_table([])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "cursor", [(1795197600450.9961, "a:b c"), (5.0, "é"), (1795197600450.0, "x")]
)
def test_cursors_survive_a_shell(cursor: tuple[float, str]) -> None:
    assert cursor_of(stored_page.cursor_text(cursor)) == cursor

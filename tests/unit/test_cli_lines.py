"""The body from stdin, and `schedule --lines`."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from itertools import islice
from typing import IO, Any

import pytest

from delaybridge.message import Message
from delaybridge.operate import cli
from delaybridge.operate.cli.messages import lines
from delaybridge.operate.terminal import output
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation
from tests.rigs.waiting import DEADLINE_S

NOWHERE = ("--redis", "redis://127.0.0.1:1/0")
WHEN = ("--in", "5m")


def refused_body(stdin: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", stdin)
    return cli.main(["--json", *NOWHERE, "schedule", "kafka:t", "-", *WHEN])


def error_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    error = json.loads(capsys.readouterr().err)["error"]
    return error["code"], error["field"]


def test_stdin_closed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused_body(None, monkeypatch) == 2
    assert error_of(capsys) == ("usage", "BODY")


def test_stdin_endless_is_read_to_the_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/zero", encoding="latin-1") as zero:
        assert refused_body(zero, monkeypatch) == 2
    assert error_of(capsys) == ("body_too_large", "BODY")


class Keyboard(io.TextIOWrapper):
    """A terminal on which nothing is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("impatient")
def test_stdin_is_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Keyboard(io.BytesIO()))
    assert cli.main([*NOWHERE, "schedule", "kafka:t", "-", *WHEN]) == 5
    assert "Ctrl-D ends it" in capsys.readouterr().err


class Trickle(io.RawIOBase):
    """A stream that hands out what it is told to, and counts."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = list(chunks)
        self.read_bytes = 0

    def read1(self, size: int = -1) -> bytes:
        chunk = self.chunks.pop(0) if self.chunks else b""
        self.read_bytes += len(chunk)
        return chunk


def bodies(*chunks: bytes, limit: int = 10) -> list[tuple[int, bytes | None]]:
    stream: Any = Trickle(*chunks)
    found = lines.read_lines(stream, limit)
    return [(line.number, line.body) for line in found if line is not None]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((), []),
        ((b"a",), [(1, b"a")]),
        ((b"a\nb\n",), [(1, b"a"), (2, b"b")]),
        ((b"a\r\nb\r\n",), [(1, b"a"), (2, b"b")]),
        ((b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n",), [(1, b"a"), (2, b"\xef\xbb\xbfb")]),
        ((b"\n\r\n\na\n\n",), [(4, b"a")]),
        ((b"a", b"b\nc", b"\n", b"d"), [(1, b"ab"), (2, b"c"), (3, b"d")]),
        ((b"\xef", b"\xbb\xbfa"), [(1, b"a")]),
        ((b"x" * 10 + b"\r\n",), [(1, b"x" * 10)]),
        ((b"x" * 11 + b"\nb",), [(1, None), (2, b"b")]),
        ((b"x" * 11,), [(1, None)]),
        ((b"x" * 100, b"x" * 100, b"\nb\n"), [(1, None), (2, b"b")]),
        ((b"a\n" + b"x" * 30 + b"\n", b"c"), [(1, b"a"), (2, None), (3, b"c")]),
        ((b"a\x00\xff\n",), [(1, b"a\x00\xff")]),
        ((b" a \n",), [(1, b" a ")]),
    ],
)
def test_lines(chunks: tuple[bytes, ...], expected: list[tuple[int, bytes | None]]) -> None:
    assert bodies(*chunks) == expected


def test_a_line_without_end_is_refused_before_it_ends() -> None:
    stream: Any = Trickle(*[b"x" * 1000] * 1000)
    first = next(lines.read_lines(stream, 1500))
    assert first is not None
    assert (first.number, first.body) == (1, None)
    assert stream.read_bytes == 2000


def test_lines_pause_when_the_input_does() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as stream, os.fdopen(write_end, "wb", 0) as sink:
        found = lines.read_lines(stream, 10)
        sink.write(b"a\nb")
        first = next(found)
        assert first is not None
        assert first.body == b"a"
        assert next(found) is None
        sink.write(b"c\n")
        second = next(found)
        assert second is not None
        assert second.body == b"bc"


class FakeClient:
    """Counts scheduled messages."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []

    def schedule_many(self, messages: list[Message], *, on_conflict: str) -> list[str]:
        self.batches.append(messages)
        return ["created"] * len(messages)


def drain(
    data: bytes, *, keep_going: bool, limit: int = 10
) -> tuple[int, FakeClient, lines.LineBatches]:
    """Run --lines over the data without a store."""
    client: Any = FakeClient()
    call: Any = Invocation(output.Output())
    arguments = {"destination": "kafka:t", "delay": "1m"}
    bulk = lines.LineBatches(call, client, arguments, "fail", quiet=True)
    stream: IO[bytes] = io.BytesIO(data)
    found = lines.read_lines(stream, limit)
    code = bulk.drain(found, limit, lambda size: None, keep_going=keep_going)
    return code, client, bulk


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_an_object_is_finalized_is_not_lost() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with interrupts(signal.SIGINT) as check:
        check()
        Finalized()  # Python says that it ignores this one
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("data", "keep_going", "code", "scheduled"),
    [
        (b"", False, Exit.DONE, 0),
        (b"\n\n", False, Exit.DONE, 0),
        (b"a\nb\n", False, Exit.DONE, 2),
        (b"a\n" + b"x" * 11 + b"\nb\n", False, Exit.PARTLY, 1),
        (b"a\n" + b"x" * 11 + b"\nb\n", True, Exit.PARTLY, 2),
        (b"x" * 11 + b"\nb\n", False, Exit.REFUSED, 0),
        (b"x" * 11 + b"\n", True, Exit.REFUSED, 0),
    ],
)
def test_lines_exit_codes(data: bytes, keep_going: bool, code: int, scheduled: int) -> None:
    found, _, bulk = drain(data, keep_going=keep_going)
    assert (found, bulk.scheduled) == (code, scheduled)


def test_lines_that_were_not_read_are_counted() -> None:
    data = b"a\n" + b"x" * 11 + b"\nb\n\nc\n"
    stream: IO[bytes] = io.BytesIO(data)
    found = lines.read_lines(stream, 10)
    assert [line.number for line in islice(found, 2) if line] == [1, 2]
    assert lines.unread(found, stream) == (2, True)


def test_lines_of_an_endless_stream_are_counted_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "COUNTING_S", 0.01)
    stream: Any = Trickle(*[b"x\n" * 1000] * 10_000)
    count, is_all = lines.unread(lines.read_lines(stream, 10), stream)
    assert (count > 0, is_all) == (True, False)
    monkeypatch.setattr(lines, "COUNTING_S", DEADLINE_S)
    monkeypatch.setattr(lines, "PATIENCE_S", 0)
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe, os.fdopen(write_end, "wb", 0) as sink:
        sink.write(b"a\nb\n")
        assert lines.unread(lines.read_lines(pipe, 10), pipe) == (2, False)


def test_a_refused_line_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    drain(b"a\n\n" + b"x" * 11 + b"\n", keep_going=True)
    assert capsys.readouterr().err.startswith("error: line 3: ")


def test_lines_travel_in_batches() -> None:
    _, client, _ = drain(b"a\n" * 1201, keep_going=False)
    assert [len(batch) for batch in client.batches] == [500, 500, 201]
    _, client, _ = drain((b"x" * 2**20 + b"\n") * 9, keep_going=False, limit=2**20)
    assert max(len(batch) for batch in client.batches) <= 4

"""`schedule --lines`: stdin line by line, in batches, in bounded memory."""

from __future__ import annotations

import json
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from delaybridge.cli.failure import INTERRUPTED, Exit, Failure, report_of
from delaybridge.cli.schedule import shown, stdin_bytes, warn_if_nobody_works
from delaybridge.cli.session import Session, never_sent
from delaybridge.worker.interrupts import interrupts

if TYPE_CHECKING:
    from delaybridge.client import Client

BATCH_MESSAGES = 500
BATCH_BYTES = 4 * 2**20
_CHUNK_BYTES = 64 * 2**10
_PATIENCE_S = 0.5  # for more of what is only counted, from a pipe
_COUNTING_S = 2.0
_BOM = b"\xef\xbb\xbf"
Progress = Callable[[int], None]


class Line(NamedTuple):
    """One line of input. body: None where it is longer than accepted. size: bytes read for it."""

    number: int
    body: bytes | None
    size: int


def read_lines(stream: IO[bytes], limit: int) -> Iterator[Line | None]:
    """Every line that is not empty; None whenever the input pauses.

    CR LF and a byte order mark are taken off. A line longer than `limit` is not kept in memory:
    it is reported when the limit is passed, before its end has been read.
    """
    number = 1
    kept = b""
    skipping = False
    while chunk := stream.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            if not skipping:
                yield from _line(number, kept + part, limit)
            number, kept, skipping = number + 1, b"", False
        if not skipping:
            kept += rest
            if len(kept) > limit + len(_BOM) + 1:
                yield Line(number, None, len(kept))
                kept, skipping = b"", True
        if not _is_ready(stream):
            yield None
    if not skipping:
        yield from _line(number, kept, limit)


def _line(number: int, raw: bytes, limit: int) -> Iterator[Line]:
    body = raw.removeprefix(_BOM) if number == 1 else raw
    body = body.removesuffix(b"\r")
    if body:
        yield Line(number, body if len(body) <= limit else None, len(raw) + 1)


def unread(lines: Iterator[Line | None], stream: IO[bytes]) -> tuple[int, bool]:
    """How many lines were left, and whether that is all: a stream may go on for ever."""
    count, until_s = 0, time.monotonic() + _COUNTING_S
    for line in lines:
        if line is not None:
            count += 1
        elif not _is_ready(stream, _PATIENCE_S):
            return count, False
        if time.monotonic() > until_s:
            return count, False
    return count, True


def _is_ready(stream: IO[bytes], patience_s: float = 0) -> bool:
    """Whether more can be read within that time; what is no file always can."""
    try:
        return bool(select.select([stream.fileno()], [], [], patience_s)[0])
    except (OSError, ValueError):
        return True


@dataclass
class Bulk:
    """The messages of one `--lines`: gathered, sent in batches, counted."""

    session: Session
    client: Client
    arguments: dict[str, Any]
    on_conflict: str
    quiet: bool
    sent: Callable[[], None] = lambda: None
    scheduled: int = 0
    refused: int = 0
    unread: tuple[int, bool] = (0, True)
    batch: list[Line] = field(default_factory=list)
    batch_bytes: int = 0

    def add(self, line: Line) -> None:
        """Take a line; send the batch if it is full."""
        self.batch.append(line)
        self.batch_bytes += line.size
        if len(self.batch) >= BATCH_MESSAGES or self.batch_bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was gathered. After an error whose outcome is unknown, says which lines."""
        from delaybridge.errors import StoreError
        from delaybridge.message import Message

        batch, self.batch, self.batch_bytes = self.batch, [], 0
        if not batch:
            return
        messages = [Message(body=line.body, **self.arguments) for line in batch]
        try:
            receipts = self.client.schedule_many(messages, on_conflict=self.on_conflict)
        except StoreError as exc:
            first, last = batch[0].number, batch[-1].number
            unknown = "not scheduled" if never_sent(exc) else "whether scheduled is unknown"
            self.session.note(f"lines {first} to {last}: {unknown}")
            raise
        self.scheduled += len(receipts)
        if not self.quiet:
            self.session.output.results(map(shown, receipts))
        self.sent()

    def refuse(self, line: Line, limit: int) -> None:
        """Say which line is too long."""
        self.refused += 1
        field = f"line {line.number}"
        what = f"longer than {limit} bytes, the limit (limits.body_bytes)"
        failure = Failure(Exit.REFUSED, "body_too_large", field, what)
        report_of(failure).show(as_json=self.session.output.json)

    def summary(self) -> None:
        """How many were scheduled and refused, and how many were not read, on stderr."""
        left, is_all = self.unread
        if self.session.output.json:
            data: dict[str, int | bool] = {"scheduled": self.scheduled, "refused": self.refused}
            data |= {"unread": left, "unread_is_all": is_all} if left or not is_all else {}
            self.session.output.error_line(json.dumps({"summary": data}))
            return
        text = f"{self.scheduled} scheduled"
        text += f", {self.refused} refused" if self.refused else ""
        if left or not is_all:
            text += f", {'' if is_all else 'at least '}{left} lines not read"
        self.session.note(text)


def schedule_lines(
    session: Session, arguments: dict[str, Any], on_conflict: str, *, keep_going: bool
) -> int:
    """Schedule every line of stdin; the exit code. An interruption leaves what is sent, sent."""
    from delaybridge.errors import StoreError

    limit = session.settings.limits.body_bytes
    stream = stdin_bytes(session, "one message per line")
    on_terminal = _is_terminal(sys.stdout) and not session.output.json
    with session.client() as client, interrupts(signal.SIGINT) as check:
        bulk = Bulk(session, client, arguments, on_conflict, quiet=on_terminal, sent=check)
        lines = read_lines(stream, limit)
        try:
            with _progress(stream, on_terminal) as advance:
                code = drain(bulk, lines, limit, keep_going, advance)
            if code and not keep_going:
                bulk.unread = unread(lines, stream)
        except StoreError:
            bulk.unread = unread(lines, stream)
            raise
        except KeyboardInterrupt:
            return INTERRUPTED.show(as_json=session.output.json)
        finally:
            bulk.summary()
        if bulk.scheduled:
            warn_if_nobody_works(session, client)
        return code


def drain(
    bulk: Bulk, lines: Iterator[Line | None], limit: int, keep_going: bool, advance: Progress
) -> int:
    """Schedule the lines up to the first that is refused, or all that are not; the exit code."""
    for line in lines:
        if line is None:
            bulk.flush()
        elif line.body is not None:
            bulk.add(line)
            advance(line.size)
        else:
            bulk.refuse(line, limit)
            if not keep_going:
                break
    bulk.flush()
    if not bulk.refused:
        return Exit.DONE
    return Exit.PARTLY if bulk.scheduled else Exit.REFUSED


def _progress(stream: IO[bytes], on_terminal: bool) -> AbstractContextManager[Progress]:
    """A bar on stderr where a person looks on; its end is known where stdin is a file."""
    if not (on_terminal and _is_terminal(sys.stderr)) or stream.isatty():
        return nullcontext(lambda _size: None)
    from delaybridge.cli.progress import bar, size_of

    return bar(size_of(stream), label="scheduling", bytes=True)


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()

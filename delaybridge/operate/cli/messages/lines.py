"""`schedule --lines`: stdin line by line, in batches, in bounded memory."""

from __future__ import annotations

import json
import select
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import delaybridge
from delaybridge.operate.cli.messages.scheduling import (
    described,
    stdin_bytes,
    too_large,
    warn_without_workers,
)
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation, never_sent
from delaybridge.operate.terminal.progress import progress, size_of

BATCH_MESSAGES = 500
BATCH_BYTES = 4 * 2**20
_CHUNK_BYTES = 64 * 2**10
PATIENCE_S = 0.5  # wait for more lines to count, from a pipe
COUNTING_S = 2.0
_BOM = b"\xef\xbb\xbf"
_LABEL = "scheduling"
Progress = Callable[[int], None]


class TextLine(NamedTuple):
    """One line of input. body: None if it is too long. size: bytes read for it."""

    number: int
    body: bytes | None
    size: int


def read_lines(stream: IO[bytes], limit: int) -> Iterator[TextLine | None]:
    """Every non-empty line; None whenever the input pauses.

    CR LF and a byte order mark are removed. A line longer than `limit` is not kept in memory: it is
    reported as soon as it exceeds the limit, before its end has been read.
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
                yield TextLine(number, None, len(kept))
                kept, skipping = b"", True
        if not _is_ready(stream):
            yield None
    if not skipping:
        yield from _line(number, kept, limit)


def _line(number: int, raw: bytes, limit: int) -> Iterator[TextLine]:
    body = raw.removeprefix(_BOM) if number == 1 else raw
    body = body.removesuffix(b"\r")
    if body:
        yield TextLine(number, body if len(body) <= limit else None, len(raw) + 1)


def unread(lines: Iterator[TextLine | None], stream: IO[bytes]) -> tuple[int, bool]:
    """Number of lines left, and whether that is all of them: a stream may never end."""
    count, until_s = 0, time.monotonic() + COUNTING_S
    for line in lines:
        count += line is not None
        is_paused = line is None and not _is_ready(stream, PATIENCE_S)
        if is_paused or time.monotonic() > until_s:
            return count, False
    return count, True


def _is_ready(stream: IO[bytes], patience_s: float = 0) -> bool:
    """Whether more can be read within that time; True if the stream is not a file."""
    try:
        return bool(select.select([stream.fileno()], [], [], patience_s)[0])
    except (OSError, ValueError):
        return True


@dataclass
class LineBatches:
    """The messages of one `--lines`: gathered, sent in batches, counted."""

    call: Invocation
    client: delaybridge.Client
    arguments: dict[str, Any]
    on_conflict: str
    quiet: bool
    sent: Callable[[], None] = lambda: None
    scheduled: int = 0
    refused: int = 0
    unread: tuple[int, bool] = (0, True)
    batch: list[TextLine] = field(default_factory=list)
    batch_bytes: int = 0

    def add(self, line: TextLine) -> None:
        """Take a line; send the batch if it is full."""
        self.batch.append(line)
        self.batch_bytes += line.size
        if len(self.batch) >= BATCH_MESSAGES or self.batch_bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the batch. After an error with an unknown outcome, name its lines."""
        batch, self.batch, self.batch_bytes = self.batch, [], 0
        if not batch:
            return
        messages = [delaybridge.Message(body=line.body, **self.arguments) for line in batch]
        try:
            receipts = self.client.schedule_many(messages, on_conflict=self.on_conflict)
        except delaybridge.StoreError as exc:
            unknown = "not scheduled" if never_sent(exc) else "may have been scheduled"
            self.call.note(f"lines {batch[0].number} to {batch[-1].number}: {unknown}")
            raise
        self.scheduled += len(receipts)
        if not self.quiet:
            now_ms = self.call.now_ms(self.client)
            self.call.output.results(described(each, now_ms) for each in receipts)
        self.sent()

    def drain(
        self, lines: Iterator[TextLine | None], limit: int, advance: Progress, *, keep_going: bool
    ) -> int:
        """Schedule lines up to the first refused one, or all others; the exit code."""
        for line in lines:
            if line is None:
                self.flush()
            elif line.body is not None:
                self.add(line)
                advance(line.size)
            else:
                self.refused += 1
                too_large(f"line {line.number}", limit).show(as_json=self.call.output.json)
                if not keep_going:
                    break
        self.flush()
        if not self.refused:
            return Exit.DONE
        return Exit.PARTLY if self.scheduled else Exit.REFUSED

    def show_summary(self) -> None:
        """Print on stderr how many lines were scheduled, refused and not read."""
        left, is_all = self.unread
        has_more = left or not is_all
        if self.call.output.json:
            data: dict[str, int | bool] = {"scheduled": self.scheduled, "refused": self.refused}
            data |= {"unread": left, "unread_is_all": is_all} if has_more else {}
            self.call.output.error_line(json.dumps({"summary": data}))
            return
        text = f"{self.scheduled} scheduled"
        text += f", {self.refused} refused" if self.refused else ""
        text += f", {'' if is_all else 'at least '}{left} lines not read" if has_more else ""
        self.call.note(text)


def schedule_lines(
    call: Invocation, arguments: dict[str, Any], on_conflict: str, *, keep_going: bool
) -> int:
    """Schedule every line of stdin; the exit code. An interruption undoes nothing."""
    limit = call.settings.limits.body_bytes
    stream = stdin_bytes(call, "one message per line")
    quiet = call.output.is_watched
    has_bar = quiet and not stream.isatty()
    with call.client() as client, interrupts(signal.SIGINT) as check:
        batches = LineBatches(call, client, arguments, on_conflict, quiet, sent=check)
        lines = read_lines(stream, limit)
        try:
            with progress(size_of(stream), wanted=has_bar, label=_LABEL, in_bytes=True) as advance:
                code = batches.drain(lines, limit, advance, keep_going=keep_going)
            if code and not keep_going:
                batches.unread = unread(lines, stream)
        except delaybridge.StoreError:
            batches.unread = unread(lines, stream)
            raise
        except KeyboardInterrupt:
            return INTERRUPTED.show(as_json=call.output.json)
        finally:
            batches.show_summary()
        if batches.scheduled:
            warn_without_workers(call, client)
        return code

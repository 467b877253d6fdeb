"""`message export` and `message import`: messages as lines of JSON, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

import delaybridge
from delaybridge.errors import StoreDamaged
from delaybridge.operate.cli.messages.foreign import foreign_options, import_from
from delaybridge.operate.cli.messages.lines import TextLine, read_lines
from delaybridge.operate.cli.messages.scheduling import stdin_bytes
from delaybridge.operate.cli.messages.targets import EXCHANGE, PENDING_STATES
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit, refused
from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress, size_of
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.carry.exporting import MessageExport
    from delaybridge.carry.importing import Import, ImportedLine
    from delaybridge.carry.line import BadLine, Line
    from delaybridge.carry.receipts import StoredLines
    from delaybridge.store.messages.selection import Selected

_GZIP = b"\x1f\x8b"
_STATES_HELP = "Only messages in this state; once for each state. [default: all four]"
_STATES = option(
    "--state", _STATES_HELP, to="states", multiple=True,
    type=click.Choice([*PENDING_STATES, "dead"]),
)  # fmt: skip


@click.command("export", cls=Command)
@grammar.destination_option
@EXCHANGE
@_STATES
@grammar.reason_option
@grammar.id_prefix_option
@grammar.record_options
@grammar.due_options
@option("-o --output FILE", "Write them to this file, compressed if it ends in .gz.")
@option("--dry-run", "Only count them.")
@pass_call
def export(
    call: Invocation, states: tuple[str, ...], output: str | None, dry_run: bool, **filters: Any
) -> int:
    """Write messages as lines of JSON, with their bodies; nothing is changed.

    Without filters all messages of the namespace. Each is written as it is at one moment; one that
    is there throughout is written once, wherever it moves meanwhile. What is in flight is written,
    too; `message import` leaves it out.
    """
    from delaybridge.carry.exporting import ALL_STATES, MessageExport
    from delaybridge.store.messages.selection import Selection

    chosen = {name: value for name, value in filters.items() if value}
    wanted = tuple(each for each in ALL_STATES if each.value in states or not states)
    selection = Selection(states=wanted, is_whole=True, **chosen)
    run = MessageExport(wanted, partial(tell, call))
    with call.client(reads=True) as client:
        if selection.destination is not None:
            client.destinations(selection.destination)  # MessageError if there can be no such one
        pages, damage = client.select(selection), None
        if dry_run:
            run.counts.update(one.state.value for page in pages for one in page)
        else:
            damage = _write_all(call, client, run, pages, output)
    _show_counts(call, run.counts)
    if damage is not None:
        raise damage
    if run.is_resized:
        call.note("warning: buckets were resized meanwhile; export again when that is done")
    return Exit.PARTLY if run.is_partly else Exit.DONE


def _write_all(
    call: Invocation,
    client: delaybridge.Client,
    run: MessageExport,
    pages: Iterable[Sequence[Selected]],
    output: str | None,
) -> StoreDamaged | None:
    """The error of a damaged bucket; all others are written."""
    from delaybridge.carry.exporting import portions

    with (
        _written(output) as write,
        interrupts(signal.SIGINT) as check,
        progress(None, wanted=not call.output.json, label="export") as advance,
    ):
        try:
            for some in (some for page in pages for some in portions(page)):
                write(client.run(lambda calls, some=some: run.read(calls, some)))  # type: ignore[misc]
                advance(len(some))
                check()
        except StoreDamaged as exc:
            return exc
    return None


@contextmanager
def _written(output: str | None) -> Iterator[Callable[[bytes], Any]]:
    """What writes to a file, which appears when all is written; without a name to stdout."""
    if output is None:
        yield sys.stdout.buffer.write
        return
    part = Path(f"{output}.part")
    try:
        with gzip.open(part, "wb", 6) if output.endswith(".gz") else part.open("wb") as stream:
            yield stream.write
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


@click.command("import", cls=Command)
@click.argument("file", metavar="FILE | - | URL")
@option("--receipt FILE", "Note there what is stored; lines that it has already are skipped.")
@option("--in-flight", "Also what was in flight, may be delivered.", to="takes_in_flight")
@option("--strict", "Stop at the first line that cannot be stored.", to="is_strict")
@foreign_options
@option("--dry-run", "Store nothing: tell what would be stored, and what would not.", to="dry")
@option("--yes", "Do not ask.")
@pass_call
def import_(
    call: Invocation, file: str, receipt: str | None, yes: bool, system: str | None, **given: Any
) -> int:
    """Store messages from lines of JSON, as `message export` writes them; also compressed.

    Ids, keys, due times, attempts and deaths are kept. Imported again, a line is a duplicate while
    its message is pending or dead. Lines that cannot be stored are told, and hinder no others.
    `message cancel --from-file RECEIPT` then removes at the source what is stored here.

    With --from: what another system, at the URL, holds for later. Stop its producers and workers
    first. A message gets an id that is made of its id there, so it is stored once.
    """
    how = {name: given.pop(name) for name in ("takes_in_flight", "is_strict", "dry")}
    if system is not None:
        if receipt is not None or how["takes_in_flight"] or how["is_strict"]:
            raise refused("--from", "given with --receipt, --in-flight or --strict, of files")
        return import_from(call, file, system, dry=how["dry"], yes=yes, **given)
    if any(given.values()):
        raise refused("--from", "missing: say which system the URL is of")
    return _import_file(call, file, receipt, how)


def _import_file(call: Invocation, file: str, receipt: str | None, how: dict[str, bool]) -> int:
    from delaybridge.carry.importing import Import

    limits = call.settings.limits.as_limits()
    with (
        call.client(remedy="import it again") as client,
        _opened(call, file) as (stream, size),
        progress(size, wanted=not call.output.json, label="import", in_bytes=True) as advance,
        _noted(receipt, dry=how["dry"]) as known,
    ):
        run = Import(client.kinds, limits, tell=partial(tell, call), **how)
        texts = read_lines(stream, 8 * limits.body_bytes + 2**20)
        lines = _lines(texts, known, run.counts, advance)
        return import_lines(call, client, run, lines, known.note)


def import_lines(
    call: Invocation,
    client: delaybridge.Client,
    run: Import,
    lines: Iterable[tuple[int, Line | BadLine]],
    stored: Callable[[Sequence[ImportedLine]], object],
) -> int:
    """Import these lines, and show what became of them; the exit code.

    stored: called after each batch, with the lines that are stored, before further lines are read.
    """
    with interrupts(signal.SIGINT) as check:
        try:
            for batch in run.batches(lines):
                stored(client.run(lambda calls, batch=batch: run.store(calls, batch)))  # type: ignore[misc]
                check()
        except KeyboardInterrupt:
            return INTERRUPTED.show(as_json=call.output.json)
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            what = f"cut short or damaged after line {run.number}: {exc}"
            raise refused("FILE", f"{what}; import it again when whole", "bad_line") from None
        finally:
            if run.dry:
                _show_bound(call, run)
            _show_counts(call, run.counts)
    if not run.left_out:
        return Exit.DONE
    return Exit.PARTLY if run.counts["created"] + run.counts["duplicate"] else Exit.REFUSED


@contextmanager
def _opened(call: Invocation, file: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """The lines of a file or of stdin, compressed or not; how many bytes they have, if known."""
    stdin: Any = stdin_bytes(call, "one message per line") if file == "-" else None
    stream = Path(file).open("rb") if stdin is None else io.BufferedReader(stdin)
    try:
        if stream.peek(2)[:2] == _GZIP:
            yield cast(IO[bytes], gzip.open(stream)), None
        else:
            yield stream, size_of(stream)
    finally:
        stream.close() if stdin is None else stream.detach()


@contextmanager
def _noted(receipt: str | None, *, dry: bool) -> Iterator[StoredLines]:
    """The lines that a receipt has, which takes further ones."""
    from delaybridge.carry.receipts import StoredLines

    if receipt is None or (dry and not Path(receipt).exists()):
        yield StoredLines()
    else:
        with Path(receipt).open("rb" if dry else "a+b") as kept:
            yield StoredLines(cast(IO[bytes], kept))


def _lines(
    texts: Iterable[TextLine | None],
    known: StoredLines,
    counts: Counter[str],
    advance: Callable[[int], None],
) -> Iterator[tuple[int, Line | BadLine]]:
    """The lines with their numbers, without those that a receipt has."""
    from delaybridge.carry.line import BadLine, read_line

    for text in filter(None, texts):
        advance(text.size)
        counts["skipped"] += text.number in known
        place = f"line {text.number}"
        if text.number not in known:
            long = BadLine(place, "line", "too long for a message")
            yield text.number, long if text.body is None else read_line(text.body, place)
        elif text.number == known.last:
            if getattr(read_line(text.body or b"", place), "id", None) != known.id:
                what = f"it is of another file: there line {known.last} is {known.id[:80]!r}"
                raise refused("--receipt", what)


def tell(call: Invocation, bad: BadLine) -> None:
    """Name on stderr a line that is left out."""
    as_json = call.output.json
    call.output.error_line(json.dumps({"left_out": bad._asdict()}) if as_json else str(bad))


def _show_bound(call: Invocation, run: Import) -> None:
    """Print what would be stored, by destination."""
    for to, each in run.bound.items():
        due = f"due {moment(each.first_ms)} to {moment(each.last_ms)}"
        text = f"{to}  {each.messages:,}  {due}"
        call.output.result({"destination": to, **each._asdict()}, text)


def _show_counts(call: Invocation, counts: Counter[str]) -> None:
    found = {word: n for word, n in counts.items() if n}
    if call.output.json:
        call.output.error_line(json.dumps({"summary": found}))
    else:
        call.note(", ".join(f"{n:,} {word}" for word, n in found.items()) or "no message")

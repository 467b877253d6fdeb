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
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

import delaybridge
from delaybridge.errors import StoreDamaged
from delaybridge.operate.cli.messages.foreign import foreign_options, import_from
from delaybridge.operate.cli.messages.lines import read_lines
from delaybridge.operate.cli.messages.scheduling import stdin_bytes
from delaybridge.operate.cli.messages.targets import EXCHANGE, PENDING_STATES
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import INTERRUPTED, Exit, Failure, refused
from delaybridge.operate.terminal.grammar import Command, option, pass_call
from delaybridge.operate.terminal.interrupts import interrupts
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.terminal.progress import progress, size_of
from delaybridge.operate.terminal.streams import drop_stdout
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.carry.importing import Import, Ready
    from delaybridge.carry.line import BadLine, Line

_GZIP = b"\x1f\x8b"
_STATES_HELP = "Only messages in this state; once for each state. [default: all four]"
_STATES = click.Choice([*PENDING_STATES, "dead"])


@click.command("export", cls=Command)
@grammar.destination_option
@EXCHANGE
@option("--state", _STATES_HELP, to="states", multiple=True, type=_STATES)
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
    from delaybridge.carry.exporting import ALL_STATES, MessageExport, portions
    from delaybridge.store.messages.selection import Selection

    wanted = tuple(each for each in ALL_STATES if each.value in states or not states)
    chosen = {name: value for name, value in filters.items() if value}
    selection = Selection(states=wanted, is_whole=True, **chosen)
    run, damage = MessageExport(wanted, partial(tell, call)), None
    with (
        call.client(reads=True) as client,
        _written(os.devnull if dry_run else output) as write,
        interrupts(signal.SIGINT) as check,
        progress(None, wanted=not call.output.json, label="export") as advance,
    ):
        if selection.destination is not None:
            client.destinations(selection.destination)  # MessageError if there can be no such one
        try:
            for some in (some for page in client.select(selection) for some in portions(page)):
                write(client.run(partial(run.read, some=some)))
                advance(len(some))
                check()
        except StoreDamaged as exc:  # all buckets but this one are written
            damage = exc
    _show_counts(call, run.counts)
    if damage is not None:
        raise damage
    if run.is_resized:
        call.note("warning: a resize of buckets began meanwhile; export again")
    return Exit.PARTLY if run.is_partly else Exit.DONE


@contextmanager
def _written(output: str | None) -> Iterator[Callable[[bytes], Any]]:
    """What writes to a file, which appears when all is written; without a name to stdout."""
    target = Path(output or os.devnull)
    is_direct = target.exists() and not target.is_file()  # a device or a pipe
    part = target if is_direct else Path(f"{output}.part")
    try:
        if output is None:
            yield sys.stdout.buffer.write
            sys.stdout.buffer.flush()
        else:
            with gzip.open(part, "wb", 6) if target.suffix == ".gz" else part.open("wb") as stream:
                yield stream.write
            os.replace(part, target)
    except OSError as exc:
        if output is None:
            drop_stdout()
        what = f"{exc.strerror}: not all is exported"
        raise Failure(Exit.FAILED, "os_error", output or "stdout", what) from exc
    finally:
        if not is_direct:
            part.unlink(missing_ok=True)


@click.command("import", cls=Command)
@click.argument("file", metavar="FILE | - | URL")
@option("--receipt FILE", "Note in this new file what is stored.")
@option("--after LINE", "Go on after this line.", type=click.IntRange(min=0), default=None)
@option("--in-flight", "Also what was in flight, may be delivered.", to="takes_in_flight")
@foreign_options
@option("--dry-run", "Store nothing: tell what would be stored, and what would not.", to="dry")
@option("--yes", "Do not ask.")
@pass_call
def import_(
    call: Invocation, file: str, system: str | None, dry: bool, yes: bool, **given: Any
) -> int:
    """Store messages from lines of JSON, as `message export` writes them; also compressed.

    Ids, keys, due times, attempts and deaths are kept. Imported again, a line is a duplicate while
    its message is pending or dead. Lines that cannot be stored are told, and hinder no others.
    `message cancel --from-file RECEIPT` then removes at the source what is stored here.

    With --from: what another system, at the URL, holds for later. Stop its producers and workers
    first. A message gets an id that is made of its id there, so it is stored once.
    """
    how = {name: given.pop(name) for name in ("receipt", "after", "takes_in_flight")}
    if system is not None:
        if any(how.values()):
            raise refused("--from", "given with --receipt, --after or --in-flight, of files")
        return import_from(call, file, system, dry=dry, yes=yes, **given)
    if any(given.values()):
        raise refused("--from", "missing: say which system the URL is of")
    return _import_file(call, file, dry, **how)


def _import_file(
    call: Invocation, file: str, dry: bool, receipt: str | None, after: int | None, **how: Any
) -> int:
    from delaybridge.carry.importing import Import
    from delaybridge.carry.line import read_line
    from delaybridge.carry.receipts import receipts_of

    limits, first = call.settings.limits.as_limits(), after or 0
    if receipt is not None and Path(receipt).exists():
        raise refused("--receipt", f"{receipt} is there already; give each import a new file")
    with (
        call.client(remedy="import it again") as client,
        _opened(call, file) as (stream, size),
        progress(size, wanted=not call.output.json, label="import", in_bytes=True) as advance,
        nullcontext() if receipt is None or dry else Path(receipt).open("xb", 0) as kept,
    ):

        def lines() -> Iterator[tuple[int, Line | BadLine]]:
            for text in filter(None, read_lines(stream, 8 * limits.body_bytes + 2**20)):
                advance(text.size)
                if text.number > first:
                    yield text.number, read_line(text.body, f"line {text.number}")

        def stored(ready: Sequence[Ready]) -> None:
            data = receipts_of(ready)
            try:
                is_noted = kept is None or kept.write(data) == len(data)
            except OSError:
                is_noted = False
            if not is_noted:
                what = f"{receipt} cannot be written; import again, with another file"
                raise Failure(Exit.FAILED, "os_error", "--receipt", what)

        run = Import(client.kinds, limits, tell=partial(tell, call), dry=dry, **how)
        return import_lines(call, client, run, lines(), stored, "--after {}")


def import_lines(
    call: Invocation,
    client: delaybridge.Client,
    run: Import,
    lines: Iterable[tuple[int, Line | BadLine]],
    stored: Callable[[Sequence[Ready]], object],
    hint: str = "",
) -> int:
    """Import these lines, and show what became of them; the exit code.

    stored: called after each batch with what is stored, before further lines are read. hint: how to
    go on after a line, if it does not come to the end.
    """
    done: int | None = 0
    with interrupts(signal.SIGINT) as check:
        try:
            for batch in run.batches(lines):
                stored(client.run(partial(run.store, batch=batch)))
                done = run.number
                check()
            done = None
        except KeyboardInterrupt:
            return INTERRUPTED.show(as_json=call.output.json)
        except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
            what = f"cut short or damaged after line {run.number}: {exc}"
            raise refused("FILE", f"{what}; import it again when whole", "bad_line") from None
        finally:
            for to, (count, first, last) in run.bound.items() if run.dry else ():
                text = f"{to}  {count:,}  due {moment(first)} to {moment(last)}"
                data = {"destination": to, "messages": count, "first_ms": first, "last_ms": last}
                call.output.result(data, text)
            if done and hint and not run.dry:
                call.note(f"all lines up to {done} are imported; go on with {hint.format(done)}")
            _show_counts(call, run.counts)
    if not run.counts["bad"] + run.counts["conflict"]:
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


def tell(call: Invocation, bad: BadLine) -> None:
    """Name on stderr a line that is left out."""
    as_json = call.output.json
    call.output.error_line(json.dumps({"left_out": bad._asdict()}) if as_json else str(bad))


def _show_counts(call: Invocation, counts: Counter[str]) -> None:
    found = {word: n for word, n in counts.items() if n}
    if call.output.json:
        call.output.error_line(json.dumps({"summary": found}))
    else:
        call.note(", ".join(f"{n:,} {word}" for word, n in found.items()) or "no message")

"""`delaybridge definitions`: rules and recurring definitions as one JSON document."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from delaybridge.operate.cli.messages.scheduling import stdin_bytes
from delaybridge.operate.terminal.failure import Exit, Failure, refused
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation

if TYPE_CHECKING:
    from delaybridge.operate.views.transfer import Difference

_MOST_BYTES = 256 * 2**20
_DONE = ("added", "changed", "removed")


@click.group(cls=Group)
def definitions() -> None:
    """Export and import rules and recurring definitions.

    One JSON document has both; equal contents give equal texts, so it can be kept in git.
    """


@definitions.command("export")
@option("-o --output FILE", "Write it to this file. [default: stdout]")
@pass_call
def export(call: Invocation, output: str | None) -> int:
    """Print all rules and recurring definitions as one JSON document.

    Without progress: since when a destination is paused, the last run of a definition.
    """
    from delaybridge.operate.views.transfer import contents

    with call.client() as client:
        here = client.run(contents)
    indent = None if call.output.json else 2
    text = json.dumps(here.document(), indent=indent, ensure_ascii=call.output.is_watched) + "\n"
    write_document(output, text)
    for section, name in here.unreadable:
        call.output.error_line(f"error: {section}.{name}: cannot be read in full; see: doctor")
    return Exit.PARTLY if here.unreadable else Exit.DONE


@definitions.command("import")
@click.argument("file", metavar="FILE | -")
@option("--dry-run", "Only check it, and show what would change.")
@option("--prune", "Remove rules and definitions that are not in the file.")
@pass_call
def import_(call: Invocation, file: str, dry_run: bool, prune: bool) -> None:
    """Make rules and recurring definitions as the document in FILE says.

    All of it is checked before anything is written. A rule or definition in the file replaces the
    one of its name; others stay, except with --prune. Importing it again changes nothing.
    """
    from delaybridge.operate.views.transfer import checked, contents, differences, write

    document = read_document(call, file)
    with call.client(remedy="import it again") as client:
        wanted, faults = client.run(lambda calls: checked(calls, document))
        if faults:
            lines = [f"{exc.field}: {exc.detail}" for exc in faults]
            raise Failure(Exit.REFUSED, "bad_document", None, *lines)
        listed = differences(client.run(contents), wanted, prune=prune)
        words = Counter[str]()
        try:
            for one in listed:
                if not dry_run and one.word in _DONE:
                    client.run(lambda calls, one=one: write(calls, wanted, one))  # type: ignore[misc]
                words[one.word] += 1
                _show(call, one, dry_run=dry_run)
        finally:
            _show_summary(call, words, dry_run=dry_run)


def write_document(output: str | None, text: str) -> None:
    """Write all of it to a file, or leave that as it was; without a name to stdout."""
    if output is None:
        click.echo(text, nl=False)
    else:
        part = Path(f"{output}.part")  # an export that fails leaves the old file as it was
        part.write_text(text, encoding="utf-8")
        os.replace(part, output)


def read_document(call: Invocation, file: str) -> Any:
    """The JSON document in a file, or on stdin if it is '-'; Failure if it is not JSON."""
    import msgspec

    if file == "-":
        data = stdin_bytes(call, "the document").read(_MOST_BYTES + 1)
    else:
        with Path(file).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise refused("FILE", f"longer than {_MOST_BYTES:,} bytes", "bad_document")
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise refused("FILE", f"not JSON: {exc}", "bad_document") from None


def _show(call: Invocation, one: Difference, *, dry_run: bool) -> None:
    data = {"section": one.section, "name": one.name, "change": one.word, "dry_run": dry_run}
    if call.output.json:
        call.output.result(data, "")
    elif one.word in _DONE:
        call.output.line(f"{one.word.ljust(7)}  {one.section}.{one.name}")


def _show_summary(call: Invocation, words: Counter[str], *, dry_run: bool) -> None:
    if call.output.json:
        call.output.error_line(json.dumps({"summary": dict(words)}))
        return
    counts = ", ".join(f"{n:,} {word}" for word, n in sorted(words.items())) or "nothing to do"
    kept = "; --prune removes what is not in the file" if words["kept"] else ""
    call.note(f"{'dry run, nothing was written: ' if dry_run else ''}{counts}{kept}")

"""`delaybridge plugin`: leave RabbitMQ's delayed-message plugin."""

from __future__ import annotations

import json

import click

from delaybridge.operate.cli.rules.definitions import read_document, write_document
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation


@click.group(cls=Group)
def plugin() -> None:
    """Leave RabbitMQ's delayed-message plugin.

    RabbitMQ 4.3 refuses exchanges of type x-delayed-message, in definitions, too.
    """


@plugin.command("convert")
@click.argument("file", metavar="FILE | -")
@option("-o --output FILE", "Write the definitions to this file. [default: stdout]")
@option("--suffix TEXT", "Of the exchanges behind delayed ones. [default: front.suffix, .due]")
@pass_call
def convert(call: Invocation, file: str, output: str | None, suffix: str | None) -> int:
    """Rewrite exported definitions of RabbitMQ, so that 4.3 imports them.

    Each exchange of type x-delayed-message becomes what `delaybridge front` makes of it. Bindings,
    policies and rights that are changed are printed with the reason, and what is left to do by
    hand, in which case the exit code is 6. What it made it leaves as it is.
    """
    from delaybridge.front.definitions import convert as converted

    naming = call.load({"front": {"suffix": suffix}}).front
    made, edits = converted(read_document(call, file), naming.suffix)
    write_document(output, json.dumps(made, indent=2, ensure_ascii=False) + "\n")
    for edit in edits:
        word = "changed" if edit.is_done else "to do  "
        place = f" of vhost {edit.vhost}" if edit.vhost is not None else ""
        text = f"{word}  {edit.what}{place}: {edit.text}"
        call.output.error_line(json.dumps(edit._asdict()) if call.output.json else text)
    left = sum(not edit.is_done for edit in edits)
    call.note(f"{len(edits) - left:,} changed, {left:,} left to do by hand")
    return Exit.PARTLY if left else Exit.DONE

"""`delaybridge dead`: messages that were given up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

import delaybridge
from delaybridge.client.messages import DeadVerbs
from delaybridge.operate.cli.messages.bulk import NOT_DEAD, BulkVerb
from delaybridge.operate.cli.messages.stored import page_of, show_message, show_page
from delaybridge.operate.cli.messages.verbs import add_plain_commands, bulk_command
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment


@click.group(cls=Group)
def dead() -> None:
    """Messages that were given up: list, bring back, discard."""


@dead.command("ls")
@option("--by-reason", "Count them by reason instead.")
@grammar.destination_option
@grammar.reason_option
@grammar.id_prefix_option
@grammar.record_options
@grammar.page_options
@pass_call
def ls(call: Invocation, by_reason: bool, **query: Any) -> int:
    """List dead messages, the oldest on top."""
    if by_reason:
        _show_reasons(call, query)
        return Exit.DONE
    query["state"] = delaybridge.State.DEAD
    columns = ("DEAD SINCE", "ID", "DESTINATION", ">TRY", "REASON")
    return show_page(call, query, columns, (">TRY", "DEAD SINCE"))


@dead.command("show")
@click.argument("id")
@grammar.body_option
@grammar.key_option
@pass_call
def show(call: Invocation, **given: Any) -> None:
    """Show one dead message."""
    show_message(call, given, NOT_DEAD, delaybridge.State.DEAD)


_KICK, _DISCARD = BulkVerb("dead.kick_many", "bring back"), BulkVerb("dead.discard_many", "discard")
_KICK_ABOUT = "Bring messages back, due now (or spread with --over); attempts start again at 1."
_DISCARD_ABOUT = "Delete messages from the dead set for good."
dead.add_command(bulk_command("kick", _KICK, _KICK_ABOUT, "brought back"))
dead.add_command(bulk_command("discard", _DISCARD, _DISCARD_ABOUT, "deleted"))
add_plain_commands(dead, "dead.", DeadVerbs)


def _show_reasons(call: Invocation, query: dict[str, Any]) -> None:
    from delaybridge.operate.views.burials import Burials

    found = Burials()
    with call.client() as client:
        found.add(_all_dead(client, query))
    largest_first = [
        {
            "reason": group.reason,
            "destination": group.destination,
            "count": group.messages,
            "oldest_ms": group.oldest_ms,
            "example": group.example,
        }
        for group in found.groups()
    ]
    if not call.output.table(largest_first, _reason_row, spare=("OLDEST", "EXAMPLE")):
        call.note("no dead messages")


def _reason_row(group: dict[str, Any]) -> dict[str, Any]:
    return {
        ">COUNT": group["count"],
        "REASON": group["reason"],
        "DESTINATION": group["destination"],
        "OLDEST": moment(group["oldest_ms"]),
        "EXAMPLE": group["example"],
    }


def _all_dead(client: delaybridge.Client, query: Mapping[str, Any]) -> Iterator[delaybridge.Stored]:
    asked = {**query, "state": delaybridge.State.DEAD, "limit": grammar.PAGE_LIMIT}
    while True:
        page = client.run(lambda calls: page_of(calls, **asked))
        yield from page.items
        if page.cursor is None:
            return
        asked["cursor"] = page.cursor

"""`delaybridge dead`: messages that were given up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

import delaybridge
from delaybridge.operate.cli.messages.bulk import perform
from delaybridge.operate.cli.messages.stored import page_of, show_message, show_page
from delaybridge.operate.cli.messages.targets import Targets, target_options
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment

_NOT_DEAD = "not in the dead set"
_MAY_LIVE = "it may live: it is dead and elsewhere; try again once that is mended"


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
    show_message(call, given, _NOT_DEAD, delaybridge.State.DEAD)


@dead.command("kick")
@target_options(dead=True, over=True)
@pass_call
def kick(call: Invocation, **given: Any) -> int:
    """Bring messages back, due now (or spread with --over); attempts start again at 1.

    Give ids or filters. Messages that match all filters are counted first, then brought back
    once you confirm (or with --yes).
    """
    targets = Targets(**given, default_states=("dead",))
    verb = delaybridge.Client.kick_many
    return perform(call, targets, "bring back", verb, _NOT_DEAD, _MAY_LIVE)


@dead.command("discard")
@target_options(dead=True)
@pass_call
def discard(call: Invocation, **given: Any) -> int:
    """Delete messages from the dead set for good.

    Give ids or filters. Messages that match all filters are counted first, then deleted once
    you confirm (or with --yes).
    """
    targets = Targets(**given, default_states=("dead",))
    verb = delaybridge.Client.discard_many
    return perform(call, targets, "discard", verb, _NOT_DEAD, _MAY_LIVE)


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

"""`delaybridge dead`: messages that were given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import delaybridge
from delaybridge.cli import grammar
from delaybridge.cli.bulk import perform
from delaybridge.cli.failure import Exit
from delaybridge.cli.grammar import Group, option, pass_call
from delaybridge.cli.invocation import Invocation
from delaybridge.cli.stored import show_message, show_page
from delaybridge.cli.targets import Targets, target_options
from delaybridge.store.described import moment

_NOT_DEAD = "not in the dead set"


@click.group(cls=Group)
def dead() -> None:
    """Messages that were given up: list, bring back, discard."""


@dead.command("ls")
@option("--by-reason", "Count them by reason instead.")
@grammar.page_options
@pass_call
def ls(call: Invocation, by_reason: bool, **query: Any) -> int:
    """List dead messages, the oldest on top."""
    if by_reason:
        _show_reasons(call)
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
    return perform(call, targets, "bring back", delaybridge.Client.kick_many, _NOT_DEAD)


@dead.command("discard")
@target_options(dead=True)
@pass_call
def discard(call: Invocation, **given: Any) -> int:
    """Delete messages from the dead set for good.

    Give ids or filters. Messages that match all filters are counted first, then deleted once
    you confirm (or with --yes).
    """
    targets = Targets(**given, default_states=("dead",))
    return perform(call, targets, "discard", delaybridge.Client.discard_many, _NOT_DEAD)


def _show_reasons(call: Invocation) -> None:
    from delaybridge.store.troubles import first_word

    groups: dict[tuple[str, str], dict[str, Any]] = {}
    with call.client() as client:
        for item in _all_dead(client):
            example, place = item.reason or "?", item.destination or "?"
            group = {"reason": first_word(example), "destination": place, "count": 0}
            group |= {"oldest_ms": item.dead_ms or 0, "example": example}
            groups.setdefault((first_word(example), place), group)["count"] += 1
    largest_first = sorted(groups.values(), key=lambda group: -group["count"])
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


def _all_dead(client: delaybridge.Client) -> Iterator[delaybridge.Stored]:
    cursor = None
    while True:
        page = client.dead(limit=grammar.PAGE_LIMIT, cursor=cursor)
        yield from page.items
        if (cursor := page.cursor) is None:
            return

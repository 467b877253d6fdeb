"""`delaybridge message` and `delaybridge dead`: list, show, change messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

import delaybridge
from delaybridge.client.dead import DeadVerbs
from delaybridge.client.messages import MessageVerbs
from delaybridge.operate.cli.messages.bulk import NOT_DEAD, BulkVerb, perform
from delaybridge.operate.cli.messages.carrying import export, import_
from delaybridge.operate.cli.messages.stored import page_of, show_message, show_page
from delaybridge.operate.cli.messages.targets import PENDING_STATES, Targets, target_options
from delaybridge.operate.cli.messages.verbs import add_plain_commands, bulk_command
from delaybridge.operate.terminal import grammar
from delaybridge.operate.terminal.failure import Exit, refused
from delaybridge.operate.terminal.grammar import Group, option, pass_call
from delaybridge.operate.terminal.invocation import Invocation
from delaybridge.operate.views.described import moment

if TYPE_CHECKING:
    from delaybridge.operate.views.burials import DeadGroup

_MOVABLE = ("delayed", "parked")  # those in flight may be handed over at any moment
_COLUMNS = ("DUE", ">IN", "ID", "DESTINATION", ">TRY", ">BYTES", "HEADERS", "FIRST DUE", "REASON")
_STATES = click.Choice([*PENDING_STATES, "dead"])
_SPARE = ("DUE", "HEADERS", "FIRST DUE", ">BYTES", ">TRY")


@click.group(cls=Group)
def message() -> None:
    """List, show, cancel and reschedule messages."""


@message.command("ls")
@grammar.destination_option
@option("--state", "Only messages in this state.", type=_STATES, default="delayed")
@grammar.reason_option
@grammar.id_prefix_option
@grammar.record_options
@grammar.due_options
@grammar.page_options
@pass_call
def ls(call: Invocation, state: str, **query: Any) -> int:
    """List messages, the one due first on top.

    With --reason, --id-prefix or --attempts about 20,000 messages are looked at, with --header
    100,000: a list may then be short, or empty, and say how to continue.
    """
    query["state"] = delaybridge.State(state)
    return show_page(call, query, _COLUMNS, _SPARE)


@message.command("show")
@click.argument("id")
@grammar.body_option
@grammar.key_option
@pass_call
def show(call: Invocation, **given: Any) -> None:
    """Show one message, wherever it is."""
    show_message(call, given, "no such message is pending or dead")


message.add_command(
    bulk_command(
        "cancel",
        BulkVerb("cancel_many", "cancel"),
        "Cancel messages that are not yet handed to the broker.",
        "cancelled",
        """`cancelled`: it will never be delivered.
`cancelled_maybe_delivered`: nothing more is sent, but an earlier attempt, whose outcome is
unknown, may have arrived. `in_flight`: too late.""",
    )
)


@message.command("reschedule")
@target_options(over=True)
@grammar.in_option
@grammar.at_option
@grammar.by_option
@pass_call
def reschedule(
    call: Invocation, delay: str | None, at: str | None, by_ms: int | None, **given: Any
) -> int:
    """Give messages another due time.

    Give ids or filters. Messages that match all filters are counted first, then moved once you
    confirm (or with --yes). With --by, each is due so much later or earlier than it was; filters
    then leave out messages that a worker holds. `rescheduled`: it is not delivered before that
    time. `rescheduled_maybe_delivered`: but an earlier attempt, whose outcome is unknown, may have
    arrived.
    """
    times = [each for each in (delay, at, by_ms) if each is not None]
    if len(times) != 1:
        code = "time_ambiguous" if times else "time_required"
        raise refused("--in", "give one of --in DURATION, --at TIME and --by OFFSET", code)
    if by_ms is None:
        bulk = BulkVerb("reschedule_many", "reschedule", {"delay": delay, "at": at})
        return perform(call, Targets(**given), bulk)
    if given["over"]:
        raise refused(
            "--over", "given together with --by, which keeps them as far apart as they are"
        )
    moving = Targets(**given, default_states=_MOVABLE)
    return perform(call, moving, BulkVerb("move_many", "move", {"by_ms": by_ms}))


_REDIRECT_ABOUT = "Give messages another destination, perhaps at a broker of another kind."
_REDIRECT_MORE = """Each goes to one of the two, never to both.
`redirected_maybe_delivered`: but an earlier attempt, whose outcome is unknown, may have arrived at
the old one. `refused`: the new one does not take it. `changed`: others changed it meanwhile. What
the new broker cannot carry, as some headers, is left out and told, also by --dry-run."""
_REDIRECT = BulkVerb("redirect_many", "redirect")
message.add_command(
    bulk_command("redirect", _REDIRECT, _REDIRECT_ABOUT, "redirected", _REDIRECT_MORE)
)
_NOW = BulkVerb("reschedule_many", "publish", {"delay": "0s", "at": None})
_NOW_ABOUT = "Make messages due now, or with --over from now on."
message.add_command(bulk_command("publish-now", _NOW, _NOW_ABOUT, "moved"))
add_plain_commands(message, "", MessageVerbs, by_hand=("move",))  # `reschedule --by`


message.add_command(export)
message.add_command(import_)


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
def dead_ls(call: Invocation, by_reason: bool, **query: Any) -> int:
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
def dead_show(call: Invocation, **given: Any) -> None:
    """Show one dead message, with its body."""
    show_message(call, given, NOT_DEAD, delaybridge.State.DEAD)


_KICK, _DISCARD = BulkVerb("dead.kick_many", "bring back"), BulkVerb("dead.discard_many", "discard")
_KICK_ABOUT = "Bring messages back, due now (or spread with --over); attempts start again at 1."
_DISCARD_ABOUT = "Delete messages from the dead set for good."
dead.add_command(bulk_command("kick", _KICK, _KICK_ABOUT, "brought back"))
dead.add_command(bulk_command("discard", _DISCARD, _DISCARD_ABOUT, "deleted"))
_REDIRECT_DEAD = BulkVerb("dead.redirect_many", "redirect")
_DEAD_MORE = "They stay dead until `dead kick` brings them back."
dead.add_command(
    bulk_command("redirect", _REDIRECT_DEAD, _REDIRECT_ABOUT, "redirected", _DEAD_MORE)
)
add_plain_commands(dead, "dead.", DeadVerbs)


def _show_reasons(call: Invocation, query: dict[str, Any]) -> None:
    from delaybridge.operate.views.burials import Burials

    found = Burials()
    with call.client() as client:
        found.add(_all_dead(client, query))
    spare = ("OLDEST", "EXAMPLE")
    if not call.output.table(found.groups(), _reason_row, spare=spare, data=_reason_data):
        call.note("no dead messages")


def _reason_data(group: DeadGroup) -> dict[str, Any]:
    data = {name: getattr(group, name) for name in ("reason", "destination")}
    return {**data, "count": group.messages, "oldest_ms": group.oldest_ms, "example": group.example}


def _reason_row(group: DeadGroup) -> dict[str, Any]:
    return {
        ">COUNT": group.messages,
        "REASON": group.reason,
        "DESTINATION": group.destination,
        "OLDEST": moment(group.oldest_ms),
        "EXAMPLE": group.example,
    }


def _all_dead(client: delaybridge.Client, query: Mapping[str, Any]) -> Iterator[delaybridge.Stored]:
    asked = {**query, "state": delaybridge.State.DEAD, "limit": grammar.PAGE_LIMIT}
    while True:
        page = client.run(lambda calls: page_of(calls, **asked))
        yield from page.items
        if page.cursor is None:
            return
        asked["cursor"] = page.cursor

"""`delaybridge message`: list, show, cancel, reschedule, publish now."""

from __future__ import annotations

import time
from typing import Any

import click

import delaybridge
from delaybridge.cli import grammar
from delaybridge.cli.bulk import PENDING_STATES, Targets, Verb, perform, target_options
from delaybridge.cli.failure import Exit, Failure, refused
from delaybridge.cli.grammar import Group, option, pass_call
from delaybridge.cli.output import in_time, moment
from delaybridge.cli.session import Invocation
from delaybridge.cli.stored import found_under, headers_text, show_page, show_stored

_NOT_PENDING = "no such message is pending"


@click.group(cls=Group)
def message() -> None:
    """List, show, cancel and reschedule messages."""


@message.command("ls")
@grammar.destination_option
@option(
    "--state",
    "Only messages in this state.",
    type=click.Choice([*PENDING_STATES, "dead"]),
    default="delayed",
)
@grammar.due_options
@grammar.page_options
@pass_call
def ls(call: Invocation, state: str, **query: Any) -> None:
    """List messages, the one due first on top."""
    now_ms = time.time_ns() // 1_000_000
    spare = ("DUE", "HEADERS", "FIRST DUE", ">BYTES", ">TRY")
    query |= {"state": delaybridge.State(state)}
    show_page(call, query, lambda item: _row(item, now_ms), spare, f"no {state} messages")


def _row(item: delaybridge.Stored, now_ms: int) -> dict[str, str | int | None]:
    return {
        "DUE": moment(item.due_ms),
        ">IN": in_time(item.due_ms - now_ms),
        "ID": item.id,
        "DESTINATION": item.destination or "?",
        ">TRY": item.attempts,
        ">BYTES": "null" if item.body is None else len(item.body),
        "HEADERS": headers_text(item),
        "FIRST DUE": moment(item.first_due_ms),
        "REASON": item.reason or item.last_error,
    }


@message.command("show")
@click.argument("id")
@grammar.body_option
@grammar.key_option
@pass_call
def show(call: Invocation, id: str, form: str, key: bytes | None) -> None:
    """Show one message, wherever it is."""
    with call.client() as client:
        found = found_under(client, id, key)
    if not found:
        raise Failure(Exit.NOT_FOUND, "unknown", id, "no such message is pending or dead")
    show_stored(call, found, form)


@message.command("cancel")
@target_options()
@pass_call
def cancel(call: Invocation, **given: Any) -> int:
    """Cancel messages that are not yet handed to the broker.

    Give ids or filters. Messages that match all filters are counted first, then cancelled once
    you confirm (or with --yes). `cancelled`: it will never be delivered.
    `cancelled_maybe_delivered`: nothing more is sent, but an earlier attempt, whose outcome is
    unknown, may have arrived. `in_flight`: too late.
    """
    verb: Verb = lambda client, some, _: client.cancel_many(some, key=given["key"])  # noqa: E731
    return perform(call, Targets(**given), "cancel", verb, _NOT_PENDING, confirm_ids=True)


@message.command("reschedule")
@target_options(over=True)
@grammar.in_option
@grammar.at_option
@pass_call
def reschedule(call: Invocation, delay: str | None, at: str | None, **given: Any) -> int:
    """Give messages another due time.

    Give ids or filters. Messages that match all filters are counted first, then moved once you
    confirm (or with --yes). `rescheduled`: it is not delivered before that time.
    `rescheduled_maybe_delivered`: but an earlier attempt, whose outcome is unknown, may have
    arrived.
    """
    if (delay is None) == (at is None):
        code = "time_required" if delay is None else "time_ambiguous"
        raise refused("--in", "give either --in DURATION or --at TIME", code)
    return _move(call, Targets(**given), "reschedule", delay=delay, at=at)


@message.command("publish-now")
@target_options(over=True)
@pass_call
def publish_now(call: Invocation, **given: Any) -> int:
    """Make messages due now, or with --over from now on.

    Give ids or filters. Messages that match all filters are counted first, then moved once you
    confirm (or with --yes).
    """
    return _move(call, Targets(**given), "publish", delay="0s")


def _move(call: Invocation, targets: Targets, word: str, **when: str | None) -> int:
    return perform(
        call,
        targets,
        word,
        lambda client, some, later_ms: client.reschedule_many(
            some, spread_ms=later_ms, key=targets.key, **when
        ),
        _NOT_PENDING,
    )

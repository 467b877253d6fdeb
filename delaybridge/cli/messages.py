"""`delaybridge message`: list, show, cancel, reschedule, publish now."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from delaybridge.cli.bulk import perform
from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import (
    PAGE_LIMIT,
    Group,
    body_option,
    destination_option,
    due_from_option,
    due_to_option,
    key_option,
    page_options,
    pass_session,
)
from delaybridge.cli.output import Column, described, headers_text, in_time, moment, shortened
from delaybridge.cli.session import Session
from delaybridge.cli.stored import show_stored
from delaybridge.cli.targets import PENDING_STATES, Targets, bulk_options

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.message import Answer
    from delaybridge.store.changes import Named
    from delaybridge.store.stored import Stored
    from delaybridge.store.views import Page

_NOT_PENDING = "no such message is pending"


@click.group(cls=Group)
def message() -> None:
    """List, show, cancel and reschedule messages."""


@message.command("ls")
@destination_option
@click.option(
    "--state",
    type=click.Choice([*PENDING_STATES, "dead"]),
    default="delayed",
    show_default=True,
    help="Only messages in this state.",
)
@due_from_option
@due_to_option
@page_options
@pass_session
def ls(
    session: Session,
    destination: str | None,
    state: str,
    due_from: int | None,
    due_to: int | None,
    limit: int,
    cursor: tuple[float, str] | None,
) -> None:
    """List messages, the one due first on top."""
    from delaybridge.message import State

    with session.client() as client:
        page = client.pending(
            state=State(state),
            destination=destination,
            limit=page_limit(session, limit),
            cursor=cursor,
            due_from_ms=due_from,
            due_to_ms=due_to,
        )
    more = [column for column in _MORE_COLUMNS if any(map(column.cell, page.items))]
    session.output.table([*_columns(time.time_ns() // 1_000_000), *more], page.items, described)
    end_of_page(session, page, f"no {state} messages")


@message.command("show")
@click.argument("id")
@body_option
@key_option
@pass_session
def show(session: Session, id: str, form: str, key: bytes | None) -> None:
    """Show one message, wherever it is."""
    with session.client() as client:
        found = found_under(client, id, key)
    if not found:
        raise Failure(Exit.NOT_FOUND, "unknown", id, "no such message is pending or dead")
    show_stored(session, found[0], form)
    note_quarantined(session, found[1:])


@message.command("cancel")
@bulk_options()
@pass_session
def cancel(session: Session, targets: Targets) -> int:
    """Cancel messages that are not yet handed to the broker.

    Give ids or filters. Messages that match all filters are counted first, then cancelled once
    you confirm (or with --yes). `cancelled`: it will never be delivered.
    `cancelled_maybe_delivered`: nothing more is sent, but an earlier attempt, whose outcome is
    unknown, may have arrived. `in_flight`: too late.
    """
    if len(targets.ids) > 1:
        session.confirm(f"cancel {len(targets.ids)} messages", yes=targets.yes)
    return perform(
        session,
        targets,
        "cancel",
        lambda client, some, _: client.cancel_many(some, key=targets.key),
        unknown=_NOT_PENDING,
    )


@message.command("reschedule")
@bulk_options(over=True)
@click.option("--in", "delay", metavar="DURATION", help="How long from now, as 15m or 1h30m.")
@click.option("--at", metavar="TIME", help="When, as 2030-01-31T09:00:00Z.")
@pass_session
def reschedule(session: Session, targets: Targets, delay: str | None, at: str | None) -> int:
    """Give messages another due time.

    Give ids or filters. Messages that match all filters are counted first, then moved once you
    confirm (or with --yes). `rescheduled`: it is not delivered before that time.
    `rescheduled_maybe_delivered`: but an earlier attempt, whose outcome is unknown, may have
    arrived.
    """
    if (delay is None) == (at is None):
        code = "time_required" if delay is None else "time_ambiguous"
        raise Failure(Exit.REFUSED, code, "--in", "give either --in DURATION or --at TIME")
    return _move(session, targets, "reschedule", delay=delay, at=at)


@message.command("publish-now")
@bulk_options(over=True)
@pass_session
def publish_now(session: Session, targets: Targets) -> int:
    """Make messages due now, or with --over from now on.

    Give ids or filters. Messages that match all filters are counted first, then moved once you
    confirm (or with --yes).
    """
    return _move(session, targets, "publish", delay="0s", at=None)


def _move(
    session: Session, targets: Targets, word: str, *, delay: str | None, at: str | None
) -> int:
    def verb(client: Client, some: Sequence[Named], later_ms: list[int]) -> list[Answer]:
        return client.reschedule_many(some, delay=delay, at=at, spread_ms=later_ms, key=targets.key)

    return perform(session, targets, word, verb, unknown=_NOT_PENDING)


def page_limit(session: Session, limit: int) -> int:
    """At most a page."""
    if limit > PAGE_LIMIT:
        session.note(f"--limit is capped to {PAGE_LIMIT}; go on with --cursor")
    return min(limit, PAGE_LIMIT)


def found_under(client: Client, id: str, key: bytes | None) -> list[Stored]:
    """The message of an id, if there is one, then what is quarantined under that id."""
    stored = client.get(id, key=key)
    return [*([] if stored is None else [stored]), *client.quarantined(id)]


def note_quarantined(session: Session, others: Sequence[Stored]) -> None:
    """Say what else is quarantined under the id that was shown."""
    for other in others:
        session.note(f"also in the dead set: {other.id}: {other.reason}")


def end_of_page(session: Session, page: Page, nothing: str) -> None:
    """Below a list: how to go on, or that there was nothing."""
    if page.cursor is not None:
        cursor = cursor_text(page.cursor)
        if session.output.json:
            session.output.error_line(json.dumps({"next": {"cursor": cursor}}))
        else:
            session.output.line(f"next: --cursor {shlex.quote(cursor)}")
    elif not page.items:
        session.note(nothing)


def cursor_text(cursor: tuple[float, str]) -> str:
    """`1795197600450.99:ID`."""
    score, id = cursor
    return f"{int(score) if score.is_integer() else repr(score)}:{id}"


def _columns(now_ms: int) -> list[Column[Stored]]:
    return [
        Column("DUE", lambda item: moment(item.due_ms) or "", spare=1),
        Column("IN", lambda item: in_time(item.due_ms - now_ms), right=True),
        Column("ID", lambda item: item.id),
        Column("DESTINATION", lambda item: item.destination or "?"),
        Column("TRY", lambda item: str(item.attempts), right=True, spare=5),
        Column("BYTES", _size, right=True, spare=4),
        Column("HEADERS", headers_text, spare=2),
    ]


# Shown only where one of the messages has a value.
_MORE_COLUMNS: list[Column[Stored]] = [
    Column("FIRST DUE", lambda item: moment(item.first_due_ms) or "", spare=3),
    Column("REASON", lambda item: shortened(item.reason or item.last_error)),
]


def _size(item: Stored) -> str:
    return "null" if item.body is None else str(len(item.body))

"""`delaybridge dead`: messages that were given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from delaybridge.cli.bulk import perform
from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import (
    PAGE_LIMIT,
    Group,
    body_option,
    key_option,
    page_options,
    pass_session,
)
from delaybridge.cli.messages import end_of_page, found_under, note_quarantined, page_limit
from delaybridge.cli.output import Column, described, moment, shortened
from delaybridge.cli.session import Session
from delaybridge.cli.stored import show_stored
from delaybridge.cli.targets import Targets, bulk_options

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.message import Answer
    from delaybridge.store.changes import Named
    from delaybridge.store.stored import Stored

_NOT_DEAD = "not in the dead set"


@click.group(cls=Group)
def dead() -> None:
    """Messages that were given up: list, bring back, discard."""


@dead.command("ls")
@click.option("--by-reason", is_flag=True, help="Count them by reason instead.")
@page_options
@pass_session
def ls(session: Session, by_reason: bool, limit: int, cursor: tuple[float, str] | None) -> None:
    """List dead messages, the oldest on top."""
    with session.client() as client:
        if by_reason:
            _show_reasons(session, client)
            return
        page = client.dead(limit=page_limit(session, limit), cursor=cursor)
    session.output.table(_COLUMNS, page.items, described)
    end_of_page(session, page, "no dead messages")


@dead.command("show")
@click.argument("id")
@body_option
@key_option
@pass_session
def show(session: Session, id: str, form: str, key: bytes | None) -> None:
    """Show one dead message."""
    with session.client() as client:
        found = found_under(client, id, key)
    buried = [stored for stored in found if stored.state.value == "dead"]
    if not buried:
        where = f"; it is {found[0].state.value}" if found else ""
        raise Failure(Exit.NOT_FOUND, "unknown", id, _NOT_DEAD + where)
    show_stored(session, buried[0], form)
    note_quarantined(session, buried[1:])


@dead.command("kick")
@bulk_options(dead=True, over=True)
@pass_session
def kick(session: Session, targets: Targets) -> int:
    """Bring messages back, due now (or spread with --over); attempts start again at 1.

    Give ids or filters. Messages that match all filters are counted first, then brought back
    once you confirm (or with --yes).
    """

    def verb(client: Client, some: Sequence[Named], later_ms: list[int]) -> list[Answer]:
        return client.kick_many(some, spread_ms=later_ms, key=targets.key)

    return perform(session, targets, "bring back", verb, unknown=_NOT_DEAD)


@dead.command("discard")
@bulk_options(dead=True)
@pass_session
def discard(session: Session, targets: Targets) -> int:
    """Delete messages from the dead set for good.

    Give ids or filters. Messages that match all filters are counted first, then deleted once
    you confirm (or with --yes).
    """
    if len(targets.ids) > 1:
        session.confirm(f"discard {len(targets.ids)} messages", yes=targets.yes)
    return perform(
        session,
        targets,
        "discard",
        lambda client, some, _: client.discard_many(some, key=targets.key),
        unknown=_NOT_DEAD,
    )


_COLUMNS: list[Column[Stored]] = [
    Column("DEAD SINCE", lambda item: moment(item.dead_ms) or "", spare=2),
    Column("ID", lambda item: item.id),
    Column("DESTINATION", lambda item: item.destination or "?"),
    Column("TRY", lambda item: str(item.attempts), right=True, spare=1),
    Column("REASON", lambda item: shortened(item.reason)),
]


@dataclass
class _Group:
    """Dead messages of one reason and destination."""

    reason: str
    destination: str
    count: int
    oldest_ms: int
    example: str


_GROUP_COLUMNS: list[Column[_Group]] = [
    Column("COUNT", lambda group: str(group.count), right=True),
    Column("REASON", lambda group: group.reason),
    Column("DESTINATION", lambda group: group.destination),
    Column("OLDEST", lambda group: moment(group.oldest_ms) or "", spare=1),
    Column("EXAMPLE", lambda group: shortened(group.example), spare=2),
]


def _show_reasons(session: Session, client: Client) -> None:
    from delaybridge.store.troubles import first_word

    groups: dict[tuple[str, str], _Group] = {}
    for item in _all_dead(client):
        reason, destination = item.reason or "?", item.destination or "?"
        key = (first_word(reason), destination)
        group = groups.setdefault(key, _Group(*key, 0, item.dead_ms or 0, reason))
        group.count += 1
    largest_first = sorted(groups.values(), key=lambda group: -group.count)
    if not session.output.table(_GROUP_COLUMNS, largest_first, asdict):
        session.note("no dead messages")


def _all_dead(client: Client) -> Iterator[Stored]:
    cursor = None
    while True:
        page = client.dead(limit=PAGE_LIMIT, cursor=cursor)
        yield from page.items
        if (cursor := page.cursor) is None:
            return

"""`delaybridge dead`: messages that were given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from delaybridge.cli.bulk import Asked, bulk_options, perform
from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import PAGE_LIMIT, Group, key_option, page_options, pass_session
from delaybridge.cli.messages import end_of_page, found_under, note_quarantined, page_limit
from delaybridge.cli.output import cut, described, moment
from delaybridge.cli.session import Session
from delaybridge.cli.stored import show_stored

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.message import Answer
    from delaybridge.store.changes import Named
    from delaybridge.store.stored import Stored

_TITLES = ("DEAD SINCE", "ID", "DESTINATION", "TRY", "REASON")
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
    rows = ((described(item), _cells(item)) for item in page.items)
    session.output.table(_TITLES, rows, right=("TRY",), spare=("TRY", "DEAD SINCE"))
    end_of_page(session, page, "no dead messages")


@dead.command("show")
@click.argument("id")
@click.option(
    "--body",
    "form",
    type=click.Choice(["text", "json", "hex", "raw"]),
    default="text",
    show_default=True,
    help="How the body is printed; raw: nothing but its bytes.",
)
@key_option
@pass_session
def show(session: Session, id: str, form: str, key: str | None) -> None:
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
def kick(session: Session, asked: Asked) -> int:
    """Bring messages back, due now (or spread with --over); attempts start again at 1.

    Give ids or filters. Messages that match all filters are counted first, then brought back
    once you confirm (or with --yes).
    """

    def verb(client: Client, some: Sequence[Named], later_ms: list[int]) -> list[Answer]:
        return client.kick_many(some, spread_ms=later_ms, key=asked.key)

    return perform(session, asked, "bring back", verb, unknown=_NOT_DEAD)


@dead.command("discard")
@bulk_options(dead=True)
@pass_session
def discard(session: Session, asked: Asked) -> int:
    """Delete messages from the dead set for good.

    Give ids or filters. Messages that match all filters are counted first, then deleted once
    you confirm (or with --yes).
    """
    if len(asked.ids) > 1:
        session.confirm(f"discard {len(asked.ids)} messages", yes=asked.yes)
    return perform(
        session,
        asked,
        "discard",
        lambda client, some, _: client.discard_many(some, key=asked.key),
        unknown=_NOT_DEAD,
    )


@dataclass
class _Reason:
    """What died of one reason."""

    count: int
    oldest_ms: int
    example: str


def _show_reasons(session: Session, client: Client) -> None:
    from delaybridge.store.troubles import first_word

    groups: dict[tuple[str, str], _Reason] = {}
    for item in _all_dead(client):
        group = (first_word(item.reason or "?"), item.destination or "?")
        found = groups.setdefault(group, _Reason(0, item.dead_ms or 0, item.reason or "?"))
        found.count += 1
    rows = [
        (
            {
                "reason": word,
                "destination": destination,
                "count": of.count,
                "oldest_ms": of.oldest_ms,
                "example": of.example,
            },
            [str(of.count), word, destination, moment(of.oldest_ms) or "", cut(of.example)],
        )
        for (word, destination), of in sorted(groups.items(), key=lambda g: -g[1].count)
    ]
    titles = ("COUNT", "REASON", "DESTINATION", "OLDEST", "EXAMPLE")
    if not session.output.table(titles, rows, right=("COUNT",), spare=("OLDEST", "EXAMPLE")):
        session.note("no dead messages")


def _all_dead(client: Client) -> Iterator[Stored]:
    page = client.dead(limit=PAGE_LIMIT)
    yield from page.items
    while page.cursor is not None:
        page = client.dead(limit=PAGE_LIMIT, cursor=page.cursor)
        yield from page.items


def _cells(item: Stored) -> list[str]:
    return [
        moment(item.dead_ms) or "",
        item.id,
        item.destination or "?",
        str(item.attempts),
        cut(item.reason or ""),
    ]

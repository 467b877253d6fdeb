"""`delaybridge destination`: what concerns all messages of one destination."""

from __future__ import annotations

import click

from delaybridge.cli.bulk import Asked, sweep
from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import Group, pass_session
from delaybridge.cli.session import Session


@click.group(cls=Group)
def destination() -> None:
    """All messages of one destination at once."""


@destination.command("purge")
@click.argument("destination", metavar="D")
@click.option("--confirm", metavar="D", help="The destination once more: do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count its messages.")
@pass_session
def purge(session: Session, destination: str, confirm: str | None, dry_run: bool) -> int:
    """Cancel all messages to exactly this destination, and delete its dead ones.

    They are counted first. Messages already handed to the broker are too late: `in_flight`.
    """
    from delaybridge.message import State
    from delaybridge.store.selection import PENDING, Selection

    if confirm not in (None, destination):
        what = f"got {confirm!r}, but {destination!r} is to be purged; nothing was done"
        raise Failure(Exit.REFUSED, "confirm", "--confirm", what)
    selection = Selection(states=(*PENDING, State.DEAD), destination=destination)
    asked = Asked(
        *((), None, {"destination": destination}),
        dead=False,
        yes=confirm is not None,
        dry_run=dry_run,
        confirmed_by=f"--confirm {destination}",
    )
    return sweep(
        session, "purge", selection, lambda client, some, _: client.cancel_many(some), asked
    )

"""`delaybridge destination`: verbs for all messages to one destination."""

from __future__ import annotations

import click

from delaybridge.cli.bulk import sweep
from delaybridge.cli.failure import Exit, Failure
from delaybridge.cli.grammar import Group, pass_session
from delaybridge.cli.session import Session
from delaybridge.cli.targets import PENDING_STATES, Targets


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
    if confirm not in (None, destination):
        what = f"got {confirm!r}, but {destination!r} is to be purged; nothing was done"
        raise Failure(Exit.REFUSED, "confirm", "--confirm", what)
    targets = Targets(
        destination=destination,
        default_states=(*PENDING_STATES, "dead"),
        yes=confirm is not None,
        dry_run=dry_run,
        confirmed_by=f"--confirm {destination}",
    )
    return sweep(session, targets, "purge", lambda client, some, _: client.cancel_many(some))

"""`delaybridge health`: is everything delivered on time? The exit code says it to Kubernetes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from delaybridge.cli.failure import Exit
from delaybridge.cli.fleet import failing_text, overdue_text, unowned
from delaybridge.cli.grammar import Command, pass_session
from delaybridge.cli.output import FAIL, OK
from delaybridge.cli.session import Session

if TYPE_CHECKING:
    from delaybridge.client import Client
    from delaybridge.store.stats import Stats

_LOOK_AGAIN_S = 0.5
_NAMED = 3  # failing destinations


@click.command("health", cls=Command)
@click.option(
    "--max-overdue",
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="How late the oldest waiting message may be.",
)
@click.option(
    "--max-unowned",
    metavar="DURATION",
    default="0s",
    show_default=True,
    help="How long a bucket may lack a worker; waits so long at most.",
)
@click.option(
    "--max-retrying-age",
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="How long a message may have been failing and retried.",
)
@pass_session
def health(session: Session, max_overdue: str, max_unowned: str, max_retrying_age: str) -> int:
    """Check that messages go out on time; exits with 0 or 1.

    Exits with 1 if messages are late or keep failing, if a bucket has no worker or is damaged,
    or if a delay exchange or delay topic is not read; with 5 if Redis is unreachable.
    """
    from delaybridge.cli.sources import stalled, unread
    from delaybridge.times import delay_ms, format_duration

    overdue_ms = delay_ms(max_overdue, field="--max-overdue")
    unowned_ms = delay_ms(max_unowned, field="--max-unowned")
    retrying_ms = delay_ms(max_retrying_age, field="--max-retrying-age")
    with session.client() as client:
        found, alone = _watch(client, unowned_ms)
    failing = [each for each in found.retrying if found.now_ms - each.since_ms > retrying_ms]
    faults = []
    if found.overdue_ms > overdue_ms:
        most = format_duration(overdue_ms)
        faults.append(f"the oldest waiting message is {overdue_text(found)} overdue, over {most}")
        faults += [f"parked: {each.destination} {each.reason}" for each in found.troubles[:_NAMED]]
    if alone:
        faults.append(f"{len(alone)} of {len(found.buckets)} buckets have no worker")
    faults += [failing_text(each, found) for each in failing[:_NAMED]]
    faults += [f"nobody reads {source}" for source in unread(found, session.settings)]
    faults += stalled(found)
    faults += (f"damaged: {one}" for one in found.all_damage)
    data = {
        "healthy": not faults,
        "overdue_ms": found.overdue_ms,
        "buckets": len(found.buckets),
        "unowned": sorted(alone),
        "retrying_age_ms": max((found.now_ms - r.since_ms for r in found.retrying), default=0),
        "faults": faults,
    }
    well = ["every bucket has its worker, nothing is late"]
    well += [failing_text(each, found) for each in found.retrying[:_NAMED]]
    verdict = "; ".join(faults or well)
    session.output.verdict(data, FAIL if faults else OK, verdict)
    return Exit.FAILED if faults else Exit.DONE


def _watch(client: Client, patience_ms: int) -> tuple[Stats, set[int]]:
    """The stats, and the buckets that were without a worker for as long as was looked."""
    until_s = time.monotonic() + patience_ms / 1000
    found = client.stats()
    alone = set(unowned(found))
    while alone and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_AGAIN_S))
        found = client.stats()
        alone &= set(unowned(found))
    return found, alone

"""`delaybridge health`: whether everything is delivered on time, as an exit code for probes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from delaybridge.cli.failure import Exit
from delaybridge.cli.fleet import failing_text, overdue_text, unowned
from delaybridge.cli.grammar import Command, as_duration_ms, pass_session
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
    "overdue_ms",
    metavar="DURATION",
    callback=as_duration_ms,
    default="5s",
    show_default=True,
    help="How late the oldest waiting message may be.",
)
@click.option(
    "--max-unowned",
    "unowned_ms",
    metavar="DURATION",
    callback=as_duration_ms,
    default="0s",
    show_default=True,
    help="How long a bucket may lack a worker; the check waits up to this long.",
)
@click.option(
    "--max-retrying-age",
    "retrying_ms",
    metavar="DURATION",
    callback=as_duration_ms,
    default="1m",
    show_default=True,
    help="How long a message may have been failing and retried.",
)
@pass_session
def health(session: Session, overdue_ms: int, unowned_ms: int, retrying_ms: int) -> int:
    """Check that messages go out on time; exits with 0 or 1.

    Exits with 1 if messages are late or keep failing, if a bucket has no worker or is damaged,
    or if a delay exchange or delay topic is not read; with 5 if Redis is unreachable.
    """
    from delaybridge.cli.sources import stalled, unread
    from delaybridge.times import format_duration

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
    """The stats, and the buckets that had no worker throughout `patience_ms`."""
    until_s = time.monotonic() + patience_ms / 1000
    found = client.stats()
    alone = set(unowned(found))
    while alone and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_AGAIN_S))
        found = client.stats()
        alone &= set(unowned(found))
    return found, alone

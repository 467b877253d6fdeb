"""The cells of tables that more than one command prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaybridge.operate.views.described import tally_text
from delaybridge.times import in_time, roughly

if TYPE_CHECKING:
    from delaybridge.operate.views.bucket_counts import BucketStats
    from delaybridge.operate.views.retrying import Retrying
    from delaybridge.operate.views.stats import Stats
    from delaybridge.operate.views.waiting_on_purpose import Paused


def retrying_row(each: Retrying, found: Stats) -> dict[str, str]:
    """Cells of a group of failing messages."""
    return {
        # Ends in + if only a sample of the messages was counted.
        ">RETRYING": f"{each.messages:,}{'+' if found.retrying_sampled else ''}",
        "DESTINATION": each.destination,
        "REASON": each.reason,
        "FAILING FOR": roughly(max(0, found.now_ms - each.since_ms)),
        "EXAMPLE": each.example,
    }


def paused_row(each: Paused, now_ms: int) -> dict[str, str]:
    """Cells of a paused place."""
    return {
        "PAUSED": each.place,
        ">WAITING": tally_text(each.waiting),
        "SINCE": "?" if each.since_ms is None else roughly(max(0, now_ms - each.since_ms)),
    }


def bucket_row(each: BucketStats, now_ms: int) -> dict[str, str | int]:
    """Cells of a bucket; `?` where its server does not answer."""
    if each.unseen:
        unknown = (">DELAYED", ">IN FLIGHT", ">PARKED", ">DEAD", "NEXT DUE", "OVERDUE", "OWNER")
        return {
            ">BUCKET": each.bucket,
            **dict.fromkeys((*unknown, "LEASE"), "?"),
            "NODE": each.node,
        }
    return {
        ">BUCKET": each.bucket,
        ">DELAYED": each.delayed,
        ">IN FLIGHT": each.in_flight,
        ">PARKED": each.parked,
        ">DEAD": each.dead,
        "NEXT DUE": "-" if each.next_due_ms is None else in_time(each.next_due_ms - now_ms),
        "OVERDUE": roughly(each.overdue_ms) if each.overdue_ms else "-",
        "OWNER": each.owner or "none",
        "LEASE": "-" if each.lease_ms is None else roughly(each.lease_ms),
        "NODE": each.node,
    }

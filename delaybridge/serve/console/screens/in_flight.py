"""In flight: the messages that workers hold, the most overdue on top."""

from __future__ import annotations

from typing import Any

from delaybridge.message import State
from delaybridge.serve.api.messages.messages import found_page
from delaybridge.serve.api.messages.paging import PageQuery
from delaybridge.serve.console.lists import SIZES, lines, pager
from delaybridge.serve.console.page import ConsolePage
from delaybridge.serve.console.rendering import link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.shared.call import Call


class InFlightQuery(PageQuery, kw_only=True):
    """The same, and the cursors of the pages before."""

    back: str = ""
    limit: int = 100


async def in_flight(call: Call) -> dict[str, Any]:
    """A page of the mirror, with the owners of its buckets."""
    query: InFlightQuery = call.query
    stats = await snapshots_of(call.site).stats()
    page = await found_page(call, query, State.IN_FLIGHT)
    # The mirror is in the order of claims, which is nearly that of due times.
    held = sorted(page.items, key=lambda item: item.due_ms)
    kept = {"destination": query.destination, "limit": query.limit}
    return {
        "api": link("/v1/in-flight", **kept),
        "export": link("/v1/messages:export", state=State.IN_FLIGHT, destination=query.destination),
        "query": query,
        "lines": lines(held),
        "unseen_buckets": page.unseen,
        "owners": {each.bucket: each.owner for each in stats.buckets},
        "sizes_of": [each.in_flight for each in stats.buckets],
        "pager": pager("/in-flight", kept, query.cursor, query.back, page.next_cursor),
        "sizes": SIZES,
        "now_ms": stats.now_ms,
    }


PAGES = (
    ConsolePage(
        path="/in-flight", name="in-flight", title="In flight", data=in_flight,
        query=InFlightQuery,
    ),
)  # fmt: skip

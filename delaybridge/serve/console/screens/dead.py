"""Dead: what was given up, by reason."""

from __future__ import annotations

from typing import Any

import msgspec

from delaybridge.message import State
from delaybridge.serve.api.messages.dead import summarized
from delaybridge.serve.api.messages.messages import found_page
from delaybridge.serve.api.messages.paging import PageQuery
from delaybridge.serve.console.page import ConsolePage
from delaybridge.serve.console.rendering import link
from delaybridge.serve.shared.call import Call

SIZES = (25, 50, 100, 500)


class DeadPageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """reason: its first word. destination: also an exchange or a broker."""

    reason: str = ""
    destination: str = ""
    id_prefix: str = ""
    limit: int = 50
    cursor: str = ""


async def dead(call: Call) -> dict[str, Any]:
    """Groups by reason, and a page of messages."""
    query: DeadPageQuery = call.query
    asked = {name: value for name, value in msgspec.structs.asdict(query).items() if value}
    page = await found_page(call, msgspec.convert(asked, PageQuery), State.DEAD)
    chosen = {n: asked[n] for n in ("reason", "destination", "id_prefix") if n in asked}
    following = page.next_cursor and link("", **{**asked, "cursor": page.next_cursor})
    return {
        "api": link("/v1/dead", **asked),
        "export": link("/v1/messages:export", state=State.DEAD, **chosen),
        "query": query,
        "sizes": SIZES,
        "summary": await summarized(call),
        "found": page,
        "following": following,
        "filter": chosen,
    }


PAGES = (ConsolePage(path="/dead", name="dead", title="Dead", data=dead, query=DeadPageQuery),)

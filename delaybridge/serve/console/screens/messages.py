"""Lists of messages: by any filter, in flight, dead; to act on some rows or on all that match."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import State
from delaybridge.serve.api.messages.dead import summary
from delaybridge.serve.api.messages.ledger import message_with_life
from delaybridge.serve.api.messages.messages import found_page
from delaybridge.serve.api.messages.paging import PageOfState, PageQuery
from delaybridge.serve.console.bodies import beginning
from delaybridge.serve.console.lists import SIZES, lines, message_path, pager, point_ms
from delaybridge.serve.console.page import Pages, lead_to
from delaybridge.serve.console.rendering import link
from delaybridge.serve.console.snapshot import snapshots_of
from delaybridge.serve.http.endpoint import Reply
from delaybridge.serve.shared.audit import note_browsing
from delaybridge.serve.shared.call import Call
from delaybridge.times import format_time

_PATH = "/messages"
_AT_ONCE = 25  # rows; the browser reads further ones when it has painted these
# What of the query is no filter.
_VIEW = {"q", "cursor", "back", "limit", "state", "format"}
pages = Pages()


class MessagesQuery(PageOfState, kw_only=True):
    """The filters of the API. due_from, due_to: also relative to now, as `10m` or `-1h`.

    q: an id or a destination to look for. back: the cursors of the pages before.
    """

    q: str = ""
    back: str = ""
    limit: int = 50


@pages(_PATH, "Messages", query=MessagesQuery)
async def messages(call: Call) -> dict[str, Any] | Reply:
    """A page of messages; or, for what was searched, the way to it."""
    query: MessagesQuery = call.query
    if query.q.strip():
        return await _found(call, query.q.strip())
    stats = await snapshots_of(call.site).stats()
    typed = {"due_from": query.due_from or "", "due_to": query.due_to or ""}
    _settle(query, stats.now_ms)
    begun = beginning if call.may_read_bodies else None
    page = await found_page(call, query, query.state, begun)
    filters = {name: value for name, value in _given(query).items() if name not in _VIEW}
    kept = {"state": query.state if query.state is not State.DELAYED else None, **filters}
    sized = {**kept, "limit": query.limit}
    api = link("/v1/messages", state=query.state, **filters, limit=query.limit)
    await note_browsing(call, link("/v1/messages", state=query.state, **filters))
    return {
        "api": api,
        "export": link("/v1/messages:export", state=query.state, **filters),
        "query": query,
        "typed": {name: typed[name] or _written(getattr(query, f"{name}_ms")) for name in typed},
        "filters": filters,
        "kept": kept,
        "bulk": {"state": query.state, **filters},
        "commands": commands(query, filters),
        "lines": lines(page.items),
        "shows_bodies": call.may_read_bodies,
        # A refresh finds all rows there, and keeps them.
        "at_once": None if "hx-request" in call.headers else _AT_ONCE,
        "unseen_buckets": page.unseen,
        "pager": pager(_PATH, sized, query.cursor, query.back, page.next_cursor),
        "sizes": SIZES,
        "now_ms": stats.now_ms,
        "counts": {state: getattr(stats, state) for state in State},
        "horizon": link("/v1/horizon", destination=query.destination),
    }


async def _found(call: Call, text: str) -> Reply:
    """To the message of this id; else to the messages of this destination, or with such ids."""
    client = call.site.client
    try:
        item = await message_with_life(call, text, await client.get(text))
    except MessageError:  # it cannot be an id
        item = None
    if item is not None:
        return lead_to(call, message_path(item))
    if text.partition(":")[0] in {*dict(client.kinds), "pull", "rabbitmq", "kafka"}:
        return lead_to(call, link(_PATH, destination=text))
    return lead_to(call, link(_PATH, id_prefix=text))


def _settle(query: MessagesQuery, now_ms: int) -> None:
    """Times as they were typed become moments: the next page must not move with the clock."""
    for name in ("due_from", "due_to"):
        if (text := getattr(query, name)) is not None:
            setattr(query, f"{name}_ms", point_ms(text.strip(), now_ms, name))
            setattr(query, name, None)


def _given(query: MessagesQuery) -> dict[str, Any]:
    """The parameters that are set."""
    found = {name: getattr(query, name) for name in query.__struct_fields__}
    return {name: value for name, value in found.items() if value not in (None, "", 0)}


def _written(at_ms: int | None) -> str:
    return "" if at_ms is None else format_time(at_ms)


_OPTIONS = {
    "destination": "--destination", "id_prefix": "--id-prefix", "reason": "--reason",
    "due_from_ms": "--due-from", "due_to_ms": "--due-to",
}  # fmt: skip
_LISTED = {"destination", "due_from_ms", "due_to_ms"}


def commands(query: MessagesQuery, filters: dict[str, Any]) -> list[str]:
    """The commands that list and change what matches; those that know all filters."""
    words = ["--state", query.state.value]
    for name, value in filters.items():
        if name in _OPTIONS:
            text = format_time(value) if name.endswith("_ms") else str(value)
            words += [_OPTIONS[name], text]
    rest = shlex.join(words)
    found = [f"delaybridge message ls {rest}"] if filters.keys() <= _LISTED else []
    if not filters or not filters.keys() <= _OPTIONS.keys():
        return found  # a command for everything is too easily run
    if query.state is State.DEAD:
        rest = shlex.join(words[2:])
        return [*found, f"delaybridge dead kick {rest}".strip()]
    return [
        *found,
        f"delaybridge message cancel {rest}",
        f"delaybridge message reschedule --in 10m {rest}",
        f"delaybridge message publish-now {rest}",
    ]


class InFlightQuery(PageQuery, kw_only=True):
    """The same, and the cursors of the pages before."""

    back: str = ""
    limit: int = 100


@pages("/in-flight", "In flight", query=InFlightQuery)
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


class DeadPageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """reason: its first word. destination: also an exchange or a broker."""

    reason: str = ""
    destination: str = ""
    id_prefix: str = ""
    limit: int = 50
    cursor: str = ""


@pages("/dead", "Dead", query=DeadPageQuery)
async def dead(call: Call) -> dict[str, Any]:
    """Groups by reason, and a page of messages."""
    query: DeadPageQuery = call.query
    asked = {name: value for name, value in msgspec.structs.asdict(query).items() if value}
    begun = beginning if call.may_read_bodies else None
    page = await found_page(call, msgspec.convert(asked, PageQuery), State.DEAD, begun)
    chosen = {n: asked[n] for n in ("reason", "destination", "id_prefix") if n in asked}
    await note_browsing(call, link("/v1/dead", **chosen))
    following = page.next_cursor and link("", **{**asked, "cursor": page.next_cursor})
    return {
        "api": link("/v1/dead", **asked),
        "export": link("/v1/messages:export", state=State.DEAD, **chosen),
        "query": query,
        "sizes": SIZES,
        "summary": await summary(call),
        "found": page,
        "following": following,
        "filter": chosen,
        "shows_bodies": call.may_read_bodies,
    }

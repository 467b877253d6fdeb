"""Exported definitions of RabbitMQ without the delayed-message plugin, as a front would have made.

Everything here is without I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from delaybridge.errors import ConfigError
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.topology import IMPORTED, declarations
from delaybridge.ingest.routes import Route, fronted

TYPE, TYPE_BEHIND = "x-delayed-message", "x-delayed-type"
_NEEDED = {
    "exchanges": "name type",
    "queues": "name",
    "bindings": "source destination destination_type",
    "policies": "name pattern",
    "permissions": "user configure read",
    "topic_permissions": "user exchange",
    "parameters": "component name",
}
"""The sections that are read: what each row must have, as text."""
_FEDERATION = {"federation-upstream", "federation-upstream-set"}
_DROPPING = {"expires", "overflow", "dead-letter-strategy", "message-ttl", "delivery-limit"}
_NO_VALUE = "undefined"  # in exports: what a binding of ingest has in place of values

Row = dict[str, Any]
Routes = Mapping[tuple[str | None, str], Route]
"""By vhost, which an export of one vhost does not name, and exchange."""


class Edit(NamedTuple):
    """One thing that was changed, or that is left to be done by hand."""

    vhost: str | None
    what: str
    text: str
    is_done: bool = True


def convert(document: Any, suffix: str) -> tuple[Row, list[Edit]]:
    """Each exchange of the plugin becomes what a front makes of it. RabbitMQ 4.3 can import all.

    Returns the definitions and what was changed or is left to do: nothing if it was done before.
    ConfigError if these are no definitions, or if a name is taken.
    """
    _check(document)
    made: Row = deepcopy(document)
    routes = _routes(made, suffix)
    edits = [*_exchanges(made, routes), *_bindings(made, routes)]
    for section, step in (
        ("policies", _policy), ("permissions", _rights), ("topic_permissions", _topic_right),
        ("parameters", _shovel),
    ):  # fmt: skip
        for row in made.get(section, ()):
            vhost = row.get("vhost")
            here = [route for (place, _), route in routes.items() if place == vhost]
            edits += [each._replace(vhost=vhost) for each in step(row, here)]
    return made, edits


def _check(document: Any) -> None:
    at = "exchanges"
    try:
        for section, needed in _NEEDED.items():
            at, given = section, document.get(section, [None] if section == "exchanges" else [])
            for number, row in enumerate(given if isinstance(given, list) else [None]):
                at = f"{section}[{number}]"
                hash(row.get("vhost"))
                for name in needed.split():
                    at = f"{section}[{number}].{name}"
                    row[name].encode()
                for name in ("arguments", "definition"):
                    (row.get(name) or {}).keys()
    except (KeyError, TypeError, AttributeError):
        remedy = "give a file of `rabbitmqctl export_definitions`, or of GET /api/definitions"
        raise ConfigError(f"{at}: not as RabbitMQ exports it; {remedy}") from None


def _routes(document: Row, suffix: str) -> Routes:
    """The exchanges to convert; ConfigError if one cannot be."""
    routes = {}
    rows = (*document["exchanges"], *document.get("queues", ()))
    taken = {(row.get("vhost"), row["name"]) for row in rows}
    for number, row in enumerate(document["exchanges"]):
        if row["type"] != TYPE:
            continue
        at, vhost = f"exchanges[{number}]", row.get("vhost")
        behind = (row.get("arguments") or {}).get(TYPE_BEHIND)
        if not isinstance(behind, str) or behind in ("", TYPE):
            what = f"name the type that {row['name']!r} is to have, such as topic"
            raise ConfigError(f"{at}.arguments.{TYPE_BEHIND}: {what}")
        try:
            route = routes[vhost, row["name"]] = fronted("", row["name"], suffix)
        except ConfigError as exc:
            raise ConfigError(f"{at}.name: {exc}") from None
        made = (route.target, route.queue, expired(route))
        for name in {(vhost, each) for each in made} & taken:
            raise ConfigError(f"{at}: {name[1]!r} exists already; choose another --suffix")
    return routes


def _exchanges(document: Row, routes: Routes) -> Iterator[Edit]:
    """Each exchange becomes three, with two queues and the bindings of these."""
    old, document["exchanges"] = document["exchanges"], []
    for row in old:
        route = routes.get((row.get("vhost"), row["name"]))
        if route is None:
            document["exchanges"].append(row)
            continue
        for section, added in _rows(route, row):
            place = {"vhost": row["vhost"]} if "vhost" in row else {}
            document.setdefault(section, []).append(place | added)
        text = f"delayed messages go to queue {route.queue!r}, all others to exchange"
        text += f" {route.target!r}, which has its type, arguments and bindings"
        yield Edit(row.get("vhost"), f"exchange {route.source}", text)


def _rows(route: Route, row: Row) -> Iterator[tuple[str, Row]]:
    """What the front makes of a row, with their sections; of the bindings to the intake `IMPORTED`.

    row: the exchange of the plugin.
    """
    arguments = dict(row["arguments"])
    behind = {"name": route.target, "type": arguments.pop(TYPE_BEHIND), "internal": False}
    yield "exchanges", {**row, **behind, "arguments": arguments}
    flags = row.get("durable", True), row.get("internal", False)
    for method, about in declarations(route, *flags):
        name, queue, kept = about.get("exchange"), about.get("queue"), about.get("durable")
        last = {"durable": kept, "auto_delete": False, "arguments": about.get("arguments", {})}
        if method == "exchange_declare":
            last |= {"type": about["exchange_type"], "internal": about["internal"]}
            yield "exchanges", {"name": name, **last}
        elif method == "queue_declare":
            yield "queues", {"name": queue, **last}
        elif method == "queue_bind":
            to = {"destination": queue, "destination_type": "queue", "routing_key": ""}
            yield "bindings", {"source": name, **to, "arguments": IMPORTED}


def _bindings(document: Row, routes: Routes) -> Iterator[Edit]:
    """What was bound to the exchange is bound to the one behind it.

    A binding of an exchange that is not there would end the import.
    """
    old, document["bindings"] = document.get("bindings", []), []
    there = {(row.get("vhost"), row["name"]) for row in document["exchanges"]}
    for row in old:
        source, to, kind = row["source"], row["destination"], row["destination_type"]
        vhost, route = row.get("vhost"), routes.get((row.get("vhost"), source))
        edit = Edit(vhost, f"binding {source} -> {kind} {to} {row.get('routing_key', '')!r}", "")
        ends = [name for name in (source, to)[: 1 + (kind == "exchange")] if name[:4] != "amq."]
        if missing := [name for name in ends if (vhost, name) not in there]:
            is_ours = source == to  # of what expired in an intake
            text = f"left out: {missing[0]!r} is not in the file, as internal exchanges never are"
            text += "; ingest declares it again" if is_ours else "; declare and bind it"
            yield edit._replace(text=text, is_done=is_ours)
            continue
        document["bindings"].append(row)
        if _NO_VALUE in (row.get("arguments") or {}).values():
            row["arguments"] = IMPORTED
            text = "takes all until ingest binds it: no file can have headers without a value"
            yield edit._replace(text=text)
        if route is not None and to != route.queue:
            row["source"] = route.target
            yield edit._replace(text=f"the source is {route.target!r} now")


def _policy(row: Row, here: Sequence[Route]) -> Iterator[Edit]:
    """What counted for an exchange counts for the one behind it; what harms an intake is named."""
    what, keys = f"policy {row['name']}", (row.get("definition") or {}).keys()
    applies = row.get("apply-to", "all")
    if applies in ("all", "exchanges"):
        for route in here if _FEDERATION & keys else ():
            if _matches(row["pattern"], route.source):
                text = f"let it federate {route.target!r} instead of {route.source!r}"
                yield Edit(None, what, text, is_done=False)
        yield from _widened(row, "pattern", here, what, "it counts there now")
    if _DROPPING & keys and applies in ("all", "queues", "quorum_queues"):
        for route in here:
            if _matches(row["pattern"], route.queue):
                text = f"{', '.join(sorted(_DROPPING & keys))}: must not match {route.queue!r}"
                yield Edit(None, what, f"{text}, or messages are lost", is_done=False)


def _rights(row: Row, here: Sequence[Route]) -> Iterator[Edit]:
    """Who could declare or bind the exchange can do so with the one behind it."""
    for right, use in (("configure", "declare and delete"), ("read", "bind to")):
        reason = f"to {use} the exchange behind"
        yield from _widened(row, right, here, f"right of {row['user']}", reason)


def _topic_right(row: Row, here: Sequence[Route]) -> Iterator[Edit]:
    for route in here:
        if route.source == row["exchange"]:
            text = f"had no effect on {route.source!r}; if it is to have one, set it for "
            yield Edit(None, f"topic right of {row['user']}", f"{text}{route.target!r}", False)


def _shovel(row: Row, here: Sequence[Route]) -> Iterator[Edit]:
    value = row.get("value")
    source = value.get("src-exchange") if isinstance(value, dict) else None
    for route in here:
        if route.source == source:
            text = f"if it takes from this broker, its src-exchange must be {route.target!r}"
            yield Edit(None, f"{row['component']} {row['name']}", text, is_done=False)


def _widened(row: Row, field: str, here: Sequence[Route], what: str, reason: str) -> Iterator[Edit]:
    """Let a pattern that matches an exchange match the one behind it, too."""
    before = row[field]
    names = [r.target for r in here if _matches(before, r.source)]
    if names := [name for name in names if not _matches(before, name)]:
        row[field] = f"(?:{before})|^(?:{'|'.join(map(re.escape, names))})$"
        yield Edit(None, what, f"{field} '{before}' became '{row[field]}': {reason}")


def _matches(pattern: str, name: str) -> bool:
    """Whether RabbitMQ's pattern matches; ConfigError if only Erlang could say."""
    try:
        if "[:" in pattern:
            raise re.error("a class of characters")
        return bool(pattern) and re.search(pattern, name) is not None
    except re.error as exc:
        raise ConfigError(
            f"the pattern {pattern!r} is not understood ({exc}): rewrite it"
        ) from None

"""Exported definitions of RabbitMQ without the delayed-message plugin, as a front would have made.

Everything here is without I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
from msgspec import defstruct

from delaybridge.errors import ConfigError
from delaybridge.ingest.rabbitmq.deaths import expired
from delaybridge.ingest.rabbitmq.topology import ALTERNATE, IMPORTED, declarations
from delaybridge.ingest.routes import Route, fronted

TYPE, TYPE_BEHIND = "x-delayed-message", "x-delayed-type"
_NEEDED = {
    "exchanges": ("name", "type"),
    "queues": ("name",),
    "bindings": ("source", "destination", "destination_type"),
    "policies": ("name", "pattern"),
    "permissions": ("user", "configure", "read"),
    "topic_permissions": ("user", "exchange"),
    "parameters": ("component", "name"),
}
"""The sections that are read: what each row must have, as text."""
_MAY_HAVE: list[Any] = [("vhost", str, ""), ("priority", int, 0)]
_MAY_HAVE += [(name, dict | None, None) for name in ("arguments", "definition")]
_ROWS = {
    section: GenericAlias(list, defstruct(section, [*((n, str) for n in needed), *_MAY_HAVE]))
    for section, needed in _NEEDED.items()
}
_DEFINITIONS = defstruct(
    "definitions",
    [("exchanges", _ROWS.pop("exchanges"))] + [(s, rows, []) for s, rows in _ROWS.items()],
)
_RIGHTS = {"configure": "declare and delete", "read": "bind to"}
_FEDERATION = {"federation-upstream", "federation-upstream-set"}
_DROPPING = {"expires", "overflow", "dead-letter-strategy", "message-ttl", "delivery-limit"}
_OF_EXCHANGES, _OF_QUEUES = ("all", "exchanges"), ("all", "queues", "quorum_queues")
_NO_VALUE = "undefined"  # in exports: what a binding of ingest has in place of values

Row = dict[str, Any]
Rows = Sequence[Row]
Routes = Mapping[tuple[str | None, str], Route]
"""By vhost, which an export of one vhost does not name, and exchange."""


class Edit(NamedTuple):
    """One thing that was changed, or that is left to be done by hand."""

    vhost: str | None
    kind: str
    name: str
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
    edits += _around(made, routes)
    if routes and "permissions" not in made:
        text = "not in this file: who declares or binds needs configure and read on what is behind"
        edits.append(Edit(None, "rights", "of users", text, is_done=False))
    return made, edits


def _around(document: Row, routes: Routes) -> Iterator[Edit]:
    """What counts for an exchange by its name."""
    for vhost in {vhost: None for vhost, _ in routes}:
        here = [route for (place, _), route in routes.items() if place == vhost]
        rows = {section: document.get(section, ()) for section in _NEEDED}
        near = {s: [row for row in rows[s] if row.get("vhost") == vhost] for s in rows}
        for step in (_policies, _harm, _rights, _untouched):
            yield from (each._replace(vhost=vhost) for each in step(near, here))


def _check(document: Any) -> None:
    try:
        msgspec.convert(document, _DEFINITIONS)
    except msgspec.ValidationError as exc:
        remedy = "give a file of `rabbitmqctl export_definitions` or of GET /api/definitions"
        raise ConfigError(f"not definitions as RabbitMQ exports them: {exc}; {remedy}") from None


def _routes(document: Row, suffix: str) -> Routes:
    """The exchanges to convert; ConfigError if one cannot be."""
    routes = {}
    for number, row in enumerate(document["exchanges"]):
        if row["type"] == TYPE:
            routes[row.get("vhost"), row["name"]] = _route(f"exchanges[{number}]", row, suffix)
    _check_names(document, routes)
    return routes


def _check_names(document: Row, routes: Routes) -> None:
    rows = (*document["exchanges"], *document.get("queues", ()))
    taken = {(row.get("vhost"), row["name"]) for row in rows}
    for (vhost, _), route in routes.items():
        for name in (route.target, route.queue, expired(route)):
            if (vhost, name) in taken:
                what = f"{name!r} of vhost {vhost!r} exists already"
                raise ConfigError(f"exchanges, queues: {what}; choose another --suffix")


def _route(at: str, row: Row, suffix: str) -> Route:
    behind = (row.get("arguments") or {}).get(TYPE_BEHIND)
    if not isinstance(behind, str) or behind in ("", TYPE):
        what = f"name the type that {row['name']!r} is to have, such as topic"
        raise ConfigError(f"{at}.arguments.{TYPE_BEHIND}: {what}")
    try:
        return fronted("", row["name"], suffix)
    except ConfigError as exc:
        raise ConfigError(f"{at}.name: {exc}") from None


def _exchanges(document: Row, routes: Routes) -> Iterator[Edit]:
    """Each exchange becomes three, with two queues and the bindings of these."""
    old, document["exchanges"] = document["exchanges"], []
    for row in old:
        route = routes.get((row.get("vhost"), row["name"]))
        if route is None:
            document["exchanges"].append(row)
            continue
        place = {key: row[key] for key in ("vhost",) if key in row}
        for section, added in _rows(route, row):
            document.setdefault(section, []).append(place | added)
        text = f"delayed messages go to queue {route.queue!r}, all others to {route.target!r}"
        yield Edit(row.get("vhost"), "exchange", route.source, text)
        text = f"has the type, the arguments and the bindings of {route.source!r}"
        yield Edit(row.get("vhost"), "exchange", route.target, text)


def _rows(route: Route, row: Row) -> Iterator[tuple[str, Row]]:
    """What the front makes of a row, with their sections; of the bindings to the intake `IMPORTED`.

    row: the exchange of the plugin.
    """
    arguments = {name: v for name, v in (row.get("arguments") or {}).items() if name != TYPE_BEHIND}
    behind = {"name": route.target, "type": row["arguments"][TYPE_BEHIND], "internal": False}
    yield "exchanges", {**row, **behind, "arguments": arguments}
    for method, about in declarations(route):
        name, queue = about.get("exchange"), about.get("queue")
        last = {"durable": True, "auto_delete": False, "arguments": about.get("arguments", {})}
        if method == "exchange_declare":
            own = row if name == route.source else about
            flags = {"durable": own.get("durable", True), "internal": own.get("internal", False)}
            yield "exchanges", {"name": name, "type": about["exchange_type"], **last, **flags}
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
        vhost, route = row.get("vhost"), routes.get((row.get("vhost"), row["source"]))
        edit = Edit(vhost, "binding", _name(row), "")
        if missing := next((each for each in _ends(row) if (vhost, each) not in there), ""):
            is_ours = row["source"] == row["destination"]  # of what expired in an intake
            text = f"left out: {missing!r} is not in the file, as internal exchanges never are"
            text += "; ingest declares it again" if is_ours else "; declare and bind it"
            yield edit._replace(text=text, is_done=is_ours)
            continue
        document["bindings"].append(row)
        if _NO_VALUE in (row.get("arguments") or {}).values():
            row["arguments"] = IMPORTED
            text = "takes all until ingest binds it: no file can have headers without a value"
            yield edit._replace(text=text)
        if route is not None and row["destination"] != route.queue:
            row["source"] = route.target
            yield edit._replace(text=f"the source is {route.target!r} now")


def _name(binding: Row) -> str:
    key = f" by {binding['routing_key']!r}" if binding.get("routing_key") else ""
    return f"{binding['source']} -> {binding['destination_type']} {binding['destination']}{key}"


def _ends(binding: Row) -> list[str]:
    """Its exchanges, but those that every vhost has."""
    names = [binding["source"], binding["destination"]]
    names = names[: 1 + (binding["destination_type"] == "exchange")]
    return [name for name in names if not name.startswith("amq.")]


def _policies(near: Mapping[str, Rows], here: Sequence[Route]) -> Iterator[Edit]:
    """An alternate exchange that a policy gave goes on to count."""
    of = [row for row in near["policies"] if row.get("apply-to", "all") in _OF_EXCHANGES]
    wider: dict[str, tuple[Row, list[str]]] = {}
    for route in here:
        policy, there = _in_force(of, route.source), _in_force(of, route.target)
        if policy is None or policy is there:
            continue
        if text := _in_the_way(policy, there, route):
            yield Edit(None, "policy", policy["name"], text, is_done=False)
        elif ALTERNATE in (policy.get("definition") or {}):
            wider.setdefault(policy["name"], (policy, []))[1].append(route.target)
    for policy, names in wider.values():
        yield _widen(policy, "pattern", names, "policy", f"its {ALTERNATE} counts there now")


def _in_the_way(policy: Row, there: Row | None, route: Route) -> str:
    """Why the policy cannot count for the exchange behind; there: the one that does."""
    settings = policy.get("definition") or {}
    if _FEDERATION & settings.keys():
        return f"federates {route.source!r}: let it federate {route.target!r} instead"
    if there and ALTERNATE in settings:
        return f"{there['name']!r} counts for {route.target!r}: add {ALTERNATE} to that"
    return ""


def _in_force(policies: Rows, name: str) -> Row | None:
    matching = [row for row in policies if _matches(row["pattern"], name)]
    return max(matching, key=lambda row: row.get("priority", 0), default=None)


def _harm(near: Mapping[str, Rows], here: Sequence[Route]) -> Iterator[Edit]:
    """Policies, those of operators too, with which an intake queue would drop messages."""
    operators = [
        {"pattern": "", **value, "name": row["name"]}
        for row in near["parameters"]
        if row["component"] == "operator_policy" and isinstance(value := row.get("value"), dict)
    ]
    for policy in (*near["policies"], *operators):
        found = sorted(_DROPPING & (policy.get("definition") or {}).keys())
        if policy.get("apply-to", "all") not in _OF_QUEUES or not found:
            continue
        for route in (each for each in here if _matches(policy["pattern"], each.queue)):
            text = f"{', '.join(found)} may drop messages: do not let it match {route.queue!r}"
            yield Edit(None, "policy", policy["name"], text, is_done=False)


def _rights(near: Mapping[str, Rows], here: Sequence[Route]) -> Iterator[Edit]:
    """Who could declare or bind the exchange can do so with the one behind it."""
    for row in near["permissions"]:
        for right, use in _RIGHTS.items():
            pattern = row[right] or "^$"  # an empty one grants nothing
            wider = [
                route.target
                for route in here
                if _matches(pattern, route.source) and not _matches(pattern, route.target)
            ]
            if wider:
                yield _widen(row, right, wider, "right", f"to {use} what is behind the exchange")


def _untouched(near: Mapping[str, Rows], here: Sequence[Route]) -> Iterator[Edit]:
    """What names an exchange, and is left as it is."""
    sources = {route.source: route.target for route in here}
    for row in near["topic_permissions"]:
        if target := sources.get(row["exchange"]):
            text = (
                f"had no effect on {row['exchange']!r}; if it is to have one, set it for {target!r}"
            )
            yield Edit(None, "topic right", row["user"], text, is_done=False)
    for row in near["parameters"]:
        value = row.get("value")
        if isinstance(value, dict) and (target := sources.get(str(value.get("src-exchange")))):
            text = f"if it takes from this broker, its src-exchange must be {target!r}"
            yield Edit(None, row["component"], row["name"], text, is_done=False)


def _widen(row: Row, field: str, names: Sequence[str], kind: str, reason: str) -> Edit:
    """Let a pattern match these names, too."""
    escaped = "|".join(map(re.escape, names))
    before, row[field] = row[field], f"(?:{row[field]})|^(?:{escaped})$"
    name = row["user"] if kind == "right" else row["name"]
    return Edit(None, kind, name, f"{field} '{before}' became '{row[field]}': {reason}")


def _matches(pattern: str, name: str) -> bool:
    """Whether RabbitMQ's pattern matches; ConfigError if only Erlang could say."""
    try:
        if "[:" in pattern:
            raise re.error("a class of characters")
        return re.search(pattern, name) is not None
    except re.error as exc:
        raise ConfigError(
            f"the pattern {pattern!r} is not understood here ({exc}): rewrite it first"
        ) from None

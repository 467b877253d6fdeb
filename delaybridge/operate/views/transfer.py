"""Rules of destinations and recurring definitions as one document: exported, compared, imported.

The document is a JSON object: `delaybridge` (its version), `destinations` (place -> rule) and
`recurring` (a list of definitions). A rule or a definition in it is whole: a field that is not in
the document is not set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from delaybridge.accept.destination import check_plan, parse_destination
from delaybridge.client.destinations import within
from delaybridge.errors import MessageError
from delaybridge.message import Destination, MessagePlan
from delaybridge.recurring.definition import Definition
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.stored import DEFINITIONS_LIMIT
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import rules
from delaybridge.store.namespace.rules import RULES_LIMIT, Rule, place_of
from delaybridge.store.protocol.verbs import Steps

VERSION = 1
DESTINATIONS, RECURRING = "destinations", "recurring"
_SECTIONS = ("delaybridge", DESTINATIONS, RECURRING)
_NOT_EXPORTED = ("paused_ms",)
_RULE_FIELDS = tuple(field for field in Rule.__struct_fields__ if field not in _NOT_EXPORTED)
_LIMITS = {DESTINATIONS: RULES_LIMIT, RECURRING: DEFINITIONS_LIMIT}
_FAULTS = 20
_PIECE = 50  # definitions that are checked between two turns of a loop
Word = Literal["added", "changed", "unchanged", "removed", "kept"]


class Contents(NamedTuple):
    """The rules and definitions of a namespace. unreadable: those that cannot be exported."""

    rules: Mapping[str, Rule]
    definitions: Mapping[str, Definition]
    unreadable: list[tuple[str, str]] = []

    def document(self) -> dict[str, Any]:
        """As JSON, in order of names, so that equal contents are equal texts."""
        exported = {place: _exported(rule) for place, rule in sorted(self.rules.items())}
        recurring = [
            msgspec.to_builtins(self.definitions[name]) for name in sorted(self.definitions)
        ]
        return {"delaybridge": VERSION, DESTINATIONS: exported, RECURRING: recurring}


class Difference(NamedTuple):
    """The effect of an import on one rule or definition. kept: it is not in the document."""

    section: str
    name: str
    word: Word


def contents(calls: Calls) -> Steps[Contents]:
    """The contents that the namespace has now."""
    yield from calls.open()
    (stored,) = yield [rules.read(calls.namespace)]
    known = rules.understood(stored)
    definitions: dict[str, Definition] = {}
    unreadable = [(DESTINATIONS, place) for place in known.odd]
    for each in (yield from Definitions(calls).list_all()):
        if each.definition is None:
            unreadable.append((RECURRING, each.name))
        else:
            definitions[each.name] = each.definition
    return Contents(known.by_place, definitions, unreadable)


def checked(calls: Calls, document: object) -> Steps[tuple[Contents, list[MessageError]]]:
    """The contents of a document, and the faults, each with the name of its rule or definition.

    Nothing is written. MessageError: it is no such document, or has too many of them.
    """
    yield from calls.open()
    now_ms = yield from calls.now_ms()
    given = _sections(document)
    faults: list[MessageError] = []
    by_place: dict[str, Rule] = {}
    for name, fields in given[DESTINATIONS].items():
        try:
            place = _known_place(name, calls.kinds)
            if place in by_place:
                raise MessageError("twice", "destination", "given twice, spelled in two ways")
            by_place[place] = _rule(fields, within(place, calls.kinds), calls.kinds)
        except MessageError as exc:
            faults.append(_of(f"{DESTINATIONS}.{name}", exc))
    definitions: dict[str, Definition] = {}
    for number, fields in enumerate(given[RECURRING]):
        if number % _PIECE == 0:
            yield ()
        try:
            definition = Definitions(calls).check(_definition(fields), now_ms)
            if definition.name in definitions:
                raise MessageError("twice", "name", f"{definition.name!r} is given twice")
            definitions[definition.name] = definition
        except MessageError as exc:
            name = fields.get("name") if isinstance(fields, dict) else None
            faults.append(_of(f"{RECURRING}.{name if isinstance(name, str) else number}", exc))
    return Contents(by_place, definitions), faults[:_FAULTS]


def differences(here: Contents, wanted: Contents, *, prune: bool) -> list[Difference]:
    """The changes of an import, section by section in order of names. MessageError: too many."""
    found = []
    for section, mine, theirs in (
        (DESTINATIONS, here.rules, wanted.rules),
        (RECURRING, here.definitions, wanted.definitions),
    ):
        odd = {name for where, name in here.unreadable if where == section}
        left = theirs.keys() if prune else theirs.keys() | mine.keys() | odd
        _check_count(section, len(left), _LIMITS[section])
        for name in sorted(mine.keys() | theirs.keys() | odd):
            found.append(Difference(section, name, _word(name, mine, theirs, odd, prune=prune)))
    return found


def _word(
    name: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], odd: set[str], *, prune: bool
) -> Word:
    if name not in theirs:
        return "removed" if prune else "kept"
    if name in odd:
        return "changed"
    if name not in mine:
        return "added"
    return "unchanged" if _bare(mine[name]) == _bare(theirs[name]) else "changed"


def write(calls: Calls, wanted: Contents, one: Difference) -> Steps[None]:
    """Do one part of an import."""
    if one.section == RECURRING:
        if one.word == "removed":
            yield from Definitions(calls).remove(one.name)
        else:
            yield from Definitions(calls).add(wanted.definitions[one.name], replace=True)
        return
    if one.word == "removed":
        yield from rules.remove(calls.namespace, one.name)
        return
    rule = wanted.rules[one.name]
    change: dict[str, Any] = {field: getattr(rule, field) for field in _RULE_FIELDS}
    if rule.paused:
        yield from calls.pause(one.name)  # since when: it may be paused already
    else:
        change["paused_ms"] = None
    yield from rules.change(calls.namespace, one.name, change)


def _sections(document: object) -> dict[str, Any]:
    """The document with all of its sections."""
    if not isinstance(document, dict):
        raise MessageError("bad_document", "FILE", "not a JSON object; export one to see its form")
    version = document.get("delaybridge")
    if version != VERSION or isinstance(version, bool):
        what = f"its version (`delaybridge`) must be {VERSION}"
        raise MessageError("bad_document", "delaybridge", what)
    for section in document:
        if section not in _SECTIONS:
            what = f"unknown; a document has {', '.join(_SECTIONS)}"
            raise MessageError("bad_document", str(section), what)
    given = {DESTINATIONS: {}, RECURRING: [], **document}
    if not isinstance(given[DESTINATIONS], dict):
        raise MessageError("bad_document", DESTINATIONS, "give an object: place -> rule")
    if not isinstance(given[RECURRING], list):
        raise MessageError("bad_document", RECURRING, "give a list of definitions")
    for section, limit in _LIMITS.items():
        _check_count(section, len(given[section]), limit)
    return given


def _check_count(section: str, count: int, limit: int) -> None:
    if count > limit:
        raise MessageError("too_many", section, f"{count}; at most {limit} are allowed")


def _known_place(text: str, kinds: Mapping[str, str]) -> str:
    place = place_of(text, kinds)
    if place.partition(":")[0] not in kinds:
        parse_destination(place if ":" in place else f"{place}:", kinds)  # raises
    return place


def _rule(fields: object, source: Destination | None, kinds: Mapping[str, str]) -> Rule:
    if not isinstance(fields, dict):
        raise MessageError("bad_document", "rule", f"give an object with {', '.join(_RULE_FIELDS)}")
    rules.check(fields)
    given = {name: value for name, value in fields.items() if value is not None}  # null: not set
    rule = msgspec.structs.replace(msgspec.convert(given, Rule), paused_ms=None)
    plan = {**(fields.get("retry") or {}), "dead_letter": rule.dead_letter}
    sound = check_plan(plan, kinds, source, to_dead_set=True)
    if sound is None or sound == MessagePlan(dead_letter=sound.dead_letter):
        rule = msgspec.structs.replace(rule, retry=None)
    if sound is not None:
        rule = msgspec.structs.replace(rule, dead_letter=sound.dead_letter)
    if rule == Rule():
        raise MessageError("bad_document", "rule", "it sets nothing; leave it out")
    return rule


def _definition(fields: object) -> Definition:
    try:
        if isinstance(fields, dict) and (odd := fields.keys() - {*Definition.__struct_fields__}):
            raise MessageError("unknown_field", str(min(odd, key=str)), "no such field")
        return msgspec.convert(fields, Definition)
    except (msgspec.ValidationError, UnicodeEncodeError) as exc:
        raise MessageError("bad_definition", "definition", str(exc)) from None


def _exported(rule: Rule) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(rule)
    return {name: value for name, value in fields.items() if name not in _NOT_EXPORTED}


def _bare(one: Rule | Definition) -> Any:
    return _exported(one) if isinstance(one, Rule) else one


def _of(where: str, exc: MessageError) -> MessageError:
    return MessageError(exc.code, f"{where}.{exc.field}", exc.detail)

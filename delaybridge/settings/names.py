"""The names of a setting: key path and environment variable; and hints for misspelt ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from delaybridge.errors import nearest, printable
from delaybridge.settings.section import Section

KeyPath = tuple[str, ...]
BROKERS = ("brokers",)
PREFIX = "DELAYBRIDGE_"
NESTED = "__"
_SHOWN_CHARS = 100  # of a name: the longest that is known has 41
_SHORT_NAMES: dict[str, KeyPath] = {"REDIS_URL": ("redis", "url")}


def fields_of(
    model: type[Section], section: KeyPath = ()
) -> Iterator[tuple[KeyPath, type[Section], str]]:
    """Key path, class and attribute of every setting, in the order of the file."""
    for name, field in model.fields.items():
        if field.is_section:
            yield from fields_of(field.type, (name,))
        else:
            yield (*section, field.written), model, name


def dotted(path: KeyPath) -> str:
    """A key path as it is shown: `lease.ttl_ms`; names that are too long are cut."""
    return ".".join(printable(key[:_SHOWN_CHARS]) for key in path)


def value_at(tree: Any, path: KeyPath) -> Any:
    """The value at a path of nested mappings; None if it is not there."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def variable(path: KeyPath) -> str:
    """The environment variable of a key path."""
    short = {meant: name for name, meant in _SHORT_NAMES.items()}
    return PREFIX + (short.get(path) or NESTED.join(path).upper())


def path_of(variable_name: str) -> KeyPath:
    """The key path that an environment variable names."""
    bare = variable_name.removeprefix(PREFIX)
    return _SHORT_NAMES.get(bare) or tuple(bare.lower().split(NESTED))


def near(path: KeyPath, known: list[KeyPath]) -> str:
    """A hint for an unknown key: the same key in another section, or else similar ones."""
    names = {dotted(each): each for each in known if each != BROKERS}
    path = tuple(key[:_SHOWN_CHARS] for key in path)
    if dotted(path) in names:
        return "; write it without quotes"
    sections = nearest(path[0], {each[0] for each in known}, cutoff=0.8) if len(path) == 1 else []
    found = (
        sections
        or [name for name, each in names.items() if each[-1] == path[-1]]
        or [name for name, each in names.items() if "_".join(each) == "_".join(path)]
        or nearest(dotted(path), names, 3)
    )
    if found:
        return f"; did you mean {' or '.join(found)}?"
    level = len(path) - 1
    here = dict.fromkeys(each[level] for each in known if each[:level] == path[:level])
    return f"; known here: {', '.join(here)}" if here else ""


def near_variable(name: str, known: list[KeyPath]) -> str:
    """A hint for an unknown environment variable: those most like it."""
    if name.startswith(PREFIX + "BROKER"):
        return f"; a broker is {PREFIX}BROKERS{NESTED}NAME=URL"
    found = nearest(name, (variable(each) for each in known if each != BROKERS), 2, cutoff=0.7)
    return f"; did you mean {' or '.join(found)}?" if found else ""

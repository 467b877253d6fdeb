"""One line for each refused value: where it was written, the value, and the values allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic_core import ErrorDetails

from delaybridge.errors import printable
from delaybridge.settings import password_file
from delaybridge.settings.names import BROKERS, KeyPath, dotted, near
from delaybridge.settings.sources import SettingsSource
from delaybridge.settings.urls import KINDS, own_kind_of, redact, redact_text

DEFAULT = "default"
_SHOWN_CHARS = 100


def fault(error: ErrorDetails, sources: list[SettingsSource], known: list[KeyPath]) -> str:
    """The line for one error of pydantic's."""
    path, value = tuple(str(part) for part in error["loc"]), error["input"]
    if error["type"] == "value_error" and path == ("redis",):  # from the check of the whole section
        path, value = (*path, password_file.OPTION), value[password_file.OPTION]
    is_name = path[-1] == "[key]"
    path = path[:-1] if is_name else path
    where = f"{source_of(path, sources)}: "
    if error["type"] == "extra_forbidden":
        return f"{where}{dotted(path)}: unknown{near(path, known)}"
    allowed = str(error.get("ctx", {}).get("error", error["msg"]))
    if is_name:
        path, got = path[:1], f"the name {printable(value)[:_SHOWN_CHARS]!r}"
    else:
        got = shown(path, value)
    return f"{where}{dotted(path)}: got {got}; allowed: {allowed}"


def source_of(path: KeyPath, sources: list[SettingsSource]) -> str:
    """The flag, variable or file that gives the value in force: the first one that has it."""
    named = (source.name_of(path) for source in sources if source.value(path) is not None)
    return next(named, DEFAULT)


def misnamed_brokers(sources: list[SettingsSource]) -> Iterator[str]:
    """One line for each broker whose name is a kind that is not its own."""
    for name in {name: None for source in sources for name in source.tree.get("brokers", {})}:
        path = (*BROKERS, name)
        url = next(filter(None, (source.value(path) for source in sources)), "")
        kind = own_kind_of(str(url).partition("://")[0].lower()) or name
        if name in KINDS.values() and kind != name:
            allowed = f"under the name {name} a broker of that kind; choose another name"
            where = f"{source_of(path, sources)}: brokers"
            yield f"{where}: got {shown(path, url)}; allowed: {allowed}"


def shown(path: KeyPath, value: object) -> str:
    """A refused value as it was written; without secrets, bounded."""
    is_url = path == ("redis", "url") or path[:1] == BROKERS
    if isinstance(value, str):
        text = repr(redact(value) if is_url else redact_text(value))
    elif is_url and isinstance(value, Mapping | list):
        text = "a table or a list"
    else:
        text = redact_text(repr(value))
    text = printable(text)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."

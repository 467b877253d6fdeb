"""One line for each refused value: where it was written, the value, and the values allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from delaybridge.errors import printable
from delaybridge.errors import quoted as plainly
from delaybridge.settings.names import BROKERS, KeyPath, dotted, near
from delaybridge.settings.section import WrongValue
from delaybridge.settings.sources import SettingsSource
from delaybridge.settings.urls import KINDS, own_kind_of, redact, redact_text

DEFAULT = "default"
NAME = "[key]"  # at the end of a path: the name is refused, not the value
_SHOWN_CHARS = 100
_READ_CHARS = 2000  # a longer text is not examined, since it is not shown
_SHOWN_ITEMS = 3
_URLS = {("redis", "url"), ("ledger", "url"), ("outbox", "url"), ("http", "proxy")}


def fault(found: WrongValue, sources: list[SettingsSource], known: list[KeyPath]) -> str:
    """The line for one refused value."""
    path, value, allowed = found
    is_name = path[-1] == NAME
    path = path[:-1] if is_name else path
    where = f"{source_of(path, sources)}: "
    if allowed is None:
        return f"{where}{_named(path)}: unknown{near(path, known)}"
    if is_name:
        path, got = path[:1], f"the name {value_text((), value)}"
    else:
        got = value_text(path, value)
    return f"{where}{_named(path)}: got {got}; allowed: {allowed}"


def _named(path: KeyPath) -> str:
    """A key path; a broker may have its URL for its name."""
    return redact_text(dotted(path))


def source_of(path: KeyPath, sources: list[SettingsSource]) -> str:
    """The flag, variable or file that gives the value in force: the first one that has it."""
    named = (source.name_of(path) for source in sources if source.value(path) is not None)
    return next(named, DEFAULT)


def misnamed_brokers(sources: list[SettingsSource]) -> Iterator[str]:
    """One line for each broker whose name is a kind that is not its own."""
    for name in {name: None for source in sources for name in source.tree.get("brokers", {})}:
        path = (*BROKERS, name)
        url = next(filter(None, (source.value(path) for source in sources)), "")
        scheme = url.partition("://")[0].lower() if isinstance(url, str) else ""
        kind = own_kind_of(scheme) or name
        if name in KINDS.values() and kind != name:
            allowed = f"under the name {name} a broker of that kind; choose another name"
            where = f"{source_of(path, sources)}: brokers"
            yield f"{where}: got {value_text(path, url)}; allowed: {allowed}"


def value_text(path: KeyPath, value: object) -> str:
    """A refused value as it was written; without secrets, bounded.

    A text that is too long to be shown is not looked at: its length is told.
    """
    is_url = path in _URLS or path[:1] == BROKERS
    if isinstance(value, Mapping) or (is_url and isinstance(value, list)):
        text = "a table or a list"
    elif isinstance(value, list | tuple):
        more = ", ..." * (len(value) > _SHOWN_ITEMS)
        text = f"[{', '.join(_item(each) for each in value[:_SHOWN_ITEMS])}{more}]"
    else:
        text = _item(value, is_url=is_url)
    text = printable(text)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _item(value: object, *, is_url: bool = False) -> str:
    if not isinstance(value, str):
        return plainly(value)
    if len(value) > _READ_CHARS:
        return f"a text of {len(value):,} characters"
    return repr(redact(value) if is_url or "://" in value else value)

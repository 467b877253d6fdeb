"""Extensions: what installed packages add by entry points. This one's annexes plug in so, too."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from delaybridge.errors import ConfigError

PUBLISHERS = "delaybridge.publishers"  # the scheme of a broker's URL -> a function as `publisher`
DIALECTS = "delaybridge.dialects"  # a value of serve.compat -> a `Dialect`


def is_known(group: str, name: str) -> bool:
    """Whether an installed package adds something of this name."""
    return bool(_found(group, name))


def check_dialect(name: str) -> None:
    """ConfigError if no installed package has the dialect that `serve.compat` names."""
    if not is_known(DIALECTS, name):
        names = sorted(entry_points(group=DIALECTS).names)
        known = ", ".join(names) or "none: delaybridge runs here without being installed"
        raise ConfigError(f"serve.compat: {name!r} is not a dialect; known are {known}")


def load(group: str, name: str) -> Any:
    """What is added under this name, this package's own first; LookupError if nothing is."""
    found = _found(group, name)
    if not found:
        raise LookupError(f"no installed package adds {name!r} to {group}")
    own = (each for each in found if each.value.startswith("delaybridge."))
    return next(own, found[0]).load()


def _found(group: str, name: str) -> list[EntryPoint]:
    return list(entry_points(group=group, name=name))

"""Checks of durability: settings that the Redis servers lack, and their disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from delaybridge.errors import StoreError
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.store.namespace.gate import Shortfall
from delaybridge.store.protocol.verbs import Each, Steps, plain

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_LEAST_FREE = 0.1  # of the disk


def durability(found: Sequence[Shortfall], settings: Settings) -> Iterator[Finding]:
    """Each thing that Redis lacks of the durability in the settings; OK if it lacks nothing."""
    servers: dict[Shortfall, list[str]] = {}
    for each in found:
        servers.setdefault(each._replace(server=""), []).append(each.server)
    for each, named in servers.items():
        code = "durability_at_risk" if each.is_mild else "durability_lacking"
        what = str(each._replace(server=", ".join(named)))
        yield trouble(code, what, remedy=each.remedy, durability=settings.durability)
    if all(each.is_mild for each in found):
        yield ok("durability", settings.durability)


def disk(store: Store, settings: Settings) -> Iterator[Finding]:
    """Whether the disk of a Redis on this host is nearly full; elsewhere it cannot be seen."""
    if not _is_here(settings.redis.url):
        return
    where = store.complete(_folder())
    if where is None:
        yield trouble("store_disk_unseen")
        return
    try:
        total, _, free = shutil.disk_usage(where)
    except OSError:  # its folder is in a container, or not readable
        return
    if free < _LEAST_FREE * total:
        yield trouble("store_disk_full", left=f"{free / total:.0%}", folder=where)


def _folder() -> Steps[str | None]:
    (reply,) = yield Each([plain("CONFIG GET", "dir")])
    return None if isinstance(reply, StoreError) else reply[1].decode(errors="surrogateescape")


def _is_here(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return True
    host = parts.hostname or "localhost"
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

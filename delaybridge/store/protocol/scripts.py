"""The Lua scripts of this version, and words packed as requests of Redis' protocol."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hiredis import pack_command

from delaybridge import late
from delaybridge.errors import StoreError
from delaybridge.store.protocol.keys import SCRIPT_KEYS

_NOW = late.pattern(r"^-- ARGV\[(\d+)\]\s+now\s", re.MULTILINE)


@cache
def scripts() -> dict[str, tuple[str, str]]:
    """Verb -> (source, SHA-1) of every script. StoreError if lua/ is of another version."""
    sources = {
        file.name.removesuffix(".lua"): file.read_text()
        for file in _folder().iterdir()
        if file.name.endswith(".lua")
    }
    if sources.keys() != SCRIPT_KEYS.keys():
        differ = ", ".join(sorted(sources.keys() ^ SCRIPT_KEYS.keys()))
        raise StoreError(
            f"the installed Lua scripts do not fit this version ({differ}): install it again"
        )
    return {
        verb: (source, sha1(source.encode(), usedforsecurity=False).hexdigest())
        for verb, source in sources.items()
    }


@cache
def now_places() -> dict[str, int]:
    """Verb -> the place of `now` among the arguments of its script; those without are not there."""
    found = {verb: _NOW.search(source) for verb, (source, _) in scripts().items()}
    return {verb: int(place[1]) - 1 for verb, place in found.items() if place}


def _folder() -> Traversable:
    """lua/ inside the wheel; in an editable install the folder next to the package."""
    inside = files("delaybridge") / "lua"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "lua"


def load_requests() -> list[bytes]:
    """Requests that load every script."""
    return [packed("SCRIPT", "LOAD", source) for source, _ in scripts().values()]


def packed(*words: Any) -> bytes:
    """Words as one request, in Redis' protocol."""
    return pack_command(words)  # type: ignore[no-any-return]

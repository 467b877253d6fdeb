"""The Lua scripts of this version, and words packed as requests of Redis' protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hiredis import pack_command

from delaybridge.errors import StoreError
from delaybridge.store.protocol.keys import SCRIPT_KEYS

_NOW = re.compile(r"^-- ARGV\[(\d+)\]\s+now\s", re.MULTILINE)


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


def script_call(verb: str, keys: tuple[str, ...], args: Sequence[Any]) -> bytes:
    """A call of a script as one request, in Redis' protocol."""
    head, count = _head(verb, keys)
    return b"*%d\r\n%b%b" % (count + len(args), head, _without_count(args))


# Verb, digest and keys are the same in every call for a bucket: packed once, they cost no more.
@lru_cache(10_000)
def _head(verb: str, keys: tuple[str, ...]) -> tuple[bytes, int]:
    """The beginning of a script call, and its number of words."""
    words = ("EVALSHA", scripts()[verb][1], len(keys), *keys)
    return _without_count(words), len(words)


def _without_count(words: Sequence[Any]) -> bytes:
    """Words packed, without the first line, which says how many they are."""
    request: bytes = pack_command(tuple(words))
    return request[request.index(b"\n") + 1 :]

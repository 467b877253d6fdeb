"""What workers announce of themselves, as far as calls of the engine need it; read leniently.

Other versions announce fewer or more fields, and someone may have written anything by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from delaybridge import late
from delaybridge.errors import StoreError
from delaybridge.store.namespace import rules
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.store.protocol.record import WorkerTroubles

DRAIN, RECONNECT = "drain", "reconnect"  # what workers are asked for, where they are woken
_MOST = 2.0**53
_KEPT_MS = 600_000  # as lua/announce.lua keeps them
_TTL = late.pattern(rb"[0-9a-zA-Z]+ (\d{1,6})\{")
_CHARS = 500


def troubles_of(replies: Sequence[Any], now_ms: int) -> dict[str, WorkerTroubles]:
    """Worker -> why its messages do not go out, of each that lives; see `registry.fleet`."""
    return {name: said_of(of) for name, of, _ in announced(replies, now_ms)}


def obeyed(stored: Mapping[bytes, bytes] | StoreError, living: Iterable[WorkerTroubles]) -> Rules:
    """The rules in the reply to `rules.read`, as workers obey them.

    What cannot be read resumes no destination: a worker that had read it before says it is paused.
    """
    said = {place: Rule(paused=True) for each in living for place in each.paused or ()}
    known = Rules(said)
    return known if isinstance(stored, StoreError) else rules.understood(stored, known)


def announced(replies: Sequence[Any], now_ms: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Name, announcement and expiry of each that has not expired."""
    for name, text, expires_ms in _entries(replies):
        if expires_ms > now_ms:
            yield name, content_of(text), expires_ms


def vanished(replies: Sequence[Any], now_ms: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """The same of each that expired within ten minutes; and when it announced itself last.

    Its expiry is below 0 once another process has seen that it is over (`lua/announce.lua`).
    """
    for name, text, expires_ms in _entries(replies):
        if now_ms - _KEPT_MS <= abs(expires_ms) < _MOST and expires_ms <= now_ms:
            ttl = _TTL.match(text)
            yield name, content_of(text), abs(expires_ms) - int(ttl[1] if ttl else 0)


def _entries(replies: Sequence[Any]) -> Iterator[tuple[str, bytes, int]]:
    info, expiries = replies
    if isinstance(expiries, StoreError):
        return
    known = {} if isinstance(info, StoreError) else info
    for name, expires in zip(expiries[::2], expiries[1::2], strict=True):
        expires_ms = max(-_MOST, min(float(expires), _MOST))
        yield name.decode(errors="backslashreplace"), known.get(name, b""), int(expires_ms)


FOLLOWS = "follows"
"""In an announcement: the process finds messages that went to other buckets, in a resize."""


def content_of(text: bytes | None) -> dict[str, Any]:
    """The JSON of an announcement, which follows the instance and its ttl; {} if unreadable."""
    try:
        found = json.loads(text[text.index(b"{") :]) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def said_of(of: Mapping[str, Any]) -> WorkerTroubles:
    paused = of.get("paused")
    texts = tuple(map(str, paused)) if isinstance(paused, list) else None
    parked, refused = (texts_of(of, field) or {} for field in ("parked", "refused"))
    return WorkerTroubles(texts_of(of, "brokers"), parked, texts, refused)


def texts_of(of: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """An object of texts (or nulls) by name; None if it is anything else."""
    value = of.get(field)
    if not isinstance(value, dict):
        return None
    return {k: v[:_CHARS] if isinstance(v, str) else None for k, v in value.items()}

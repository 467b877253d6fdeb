"""When workers look at recurring definitions: finds the looks that Redis lost or that are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from delaybridge.errors import DelayBridgeError
from delaybridge.recurring import stored
from delaybridge.recurring.stored import DefinitionEntry
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.verbs import Steps, plain

_PAGE = 500
_LATEST_MS = 2 * 86_400_000  # no look is later than this, unless the run planned last is


def mend_looks(namespace: str) -> Steps[list[str]]:
    """Let workers look now at each definition with further runs that none would look at in time.

    Answers with their names. Any number of workers may do so: a look too many makes nothing twice.
    A definition without progress was never looked at; it is not found.
    """
    stored, now_us = yield [
        plain("HGETALL", keys.recurring_state(namespace), parse=replies.read_mapping),
        registry.store_time(keys.recurring_state(namespace)),
    ]
    names, mended, now_ms = sorted(stored), list[str](), now_us // 1000
    for at in range(0, len(names), _PAGE):
        page = names[at : at + _PAGE]
        (found,) = yield [plain("ZMSCORE", keys.recurring_due(namespace), *page)]
        looks = _odd(page, found, now_ms)
        if not looks:
            continue  # definitions are large, and hardly any has to be read
        (raws,) = yield [plain("HMGET", keys.recurring(namespace), *looks)]
        lost = list(_lost(looks, raws, stored, now_ms))
        if lost:
            members = (word for entry in lost for word in (now_ms, entry.key))
            yield [plain("ZADD", keys.recurring_due(namespace), "LT", *members)]
        mended += [entry.name for entry in lost]
    return mended


def _odd(names: Sequence[bytes], looks: Sequence[Any], now_ms: int) -> dict[bytes, Any]:
    """Name -> look, of those that no worker has, or none soon."""
    found = zip(names, looks, strict=True)
    return {name: look for name, look in found if _is_odd(look, now_ms)}


def _is_odd(look: Any, now_ms: int) -> bool:
    return look is None or float(look) > now_ms + _LATEST_MS


def _lost(
    looks: Mapping[bytes, Any], raws: Sequence[Any], rules_kept: Mapping[bytes, bytes], now_ms: int
) -> Iterator[DefinitionEntry]:
    for (name, look), raw in zip(looks.items(), raws, strict=True):
        if raw:
            entry = stored.read_entry(name, raw, rules_kept[name])
            late_ms = max(now_ms, entry.progress.planned_ms)
            if _is_odd(look, late_ms) and _goes_on(entry):
                yield entry


def _goes_on(entry: DefinitionEntry) -> bool:
    """Whether a worker has to look at it."""
    if "was" in entry.fields:
        return True
    if entry.definition is None or entry.definition.paused or not entry.birth:
        return False
    try:
        return next(entry.definition.times(entry.after_ms), None) is not None
    except DelayBridgeError:  # this worker lacks what its times need
        return False

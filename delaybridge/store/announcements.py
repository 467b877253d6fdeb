"""What workers and ingest processes say of themselves, read with indulgence.

Another version, older or newer, may say less or more, and a hand may have written anything: unknown
fields are ignored, and what is missing or makes no sense is None, or `?` for a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import StoreError
from delaybridge.store.troubles import WorkerTroubles

Said = tuple[Mapping[bytes, bytes], Sequence[bytes]]
"""The hash by name, and the zset: a name, when it expires, a name, ..."""
UNKNOWN = "?"
_MOST = 2**53
_CHARS = 500


class WorkerInfo(NamedTuple):
    """One living worker, as it announced itself. damaged: bucket -> what keeps it waiting."""

    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    buckets: int
    expires_ms: int
    said: WorkerTroubles = WorkerTroubles()
    damaged: Mapping[str, Any] = {}


class SourceInfo(NamedTuple):
    """A delay exchange or delay topic as one ingest process sees it.

    state: `reading`, or what is in the way. total: messages taken since the process started;
    quarantined: those of them in the dead set; near_misses: headers that were almost one that is
    understood. lag: messages waiting at the broker, None if unknown. rate: messages a second.
    refused: cancels and reschedules of messages that are bound for elsewhere. without_id: messages
    that come twice if RabbitMQ delivers them again.
    """

    source: str
    target: str
    state: str
    total: int | None
    quarantined: int | None
    near_misses: int | None
    lag: int | None
    rate: float | None
    refused: int | None = 0
    without_id: int | None = 0


class IngestInfo(NamedTuple):
    """One living ingest process, as it announced itself."""

    name: str
    host: str
    pid: int | None
    version: str
    started_ms: int | None
    sources: list[SourceInfo]
    expires_ms: int


def workers(said: Said, owners: Sequence[str | None], now_ms: int) -> list[WorkerInfo]:
    """Those whose announcement has not expired. owners: of each bucket."""
    return [
        WorkerInfo(
            *(name, _text(of, "host"), _whole(of, "pid"), _text(of, "version")),
            *(_whole(of, "started_ms"), owners.count(name), expires_ms),
            WorkerTroubles(_texts(of, "brokers"), _texts(of, "parked") or {}),
            _texts(of, "damaged") or {},
        )
        for name, of, expires_ms in _living(said, now_ms)
    ]


def ingests(said: Said, now_ms: int) -> list[IngestInfo]:
    """Those whose announcement has not expired."""
    return [
        IngestInfo(
            *(name, _text(of, "host"), _whole(of, "pid"), _text(of, "version")),
            *(_whole(of, "started_ms"), list(_sources(of)), expires_ms),
        )
        for name, of, expires_ms in _living(said, now_ms)
    ]


def intact(replies: list[Any]) -> Said:
    """The announcements and when they expire; unreadable ones are left out."""
    info, expiries = replies
    known = {} if isinstance(info, StoreError) else info
    return known, [] if isinstance(expiries, StoreError) else expiries


def _sources(of: Mapping[str, Any]) -> Iterator[SourceInfo]:
    listed = of.get("sources")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            yield SourceInfo(
                *(_text(each, "source"), _text(each, "target"), _text(each, "state")),
                *(_whole(each, "total"), _whole(each, "quarantined")),
                *(_whole(each, "near_misses"), _whole(each, "lag")),
                _number(each, "rate"),
                *(_whole(each, "refused"), _whole(each, "without_id")),
            )


def _living(said: Said, now_ms: int) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Name, what it says of itself, and until when."""
    info, expiries = said
    for name, expires in zip(expiries[::2], expiries[1::2], strict=True):
        expires_ms = min(float(expires), float(_MOST))
        if expires_ms > now_ms:
            of = _read(info.get(name, b""))
            yield name.decode(errors="backslashreplace"), of, int(expires_ms)


def _read(text: bytes) -> dict[str, Any]:
    """The JSON behind the instance's hexadecimal digits."""
    try:
        found = json.loads(text[text.index(b"{") :])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(of: Mapping[str, Any], field: str) -> str:
    value = of.get(field)
    return value[:_CHARS] if isinstance(value, str) else UNKNOWN


def _texts(of: Mapping[str, Any], field: str) -> dict[str, Any] | None:
    """Texts (or nulls) by name."""
    value = of.get(field)
    if not isinstance(value, dict):
        return None
    return {k: v[:_CHARS] if isinstance(v, str) else None for k, v in value.items()}


def _whole(of: Mapping[str, Any], field: str) -> int | None:
    value = of.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _MOST:
        return None
    return value


def _number(of: Mapping[str, Any], field: str) -> float | None:
    value = of.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MOST:
        return None
    return float(value)

"""The audit: who did what over HTTP that cannot be undone, as a stream of bounded length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delaybridge.store import keys
from delaybridge.store.command import RedisCommand, plain

KEPT = 10_000  # records, approximately


def write(namespace: str, record: Mapping[str, str]) -> RedisCommand[str]:
    """Add a record; its id, which begins with the time in ms on Redis' clock."""
    words = [word for pair in record.items() for word in pair]
    return plain("XADD", keys.audit(namespace), "MAXLEN", "~", KEPT, "*", *words, parse=_text)


def read(namespace: str, before: str, most: int) -> RedisCommand[list[tuple[str, dict[str, str]]]]:
    """The latest records and their ids, the latest first. before: an id; empty: from the end."""
    last = f"({before}" if before else "+"
    return plain("XREVRANGE", keys.audit(namespace), last, "-", "COUNT", most, parse=_read)


def _read(reply: Any) -> list[tuple[str, dict[str, str]]]:
    return [
        (_text(id), dict(zip(map(_text, words[::2]), map(_text, words[1::2]), strict=True)))
        for id, words in reply
    ]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")

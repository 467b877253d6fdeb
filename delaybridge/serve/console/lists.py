"""Lists of messages: the links between their pages, and what a row shows beside the message."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from delaybridge.serve.api.messages.shapes import StoredMessage
from delaybridge.serve.console.rendering import link, segment
from delaybridge.times import at_ms, delay_ms

SIZES = (25, 50, 100, 500)
_OWN_ID = re.compile(r"[0-9a-v]{26}")
_RELATIVE = re.compile(r"[+-]?(?:PT?)?[0-9][^:-]*")
_BACK_CHARS = 2000  # of a URL: the cursors of the pages before
_PREVIEW_CHARS = 160


class Pager(NamedTuple):
    """Links: to the page after this one, to the one before; None if there is none."""

    following: str | None
    before: str | None


class MessageLine(NamedTuple):
    """A row. path: of the message's page. asked_ms: the delay that was asked for, if the id tells
    when it was drawn. headers: a preview."""

    item: StoredMessage
    path: str
    asked_ms: int | None
    headers: str


def pager(
    path: str, filters: Mapping[str, object], cursor: str | None, back: str, following: str | None
) -> Pager:
    """The links of one page. back: the cursors of the pages before this one, but the first."""
    past = [each for each in back.split(".") if each]
    onward = before = None
    if following is not None:
        kept = deque([*past, cursor] if cursor else past)
        chars = sum(len(each) + 1 for each in kept)
        while chars > _BACK_CHARS + 1:
            chars -= len(kept.popleft()) + 1
        onward = link(path, **filters, cursor=following, back=".".join(kept))
    if cursor is not None:
        last = past[-1] if past else None
        before = link(path, **filters, cursor=last, back=".".join(past[:-1]))
    return Pager(onward, before)


def lines(items: Iterable[StoredMessage]) -> list[MessageLine]:
    """The rows of a page."""
    return [MessageLine(item, message_path(item), asked_ms(item), _preview(item)) for item in items]


def message_path(item: StoredMessage) -> str:
    """The path of a message's page. With its key, which tells two of the same id apart."""
    return link(f"/messages/{segment(item.id)}", key=item.key)


def asked_ms(item: StoredMessage) -> int | None:
    """From when its id was drawn to the due time that was asked for."""
    if (made_ms := drawn_ms(item.id)) is None:
        return None
    due_ms = item.due_ms if item.first_due_ms is None else item.first_due_ms
    return due_ms - made_ms if due_ms >= made_ms else None


def drawn_ms(id: str) -> int | None:
    """When delaybridge drew this id; None if the caller gave it."""
    if not _OWN_ID.fullmatch(id):
        return None
    number = int(id, 32)
    return number >> 80 if number >> 76 & 15 == 7 else None


def point_ms(text: str, now_ms: int, field: str) -> int:
    """A time as people type it: RFC 3339, `now`, or from now on `10m`, `-1h`. MessageError."""
    if text == "now":
        return now_ms
    if not _RELATIVE.fullmatch(text):
        return at_ms(text, field=field)
    away_ms = delay_ms(text.lstrip("+-"), field=field)
    return now_ms - away_ms if text.startswith("-") else now_ms + away_ms


def _preview(item: StoredMessage) -> str:
    return ", ".join(f"{name}={value}" for name, value in item.headers[:8])[:_PREVIEW_CHARS]

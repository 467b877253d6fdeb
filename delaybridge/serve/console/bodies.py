"""Bodies for people to read: text, JSON, msgpack or hex. Whatever they are, nothing is executed."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from delaybridge.serve.api.messages.shapes import StoredMessage
from delaybridge.serve.http.json_text import check_depth
from delaybridge.serve.http.problems import Problem

MOST_BYTES = 64 * 1024
_CHANGED = re.compile(r"[\r\x00-\x08\x0b\x0c\x0e-\x1f]")
FORMS = ("json", "text", "msgpack", "hex")
_ROW = 16
_CHARS, _SMALL = 80, 1024  # of a body in a list: characters; bytes, if it is to be decoded


class BodyView(NamedTuple):
    """A body as it is shown. form: one of FORMS. is_cut: only the first MOST_BYTES are."""

    form: str
    text: str
    is_cut: bool


def body_of(item: StoredMessage) -> bytes | None:
    """The bytes of a message that was read with its body."""
    if item.body_base64 is not UNSET:
        return b64decode(item.body_base64)
    return item.body.encode() if isinstance(item.body, str) else None


def digest(body: bytes) -> str:
    """What identifies the content without showing it."""
    return hashlib.sha256(body).hexdigest()


def viewed(body: bytes, form: str = "") -> BodyView:
    """A body in a form; without one, or if it does not have that form, in the one that fits."""
    part, is_cut = body[:MOST_BYTES], len(body) > MOST_BYTES
    found = None
    if not is_cut and form in ("", "json"):
        found = _json(body, is_sure=form == "json")
    if found is not None:
        return BodyView("json", found, is_cut)
    text = _text(part, is_cut=is_cut)
    if not is_cut and (form == "msgpack" or (form == "" and text is None)):
        found = _msgpack(body, is_sure=form == "msgpack")
    if found is not None:
        return BodyView("msgpack", found, is_cut)
    if form == "text":
        return BodyView("text", part.decode(errors="replace"), is_cut)
    if form == "hex" or text is None:
        return BodyView("hex", _hex(part), is_cut)
    return BodyView("text", text, is_cut)


def beginning(body: bytes | None) -> str:
    """What a body begins with, on one line: text, msgpack as JSON, or its first bytes in hex."""
    body = body or b""
    part = body[: 4 * _CHARS]
    is_cut = len(part) < len(body)
    if (text := _text(part, is_cut=is_cut)) is None:
        found = _msgpack(body, is_sure=False) if len(body) <= _SMALL else None
        is_cut = found is None and len(body) > _ROW
        text = f"hex {part[:_ROW].hex(' ')}" if found is None else f"msgpack {found}"
    line = " ".join(text.split())
    return f"{line[:_CHARS]}…" if is_cut or len(line) > _CHARS else line


def _json(body: bytes, *, is_sure: bool) -> str | None:
    """Indented, with its numbers and keys as they are. Not sure: a bare word or number is text."""
    if not is_sure and body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        check_depth(body)  # indentation grows with the depth
        return msgspec.json.format(body, indent=2).decode()
    except (Problem, ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _msgpack(body: bytes, *, is_sure: bool) -> str | None:
    """As indented JSON. Not sure: only a map or a list is taken for one, since any byte could be
    a number."""
    try:
        value = msgspec.msgpack.decode(body)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if not (is_sure or isinstance(value, dict | list)):
        return None
    try:
        encoded = msgspec.json.encode(value, enc_hook=str)
        check_depth(encoded)
        return msgspec.json.format(encoded, indent=2).decode()
    except (Problem, TypeError, ValueError, RecursionError):  # no JSON says this
        return None


def _text(part: bytes, *, is_cut: bool) -> str | None:
    """The bytes as text; None if they are not text. The last character may be cut in two."""
    for end in range(4 if is_cut else 1):
        try:
            text = part[: len(part) - end].decode()
        except UnicodeDecodeError:
            continue
        begun = text[:4096]
        if begun.isprintable():
            return text
        strange = sum(not (each.isprintable() or each in "\t\r\n") for each in begun)
        return text if strange * 20 <= len(begun) else None
    return None


def _hex(part: bytes) -> str:
    rows = []
    for at in range(0, len(part), _ROW):
        row = part[at : at + _ROW]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * _ROW}} {shown}")
    return "\n".join(rows)


def is_kept_by_fields(text: str) -> bool:
    """Whether a browser's text field returns a text unchanged: it normalizes line ends and changes
    control characters. (It also drops a first newline; pages write one more.)"""
    return _CHANGED.search(text) is None

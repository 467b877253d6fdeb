"""Reads what a client sent: the path's parameters, the query, a JSON body. Strict, and bounded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from delaybridge.web.problems import Problem, undecodable

T = TypeVar("T")
_DEPTH = 32
# A string ends with its quote or with the text: from no quote in it is the rest read again. Nothing
# is given back (`*+`): to be able to do so would take 60 times the memory of the text.
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_LOOSE = re.compile(rb"\s:")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BOM = b"\xef\xbb\xbf"
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def body_of(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The whole body; Problem 413 as soon as it is too large, 400 if the client left."""
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Problem(400, "incomplete_body", "the connection ended within the body")
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not event.get("more_body"):
            return part if len(parts) == 1 else b"".join(parts)


def decoded(raw: bytes, wanted: type[T]) -> T:
    """The JSON value as this type; Problem 400 if it is not JSON, 422 if its values are wrong."""
    raw = raw.removeprefix(_BOM)
    if not raw.strip():
        raise Problem(400, "bad_json", "the body is empty; send a JSON object")
    check_depth(raw)
    try:
        _check_once(raw)
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.MsgspecError as exc:
        raise undecodable(exc, wanted) from None
    except (ValueError, RecursionError) as exc:  # json names the place, msgspec not
        text = f"{str(exc)[:200]}; send one JSON value in UTF-8"
        raise Problem(400, "bad_json", text) from None


def refuse_repeated(names: Iterable[bytes]) -> None:
    """Problem 400 if a header that we read is there twice: which one was meant?"""
    for name, count in Counter(names).items():
        if count > 1 and (name in _READ or name.startswith(_READ_PREFIXES)):
            text = name.decode("latin-1")
            raise Problem(
                400, "duplicate_header", f"{text[:80]!r} is given twice", f"$.{text[:80]}"
            )


_READ = (b"authorization", b"content-type", b"idempotency-key")
_READ_PREFIXES = (b"delaybridge-", b"ce-")


def segment(text: str, at: str) -> str:
    """A parameter of the path, decoded once; Problem 400 if it cannot be."""
    raw = text.encode("ascii", "replace")
    if b"%" not in raw:
        return text
    try:
        if _BAD_ESCAPE.search(raw):
            raise ValueError("a per cent sign without two hexadecimal digits")
        found = unquote_to_bytes(raw).decode()
        if "\0" in found:
            raise ValueError("it contains NUL")
    except ValueError as exc:
        raise Problem(400, "bad_path", f"{exc}; write UTF-8, percent-encoded", at) from None
    return found


def query_of(text: bytes, wanted: type[T]) -> T:
    """The query as this struct, whose fields are text, numbers or booleans; Problem 422.

    `sort-TABLE` is skipped: how the browser shows a table of the console.
    """
    try:
        if _BAD_ESCAPE.search(text):
            raise ValueError("a per cent sign without two hexadecimal digits")
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64
        )
    except ValueError as exc:
        raise Problem(400, "bad_query", f"{exc}; write name=value, percent-encoded") from None
    pairs = [pair for pair in pairs if not pair[0].startswith("sort-")]
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Problem(422, "bad_query", "a parameter is given twice")
    try:
        made = msgspec.convert(found, wanted, strict=False)
    except msgspec.ValidationError as exc:
        raise undecodable(exc, wanted) from None
    for field in msgspec.structs.fields(wanted):  # type: ignore[arg-type]
        name = field.encode_name
        if name in found and getattr(made, field.name) is None:  # msgspec reads `null`
            what = f"got {found[name]!r}; leave it out instead"
            raise Problem(422, "bad_value", what, f"$.{name}")
    return made


def _too_large(limit: int) -> Problem:
    return Problem(413, "body_too_large", f"the request may have {limit:,} bytes at most")


def check_depth(raw: bytes) -> None:
    """Problem 400 if JSON is nested more deeply than any message needs."""
    if raw.count(b"[") + raw.count(b"{") <= _DEPTH:
        return
    depth = 0
    for found in _BRACKETS.finditer(raw):
        bracket = found.group()
        depth += (bracket in b"[{") - (bracket in b"]}")
        if depth > _DEPTH:
            raise Problem(400, "bad_json", f"more than {_DEPTH} levels deep")


def _check_once(raw: bytes) -> None:
    """ValueError if a key is given twice in one object: msgspec would keep the last."""
    try:
        # Of keys as they are mostly written, `"key":`, this one look tells.
        if not _LOOSE.search(raw) and raw.count(b'":') == len(_NAMES.decode(raw)):
            return
    except msgspec.MsgspecError:
        pass  # it is no object
    _ONCE.decode(raw.decode())


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice[:80]!r} is given twice in one object")


# As floats: int() refuses more than 4300 digits.
_ONCE = json.JSONDecoder(object_pairs_hook=_check_keys, parse_int=float)
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])

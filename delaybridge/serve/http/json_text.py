"""JSON that a client sent, read strictly: every object has each key once, and nothing is deep.

Whatever it is, no step of the reading takes long: of a large text the loop has a turn after each
piece.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, islice, repeat
from typing import Any, NoReturn, TypeVar

import msgspec

from delaybridge.serve.http.problems import Problem, undecodable

T = TypeVar("T")
PIECE = 64 * 1024  # bytes between two turns of the loop
_OBJECTS = 10_000  # looked at between two turns
_DEPTH = 32
DENSE = 320 * 1024  # bytes of a text beside long strings: each costs more than one in a string
_SHORT = 512  # bytes of a text that is looked at as a whole
_LONG = 64  # a string with more characters
_SPACES = b" \t\n\r"
_BOM = b"\xef\xbb\xbf"
# Brackets and strings; of a string that is cut what is there.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_REST = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+(")?', re.DOTALL)  # of a string
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_SPACE = r"[ \t\r\n]*+"
_COMMA = re.compile(f"{_SPACE},{_SPACE}")
_END = re.compile(_SPACE.join(("", r"\]", r"\}", "")))
_WORD = 10  # the longest that can be cut, `-Infinity`, and one more
_OVERHEAD = 1024  # what an element costs beside its length, as bytes


async def decoded(raw: bytes, wanted: type[T], dense: int = DENSE) -> T:
    """The JSON value as this type; Problem 400 if it is not JSON, 422 if its values are wrong.

    dense: the most bytes beside long strings; Problem 413 if there are more.
    """
    raw = raw.removeprefix(_BOM)
    if not raw.strip():
        raise Problem(400, "bad_json", "the body is empty; send a JSON object")
    try:
        if len(raw) <= PIECE:
            if not _are_texts(raw):
                check_depth(raw)
                if len(raw) <= _SHORT or not _is_plain(raw):
                    _ONCE.decode(raw.decode())
            return as_type(raw, wanted)
        for _ in _pieces(raw.decode("latin-1"), dense=dense):
            await asyncio.sleep(0)
        for _ in _keys(raw):
            await asyncio.sleep(0)
        return as_type(raw, wanted)
    except (ValueError, RecursionError) as exc:  # json names the place, msgspec not
        raise _bad(exc) from None


def as_type(raw: bytes, wanted: type[T]) -> T:
    """The value of JSON that was checked before, as this type. Problem."""
    try:
        if len(raw) <= PIECE:
            return msgspec.json.decode(raw, type=wanted)
        with _uncollected():
            return msgspec.json.decode(raw, type=wanted)
    except msgspec.MsgspecError as exc:
        raise undecodable(exc, wanted, raw) from None


def as_types(raws: Sequence[bytes], wanted: type[T]) -> list[T] | None:
    """The values of JSON texts that were checked before; None if one has another type."""
    try:
        return msgspec.json.decode(b"[%b]" % b",".join(raws), type=list[wanted])  # type: ignore[valid-type]
    except (ValueError, RecursionError):
        return None


def strings(raw: bytes) -> int:
    """How many strings there are in valid JSON, keys among them."""
    if b"\\" in raw:  # an escaped one is no end, and may itself escape a quote
        raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    return raw.count(b'"') // 2


def are_plain(raws: Sequence[bytes]) -> bool:
    """Whether one look tells that all are objects, not large nor deep, with each key once.

    If `as_types` reads them, too, each is one value: there they are elements of a list, here lines,
    between which there is no comma.
    """
    lines = b"\n".join(raws)
    is_deep = lines.count(b"[") + lines.count(b"{") > len(raws) + _DEPTH - 2
    return not is_deep and max(map(len, raws), default=0) <= PIECE and _is_plain(lines)


async def elements(raw: bytes, name: str, most: int, dense: int = DENSE) -> AsyncIterator[bytes]:
    """The elements of the list in `{name: [...]}`, each checked as `decoded` checks a whole text.

    Problem 400, 413 or 422: it is not JSON; an element is longer than `most`, or has more than
    `dense` bytes beside long strings; it has another form.
    """
    try:
        text = raw.removeprefix(_BOM).decode()
        begin = ("", r"\{", f'"{name}"', ":", r"\[", "")
        head = re.compile(_SPACE.join(begin)).match(text)
        if head is None:
            raise Problem(422, "bad_value", f'a body of this size has the form {{"{name}": [...]}}')
        end = at = head.end()
        number = since_turn = 0
        while number or _END.fullmatch(text, at) is None:
            end, element = await _element(text, at, most, dense, f"$.{name}[{number}]")
            since_turn += end - at + _OVERHEAD
            if since_turn >= PIECE:
                await asyncio.sleep(0)
                since_turn = 0
            yield element
            if (comma := _COMMA.match(text, end)) is None:
                break
            at, number = comma.end(), number + 1
        if _END.fullmatch(text, end) is None:
            raise ValueError(f"Expecting ',' or ']' (char {end})")
    except (ValueError, RecursionError) as exc:
        raise _bad(exc) from None


async def _element(text: str, at: int, most: int, dense: int, place: str) -> tuple[int, bytes]:
    """Where the value that begins here ends, and the value, checked.

    It is looked for in a short part of the text, and in a larger one if it is longer. Problem 413:
    it is longer than `most`.
    """
    size = PIECE // 2
    while True:
        part, is_rest = text[at : at + size], at + size >= len(text)
        keys: list[Any] = []
        try:
            with _uncollected():
                _, end = _decoder(keys).raw_decode(part)
        except json.JSONDecodeError as exc:
            is_cut = exc.pos >= len(part) - _WORD or exc.msg.startswith("Unterminated")
            if is_rest or not is_cut:
                raise ValueError(f"{exc.msg} (char {at + exc.pos})") from None
        else:
            if end <= len(part) - _WORD or is_rest:  # a number may go on
                break
        if size > most:
            what = f"it has more than {most:,} bytes; see limits.body_bytes"
            raise Problem(413, "message_too_large", what, place)
        size = max(2 * size, await _extent(text, at, most, dense) + _WORD)
        size = min(size, most + 2 * _WORD)
    _check_each(keys)
    element = part[:end].encode()
    if size == PIECE // 2:
        check_depth(element, within=2)
    return at + end, element


async def _extent(text: str, at: int, most: int, dense: int) -> int:
    """How long the list or object is that begins here, or more than `most`; else 0."""
    if text[at : at + 1] not in ("[", "{"):
        return 0
    end = at
    for end in _pieces(text, at, within=2, dense=dense):
        await asyncio.sleep(0)
        if end - at > most:
            break
    return end - at


def check_depth(raw: bytes, within: int = 0) -> None:
    """Problem 400 if JSON is nested more deeply than any message needs.

    within: how many brackets are around it.
    """
    if within + raw.count(b"[") + raw.count(b"{") > _DEPTH:
        for _ in _pieces(raw.decode("latin-1"), within=within, dense=len(raw)):
            pass


def _pieces(text: str, at: int = 0, within: int = 0, dense: int = DENSE) -> Iterator[int]:
    """Where each piece of the value that begins here ends; Problem 400 or 413."""
    depth, left, is_closed, cut = within, dense, False, 0
    while at < len(text) and not is_closed:
        end = min(at + PIECE, len(text))
        if cut:  # the text is within a string
            rest = _REST.match(text, at, end)
            if rest is None or rest.end() == at:
                return  # a backslash is the last character
            at, cut = rest.end(), rest[1] is None
        else:
            found, depth, end, is_closed = _piece(text, at, end, depth, within)
            left -= end - at - sum(size for size in map(len, found) if size > _LONG)
            if left < 0:
                what = f"more than {dense:,} bytes beside long texts; see limits.body_bytes"
                raise Problem(413, "message_too_large", what)
            cut = _cut(found, text, at, end)
            at = end - max(cut - 1, 0)
        yield at


def _piece(
    text: str, at: int, end: int, depth: int, within: int
) -> tuple[list[str], int, int, bool]:
    """The tokens of a piece, the depth after it, where it ends, at the latest with the value, and
    whether it does so."""
    found = _TOKENS.findall(text, at, end)
    depths = [*accumulate(map(_STEPS.get, found, repeat(0)), initial=depth)]
    if max(depths) > _DEPTH:
        raise Problem(400, "bad_json", f"more than {_DEPTH} levels deep")
    if not found or min(depths[1:]) > within:
        return found, depths[-1], end, False
    last = next(number for number, after in enumerate(depths[1:]) if after <= within)
    *_, token = islice(_TOKENS.finditer(text, at, end), last + 1)
    return found[: last + 1], within, token.end(), True


def _cut(found: list[str], text: str, at: int, end: int) -> int:
    """How long the string is that reaches to the end of the piece, and may go on; else 0."""
    is_cut = bool(found) and found[-1][0] == '"' and text.endswith(found[-1], at, end)
    return len(found[-1]) if is_cut else 0


def _are_texts(raw: bytes) -> bool:
    """Whether it is an object of nothing but strings, with each key once."""
    try:
        return strings(raw) == 2 * len(_TEXTS.decode(raw))
    except (ValueError, RecursionError):
        return False


def _is_plain(lines: bytes) -> bool:
    """Whether one look tells that these are objects without others, with each key once."""
    try:
        lines.decode()
        names = sum(map(len, _NAMES.decode_lines(lines)))
    except (ValueError, RecursionError):
        return False
    return lines.translate(None, _SPACES).count(b'":') == names  # else some are in strings


def _keys(raw: bytes) -> Iterator[None]:
    """ValueError if a key is given twice in one object: msgspec would keep the last."""
    if _is_plain(raw):
        return
    keys: list[Any] = []
    with _uncollected():
        _decoder(keys).decode(raw.decode())
    for first in range(0, len(keys), _OBJECTS):
        _check_each(keys[first : first + _OBJECTS])
        yield
    yield


def _check_each(objects: list[list[tuple[str, Any]]]) -> None:
    if sum(map(len, map(dict, objects))) == sum(map(len, objects)):
        return
    for pairs in objects:
        _check_keys(pairs)


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"{name[:80]!r} is given twice in one object")
        seen.add(name)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


# Of numbers only how long they are: int() refuses more than 4300 digits, and float() is slow.
_reading = partial(json.JSONDecoder, parse_int=len, parse_float=len, parse_constant=_refuse)
_ONCE = _reading(object_pairs_hook=_check_keys)


def _decoder(keys: list[Any]) -> json.JSONDecoder:
    """Puts the pairs of each object into `keys`; a call for each object would take long."""
    return _reading(object_pairs_hook=keys.append)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Until Python 3.11 the collector would run in between, and look at everything many times."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _bad(exc: Exception) -> Problem:
    return Problem(400, "bad_json", f"{str(exc)[:200]}; send one JSON value in UTF-8")


_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS = msgspec.json.Decoder(dict[str, str])

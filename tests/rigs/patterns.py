"""Every regular expression of the package with what it is used for, and texts that are hard for it.

A text is hard where a search begins again and again and reads to the end each time: so texts repeat
what the expression itself is made of.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import delaybridge

_ROOT = Path(delaybridge.__file__).parent
_METHODS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
_MOST_PIECES = 10
_OTHERS = ["a", " ", "\0"]
_OF_CATEGORY = {_constants.CATEGORY_DIGIT: "0", _constants.CATEGORY_SPACE: " "}


class Use(NamedTuple):
    """A call of a method of an expression. place: the file and line."""

    place: str
    pattern: re.Pattern[Any]
    method: str

    def run(self, text: str) -> None:
        """The call with this text."""
        given = text.encode("latin-1") if isinstance(self.pattern.pattern, bytes) else text
        if self.method == "sub":
            self.pattern.sub("" if isinstance(given, str) else b"", given)
        elif self.method == "finditer":
            for _ in self.pattern.finditer(given):
                pass
        else:
            getattr(self.pattern, self.method)(given)


def uses() -> Iterator[Use]:
    """All calls of expressions that have a name in their module, or are a literal in the call."""
    for file in sorted(_ROOT.rglob("*.py")):
        text = file.read_text()
        if "import re\n" not in text:
            continue
        module = ".".join(file.relative_to(_ROOT.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                pattern = _pattern_of(module, node, node.func)
                if pattern is not None:
                    place = f"{file.relative_to(_ROOT)}:{node.lineno}"
                    yield Use(place, pattern, node.func.attr)


def _pattern_of(module: str, call: ast.Call, called: ast.Attribute) -> re.Pattern[Any] | None:
    if called.attr not in _METHODS or not isinstance(called.value, ast.Name):
        return None
    if called.value.id != "re":
        found = getattr(importlib.import_module(module), called.value.id, None)
        return found if isinstance(found, re.Pattern) else None
    pattern = call.args[0]
    if not isinstance(pattern, ast.Constant):
        return None
    flags = 0
    for each in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            flags |= getattr(re, each.attr) if each.value.id == "re" else 0
    return re.compile(pattern.value, flags)


def hard_texts(pattern: re.Pattern[Any]) -> Iterator[tuple[str, Callable[[int], str]]]:
    """Names of texts, and how one of any length is made."""
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    found = dict.fromkeys([*_pieces(_parser.parse(pattern.pattern, flags)), *_OTHERS])
    pieces = [*found][:_MOST_PIECES]
    for one in pieces:
        yield f"{one!r}...", _repeated("", one, "")
    for one, other in permutations(pieces, 2):
        yield f"{one!r}...{other!r}", _repeated("", one, other)
        yield f"{one!r}{other!r}...", _repeated(one, other, "")
        yield f"({one!r}{other!r})...", _repeated("", one + other, "")


def _repeated(before: str, piece: str, after: str) -> Callable[[int], str]:
    return lambda size: before + piece * (size // len(piece)) + after


def _pieces(parsed: Iterable[Any]) -> Iterator[str]:
    """The literals of an expression, and a character or two of each class in it."""
    literal = ""
    for kind, value in parsed:
        if kind is _constants.LITERAL:
            literal += chr(value)
            continue
        if literal:
            yield literal
        literal = ""
        yield from _of_class(kind, value)
    if literal:
        yield literal


def _of_class(kind: Any, value: Any) -> Iterator[str]:
    if kind is _constants.IN:
        for each, at in value:
            if each is _constants.LITERAL:
                yield chr(at)
            elif each is _constants.RANGE:
                yield chr(at[0])
            elif each is _constants.CATEGORY:
                yield _OF_CATEGORY.get(at, "a")
    elif kind is _constants.BRANCH:
        for each in value[1]:
            yield from _pieces(each)
    elif kind in (_constants.ANY, _constants.NOT_LITERAL):
        yield "a"
    elif isinstance(value, _parser.SubPattern):
        yield from _pieces(value)
    elif isinstance(value, tuple):
        yield from _pieces(
            next(each for each in value[::-1] if isinstance(each, _parser.SubPattern))
        )

"""Rendering: templates, how they write numbers and times, languages, styles and scripts.

Everything is escaped. Pages and alerts are written in English; a sentence is looked up in
`zh.json`, and a test says which ones are missing there. Browsers keep a style or a script for as
long as it is the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.errors import printable
from delaybridge.operate.views.described import size_text
from delaybridge.serve.http.endpoint import Reply, Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call
from delaybridge.store.namespace.translatable import Sentence
from delaybridge.times import format_time, roughly

_NAME_CHARS = 44
SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def render(template: str, language: str, data: Mapping[str, Any]) -> str:
    """A template with its data."""
    return _environment(language).get_template(template).render(data)


@cache
def _environment(language: str) -> Environment:
    made = Environment(
        loader=PackageLoader("delaybridge.serve.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = words(language)
    made.globals.update(
        _=partial(said, language), asset=asset, version=__version__, languages=LANGUAGES, link=link
    )
    made.filters.update(
        number=number, rate=rate, duration=roughly, moment=format_time, short=short,
        ago=partial(ago, language), bytes=size, printable=printable, segment=segment,
        decoded=decoded, label=lambda name: _without_middle(decoded(name)),
        cut=cut, named=lambda name: cut(name, decoded(name)),
        has_words=lambda text: text in known,
    )  # fmt: skip
    return made


def number(value: float | None) -> str:
    """`1,234,567`; a dash for what is unknown."""
    return "–" if value is None else f"{value:,.0f}"


def short(at_ms: int) -> str:
    """A time in UTC without its year: `11-23 22:09:00`."""
    return format_time(at_ms)[5:19].replace("T", " ")


def rate(value: float | None) -> str:
    """A number per second: `1,902`, `0.2`."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 9.95 or not value else f"{value:.1f}"


def size(count: int | None) -> str:
    """`213 B`, `1.4 KB`, `2.0 MB`; a dash for what is unknown."""
    return "–" if count is None else size_text(count)


def spark(values: Sequence[float], points: int = 60) -> str:
    """The points of a polyline 120 wide and 20 high, from zero to the highest; the last at its end.

    points: how many fill the width.
    """
    most = max([1, *values])
    step, first = 120 / (points - 1), points - len(values)
    at = ((first + i, 19 - value * 18 / most) for i, value in enumerate(values))
    return " ".join(f"{number * step:.0f},{height:.1f}" for number, height in at)


def ago(language: str, at_ms: int | None, now_ms: int, *, is_next: bool = False) -> Markup:
    """A time that pages keep counting: `in 15m`, with the time itself on hover.

    is_next: it is the next of several. Once it has passed, the page says `now`, not `2s ago`: it
    does not know the one after.
    """
    if at_ms is None:
        return Markup("–")
    wait_ms = at_ms - now_ms
    template = "in {0}" if wait_ms >= 0 else "now" if is_next else "{0} ago"
    at, text = format_time(at_ms), said(language, template).format(roughly(abs(wait_ms)))
    kind = Markup(" data-next") if is_next else ""
    return Markup('<time datetime="{}" title="{}" data-at="{}"{}>{}</time>').format(
        at, at, at_ms, kind, text
    )


def decoded(name: str) -> str:
    """A destination as people call it: `rabbitmq:%E8%AE%A2%E5%8D%95/k` with its characters.

    An encoded slash stays as it is: it would look as if the name ended there.
    """
    found = unquote(name.replace("%2F", "%252F"))
    return printable(name if "\ufffd" in found else found)


def cut(text: str, shown: str = "") -> Markup:
    """A name in a table, a long one without its middle; on hover the whole, as it is written.

    shown: the name as it is shown, if it is not shown as it is written.
    """
    full = printable(text)
    seen = _without_middle(shown or full)
    return Markup('<span title="{}">{}</span>').format(full, seen) if seen != full else escape(full)


def _without_middle(text: str) -> str:
    half = _NAME_CHARS // 2
    return text if len(text) <= _NAME_CHARS else f"{text[:half]}…{text[-half:]}"


def segment(text: str) -> str:
    """A text as one segment of a path."""
    return quote(text, safe="").replace("~", "%7E")


def link(path: str, /, **query: object) -> str:
    """A path with those parameters that are set."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path


LANGUAGES = {"en": "English", "zh": "中文"}
_ACCEPTED = re.compile(r"([a-zA-Z]{2})[a-zA-Z-]*(?:;q=([0-9.]+))?")


def language_of(headers: Mapping[str, str], chosen: str) -> str:
    """`en` or `zh`: as chosen, else as the browser asks."""
    if chosen in LANGUAGES:
        return chosen
    found = _ACCEPTED.findall(headers.get("accept-language", ""))
    asked = sorted(found, key=lambda each: -_weight(each[1]))
    return next((name.lower() for name, _ in asked if name.lower() in LANGUAGES), "en")


@cache
def words(language: str) -> Mapping[str, str]:
    """The sentences of the console in a language, by the English one."""
    if language == "en":
        return {}
    text = (files("delaybridge.serve.console") / f"{language}.json").read_bytes()
    found: dict[str, str] = msgspec.json.decode(text, type=dict[str, str])
    return found


def said(language: str, text: str, /, **values: object) -> str:
    """A sentence in this language, with its values."""
    found = words(language).get(text, text)
    return found.format(**values) if values else found


def in_words(language: str, sentence: Sentence | str) -> str:
    """What was found, in this language if it is a sentence."""
    if isinstance(sentence, Sentence):
        return said(language, sentence.template, **sentence.values)
    return sentence


def _weight(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0


_MEDIA = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
routes = Routes()


@cache
def _contents() -> Mapping[str, bytes]:
    """The files that are served, by their names."""
    every = (files("delaybridge.serve.console") / "static").iterdir()
    return {one.name: one.read_bytes() for one in every if one.name.rpartition(".")[2] in _MEDIA}


@cache
def asset(name: str) -> str:
    """The path of a file below the base; a new version has another one."""
    return f"static/{hashlib.sha256(_contents()[name]).hexdigest()[:12]}/{name}"


@routes("GET /static/{hash}/{name}", "A file of the console", scope=Scope.OPEN)
async def serve_asset(call: Call) -> Reply:
    """A style, a script or a picture of the console."""
    name = call.path["name"]
    content = _contents().get(name)
    if content is None:
        raise Problem(404, "unknown", "there is no such file")
    # A page of another version asks for its own file; this one must not be kept in its place.
    is_own = asset(name) == f"static/{call.path['hash']}/{name}"
    headers = {
        "Content-Type": _MEDIA[name.rpartition(".")[2]],
        "Cache-Control": "public, max-age=31536000, immutable" if is_own else "no-store",
        "Content-Security-Policy": "default-src 'none'",
    }
    return Reply(content, 200, headers)

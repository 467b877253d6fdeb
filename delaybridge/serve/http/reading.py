"""Reads and checks what a client sent: path, query, headers, body. Strict, and bounded.

A page in any browser can send a POST to each server that the browser reaches, also to one on this
host. It cannot do so with the content type of JSON or the header of the console without asking.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import msgspec

from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.problems import Problem, undecodable

T = TypeVar("T")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def body_of(
    receive: Receive, headers: Mapping[str, str], limit: int, remedy: str = ""
) -> bytes:
    """The whole body; Problem 413 as soon as it is too large, 400 if the client left.

    remedy: what to do if it is too large.
    """
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit, remedy)
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Problem(400, "incomplete_body", "the connection ended within the body")
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit, remedy)
        parts.append(part)
        if not event.get("more_body"):
            return part if len(parts) == 1 else b"".join(parts)


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


def _too_large(limit: int, remedy: str) -> Problem:
    return Problem(413, "body_too_large", f"a request has at most {limit:,} bytes; {remedy}")


_JSON = re.compile(r"application/(?:json|[a-z0-9.+-]+\+json)", re.IGNORECASE)
_LINES = re.compile(r"application/(?:x-ndjson|jsonl|octet-stream)\s*(?:;|\Z)", re.IGNORECASE)
_OTHER_CHARSET = re.compile(r";\s*charset\s*=\s*(?!\"?utf-?8\b)", re.IGNORECASE)
_PORT = re.compile(r":[0-9]*$")
_without_port = lru_cache(100)(partial(_PORT.sub, ""))
_ACCEPTED = re.compile(
    r"\*/\*|application/(?:\*|json|x-ndjson|octet-stream|problem\+json|openmetrics-text)|"
    r"text/(?:\*|plain|event-stream)",
    re.IGNORECASE,
)
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check_request(
    method: str, headers: Mapping[str, str], endpoint: Endpoint, hosts: Collection[str]
) -> None:
    """Problem 403, 406, 415 or 421. hosts: the names that this server has; empty: any."""
    if hosts and _without_port(headers.get("host", "")) not in hosts:
        what = "this server has another name; its names are in serve.allowed_hosts"
        raise Problem(421, "wrong_host", what)
    if "origin" in headers and method in _CHANGING and is_of_another_site(headers, "origin"):
        what = "a page of another site may not do that; send the request from a server"
        raise Problem(403, "foreign_origin", what)
    accept = headers.get("accept")
    if accept and endpoint.path.startswith("/v1/") and not _ACCEPTED.search(accept):
        raise Problem(406, "not_acceptable", "the answer is application/json; accept that")
    if endpoint.body is not None and (endpoint.body is not bytes or endpoint.is_streamed):
        _check_content(headers, endpoint)


def is_of_another_site(headers: Mapping[str, str], *names: str) -> bool:
    """Whether one of these headers, `origin` or `referer`, names another host than this one."""
    return any(_host(headers[name]) != headers.get("host") for name in names if name in headers)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:  # brackets that are no IPv6 address
        return None


def _check_content(headers: Mapping[str, str], endpoint: Endpoint) -> None:
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "content_encoding", "send the body as it is, not compressed")
    if endpoint.is_raw and endpoint.is_raw(headers):
        return
    media = headers.get("content-type", "")
    known, best = (_LINES, "x-ndjson") if endpoint.is_streamed else (_JSON, "json")
    if media == "application/json" and not endpoint.is_streamed:  # nearly always
        return
    if not known.match(media):
        what = f"got {media[:80]!r}; send Content-Type: application/{best}"
        raise Problem(415, "content_type", what)
    if _OTHER_CHARSET.search(media):
        raise Problem(415, "content_type", "JSON is UTF-8; leave the charset out")

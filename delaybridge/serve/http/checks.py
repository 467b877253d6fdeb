"""What a request says of itself: its content, what it accepts, its host, where it came from.

A page in somebody's browser can send a POST to any server that the browser reaches, also to one on
this host. It cannot do so with the content type of JSON or a header of ours, without asking first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.problems import Problem

_JSON = re.compile(r"application/(?:json|[a-z0-9.+-]+\+json)", re.IGNORECASE)
_OTHER_CHARSET = re.compile(r";\s*charset\s*=\s*(?!\"?utf-?8\b)", re.IGNORECASE)
_PORT = re.compile(r":[0-9]*$")
_ACCEPTED = re.compile(
    r"\*/\*|application/(?:\*|json|problem\+json|openmetrics-text)|text/(?:\*|plain|event-stream)",
    re.IGNORECASE,
)
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def check_request(
    method: str, headers: Mapping[str, str], endpoint: Endpoint, hosts: Collection[str]
) -> None:
    """Problem 403, 406, 415 or 421. hosts: the names that this server has; empty: any."""
    if hosts and _PORT.sub("", headers.get("host", "")) not in hosts:
        what = "this server has another name; its names are in serve.allowed_hosts"
        raise Problem(421, "wrong_host", what)
    if method in _CHANGING and is_of_another_site(headers, "origin"):
        what = "a page of another site may not do that; send the request from a server"
        raise Problem(403, "foreign_origin", what)
    accept = headers.get("accept")
    if accept and endpoint.path.startswith("/v1/") and not _ACCEPTED.search(accept):
        raise Problem(406, "not_acceptable", "the answer is application/json; accept that")
    if endpoint.body is not None and endpoint.body is not bytes:
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
    if not _JSON.match(media):
        what = f"got {media[:80]!r}; send Content-Type: application/json"
        raise Problem(415, "content_type", what)
    if _OTHER_CHARSET.search(media):
        raise Problem(415, "content_type", "JSON is UTF-8; leave the charset out")

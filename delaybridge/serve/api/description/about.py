"""What the API says of itself: /openapi.json for programs, /docs for people."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from zlib import crc32

import msgspec

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.serve.api.description.openapi import description, with_base
from delaybridge.serve.api.description.page import STYLE, page
from delaybridge.serve.http.endpoint import Endpoint, Reply
from delaybridge.serve.shared.call import Call

_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Cache-Control": "no-cache",
}


def endpoints_about(others: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The endpoints that describe the others. Each description is made once."""
    listed = tuple(others)
    document = cache(lambda: description(listed))

    @cache
    def for_programs() -> bytes:
        return msgspec.json.encode(document())

    @cache
    def for_people() -> bytes:
        return page(document(), listed).encode()

    async def openapi(call: Call) -> Reply:
        """The description of this API in OpenAPI 3.1."""
        content = with_base(for_programs(), call.base)
        return _unless_known(call, content, {"Cache-Control": "no-cache"})

    async def docs(call: Call) -> Reply:
        """This API as a page."""
        headers = {**_SAFE, "Content-Type": "text/html; charset=utf-8"}
        return _unless_known(call, for_people(), headers)

    async def style(call: Call) -> Reply:
        """The style of that page."""
        return Reply(STYLE.encode(), 200, {**_SAFE, "Content-Type": "text/css"})

    return tuple(
        Endpoint(method="GET", path=path, scope=Scope.OPEN, handler=handler, summary=summary)
        for path, handler, summary in (
            ("/openapi.json", openapi, "This API for programs"),
            ("/docs", docs, "This API for people"),
            ("/docs.css", style, "The style of that page"),
        )
    )


def _unless_known(call: Call, content: bytes, headers: dict[str, str]) -> Reply:
    """The content; 304 if the client has the same."""
    tag = f'"{crc32(content):08x}-{__version__}"'
    headers = {"Content-Type": "application/json", **headers, "ETag": tag}
    if tag in call.headers.get("if-none-match", ""):
        return Reply(None, 304, headers)
    return Reply(content, 200, headers)

"""What the API says of itself: /openapi.json for programs, /docs for people."""

from __future__ import annotations

from collections.abc import Iterable

from delaybridge.web.endpoint import Call, Endpoint, Reply, Scope
from delaybridge.web.openapi import description
from delaybridge.web.page import STYLE, page

_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Cache-Control": "no-cache",
}


def endpoints_about(others: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The endpoints that describe the others."""
    listed = tuple(others)

    async def openapi(call: Call) -> Reply:
        """The description of this API in OpenAPI 3.1."""
        return Reply(description(listed, call.site.settings.serve.base_path))

    async def docs(call: Call) -> Reply:
        """This API as a page."""
        text = page(description(listed), listed)
        return Reply(text.encode(), 200, {**_SAFE, "Content-Type": "text/html; charset=utf-8"})

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

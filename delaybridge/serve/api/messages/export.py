"""Everything that matches as one download, however much: CSV, or JSON with a message a line."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.errors import DelayBridgeError, printable
from delaybridge.serve.api.messages.messages import found_page
from delaybridge.serve.api.messages.paging import COLUMNS, PageOfState, csv_lines, download_headers
from delaybridge.serve.api.messages.shapes import MessagePage, StoredMessage
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

_AT_ONCE = 500
_log = logging.getLogger("delaybridge")
_encode = msgspec.json.Encoder().encode
routes = Routes(is_for_tenants=True)


class ExportQuery(PageOfState, kw_only=True):
    """limit: of one look at the store."""

    limit: int = _AT_ONCE


class Export:
    """An ASGI application that sends page after page.

    If a page cannot be read, the connection breaks: the download then fails, instead of looking
    complete.
    """

    def __init__(self, call: Call, first: MessagePage) -> None:
        self._call, self._page, self._sent = call, first, 0

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send all messages, unless the client leaves."""
        with self._call.seat():
            await self._send_all(scope, send)

    async def _send_all(self, scope: Connection, send: Send) -> None:
        is_csv = self._call.query.format == "csv"
        ending: Ending = scope["extensions"]["connection"]["ending"]
        headers = [(k.lower().encode(), v.encode()) for k, v in download_headers(is_csv).items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        before, after = (csv_lines([COLUMNS]), b"") if is_csv else (b"[", b"\n]\n")
        while True:
            text = before + (csv_lines(self._page.items) if is_csv else self._json())
            is_last, before = self._page.next_cursor is None or scope["method"] == "HEAD", b""
            last = {"body": text + after} if is_last else {"body": text, "more_body": True}
            await send({"type": "http.response.body", **last})
            if is_last or ending.has_ended or not await self._next():
                return

    async def _next(self) -> bool:
        """Read the next page; False if the download breaks off here."""
        if self._call.site.is_draining or not await self._call.is_known():
            return False
        try:
            self._page = await _page(self._call, self._page.next_cursor)
        except (DelayBridgeError, Problem) as exc:
            _log.warning("a download of messages breaks off: %s", printable(str(exc)))
            return False
        return True

    def _json(self) -> bytes:
        found = b"".join(
            (b",\n" if self._sent + n else b"\n") + _encode(one)
            for n, one in enumerate(self._page.items)
        )
        self._sent += len(self._page.items)
        return found


@routes(
    "GET /v1/messages:export", "Download all messages that match", query=ExportQuery,
    answer=Sequence[StoredMessage],
)  # fmt: skip
async def export(call: Call) -> Export:
    """All messages that match, in the order of the list, without their bodies.

    Each part of the list is as of the moment when it was read. If something fails on the way, the
    connection is closed before the last chunk, and the JSON has no end.
    """
    return Export(call, await _page(call, call.query.cursor))


async def _page(call: Call, cursor: str | None) -> MessagePage:
    """The page at a cursor; Problem if some messages are on a server that is silent."""
    query = msgspec.structs.replace(call.query, cursor=cursor)
    page = await found_page(call, query, query.state)
    if page.unseen:
        what = f"the server of buckets {page.unseen} does not answer; try again when it does"
        raise Problem(503, "store_unavailable", what)
    return page

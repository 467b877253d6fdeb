"""Everything that matches as one download, however much: CSV, or JSON with a message a line."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence

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


class Download:
    """An ASGI application that sends texts as they are made, unless the client leaves.

    If one cannot be made, the connection breaks: the download then fails, instead of looking
    complete.
    """

    def __init__(
        self, call: Call, headers: Mapping[str, str], first: bytes, others: AsyncIterator[bytes]
    ) -> None:
        self._call, self._first, self._others = call, first, others
        self._headers = [(k.lower().encode(), v.encode()) for k, v in headers.items()]

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send all of them; of a HEAD the first."""
        ending: Ending = scope["extensions"]["connection"]["ending"]
        start = {"type": "http.response.start", "status": 200, "headers": self._headers}
        part = {"type": "http.response.body"}
        text: bytes | None = self._first
        with self._call.seat():
            await send(start)
            while text is not None:
                await send({**part, "body": text, "more_body": True})
                try:
                    text = None if scope["method"] == "HEAD" else await anext(self._others, None)
                except (DelayBridgeError, Problem) as exc:
                    _log.warning("a download of messages breaks off: %s", printable(str(exc)))
                    return
                is_left = ending.has_ended or self._call.site.is_draining
                if text is not None and (is_left or not await self._call.is_known()):
                    return
            await send({**part, "body": b""})


@routes(
    "GET /v1/messages:export", "Download all messages that match", query=ExportQuery,
    answer=Sequence[StoredMessage],
)  # fmt: skip
async def export(call: Call) -> Download:
    """All messages that match, in the order of the list, without their bodies.

    Each part of the list is as of the moment when it was read. If something fails on the way, the
    connection is closed before the last chunk, and the JSON has no end.
    """
    texts = _texts(call)
    return Download(call, download_headers(call.query.format == "csv"), await anext(texts), texts)


async def _texts(call: Call) -> AsyncIterator[bytes]:
    is_csv, cursor, sent = call.query.format == "csv", call.query.cursor, 0
    before, after = (csv_lines([COLUMNS]), b"") if is_csv else (b"[", b"\n]\n")
    while before or cursor is not None:
        page = await _page(call, cursor)
        json = ((b",\n" if sent + n else b"\n") + _encode(one) for n, one in enumerate(page.items))
        text = before + (csv_lines(page.items) if is_csv else b"".join(json))
        before, cursor, sent = b"", page.next_cursor, sent + len(page.items)
        yield text if cursor else text + after


async def _page(call: Call, cursor: str | None) -> MessagePage:
    """The page at a cursor; Problem if some messages are on a server that is silent."""
    query = msgspec.structs.replace(call.query, cursor=cursor)
    page = await found_page(call, query, query.state)
    if page.unseen:
        what = f"the server of buckets {page.unseen} does not answer; try again when it does"
        raise Problem(503, "store_unavailable", what)
    return page

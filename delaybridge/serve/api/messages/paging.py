"""Pages of messages: which ones, the cursor of the next page, and their rows as CSV."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable
from typing import Literal
from zlib import crc32

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import State
from delaybridge.operate.views.listing import Cursor
from delaybridge.serve.api.messages.shapes import MessagePage, StoredMessage
from delaybridge.serve.http.endpoint import Reply
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.times import at_ms

_MOST = 500  # messages of a page


class Filters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What messages of a list or a bulk verb have in common."""

    destination: str | None = None
    id_prefix: str = ""
    header: str | None = None
    attempts: int = 0
    reason: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None


class PageQuery(Filters, kw_only=True):
    """Which messages. destination: also an exchange or a broker. header: `name=value`, or `name`.

    attempts: at least this many failed. reason: the first word of why it is dead, or of its last
    error. due_from, due_to: RFC 3339, or with `_ms` in epoch ms; both included.
    """

    due_from: str | None = None
    due_to: str | None = None
    limit: int = 100
    format: Literal["json", "csv"] = "json"
    cursor: str | None = None

    def span_ms(self) -> tuple[int | None, int | None]:
        """The first and the last due time. MessageError."""
        low = self.due_from_ms if self.due_from is None else at_ms(self.due_from, field="due_from")
        high = self.due_to_ms if self.due_to is None else at_ms(self.due_to, field="due_to")
        return low, high

    def conditions(self) -> Conditions:
        """What must be true of each message. MessageError."""
        return Conditions(
            place=self.destination or None, id_prefix=self.id_prefix, header=self.header or None,
            attempts=self.attempts, reason=self.reason or None,
        )  # fmt: skip

    def most(self) -> int:
        """The most messages of a page. MessageError."""
        if not 1 <= self.limit <= _MOST:
            raise MessageError("bad_limit", "limit", f"give 1 to {_MOST}")
        return self.limit

    def after(self, state: State) -> Cursor | None:
        """What the cursor says. MessageError."""
        if self.cursor is None:
            return None
        try:
            data = base64.urlsafe_b64decode(self.cursor.encode("ascii"))
            score, id, digest = msgspec.msgpack.decode(data, type=tuple[float, str, int])
        except (ValueError, msgspec.MsgspecError):
            raise MessageError("bad_cursor", "cursor", "pass on next_cursor as it was") from None
        if digest != self._digest(state):
            raise MessageError("bad_cursor", "cursor", "it belongs to a list with other filters")
        return score, id

    def following(self, cursor: Cursor | None, state: State) -> str | None:
        """The text of the next page's cursor."""
        if cursor is None:
            return None
        data = msgspec.msgpack.encode((*cursor, self._digest(state)))
        return base64.urlsafe_b64encode(data).decode()

    def _digest(self, state: State) -> int:
        """A checksum of all filters: a cursor belongs to a list with the same ones."""
        asked = (self.destination, self.id_prefix, self.header, self.attempts, self.reason)
        return crc32(msgspec.msgpack.encode((state, *asked, *self.span_ms())))


class PageOfState(PageQuery, kw_only=True):
    """The same, in one state."""

    state: State = State.DELAYED


COLUMNS = ("id", "destination", "state", "due", "attempts", "bytes", "headers", "why")
# A spreadsheet would run what begins so; also the wide forms, where one types Japanese or Chinese.
_FORMULAS = tuple("=+-@\t\r\n＝＋－＠")


def csv_reply(page: MessagePage) -> Reply:
    """The messages, one a row. why: the reason why it is dead or parked, or the last error.

    What rows cannot say is in headers: `Next-Cursor`, and `Unseen-Buckets` if some are missing.
    """
    headers = download_headers(is_csv=True)
    if page.next_cursor is not None:
        headers["Next-Cursor"] = page.next_cursor
    if page.unseen:
        headers["Unseen-Buckets"] = ", ".join(map(str, page.unseen))
    return Reply(csv_lines([COLUMNS, *page.items]), 200, headers)


def download_headers(is_csv: bool) -> dict[str, str]:
    """What makes browsers keep an answer as a file."""
    media, name = ("text/csv; charset=utf-8", "csv") if is_csv else ("application/json", "json")
    disposition = f'attachment; filename="messages.{name}"'
    return {
        "Content-Type": media,
        "Content-Disposition": disposition,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }


def csv_lines(rows: Iterable[StoredMessage | tuple[str, ...]]) -> bytes:
    """Rows of CSV: of messages, and tuples as they are.

    Each cell is quoted: where a semicolon separates, one must not begin a cell of its own.
    """
    text = io.StringIO()
    lines = csv.writer(text, quoting=csv.QUOTE_ALL)
    lines.writerows(
        [_cell(value) for value in (row if isinstance(row, tuple) else _row(row))] for row in rows
    )
    return text.getvalue().encode("utf-8", "backslashreplace")


def _row(one: StoredMessage) -> tuple[object, ...]:
    headers = "; ".join(f"{name}={value}" for name, value in one.headers)
    why = one.reason or one.last_error
    return (
        one.id, one.destination, one.state, one.due, one.attempts, one.body_bytes, headers, why,
    )  # fmt: skip


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULAS) else text

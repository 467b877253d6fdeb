"""Pages of messages as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from delaybridge.serve.api.messages.shapes import MessagePage, StoredMessage
from delaybridge.serve.http.endpoint import Reply

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

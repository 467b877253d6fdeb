"""Pages of messages as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io

from delaybridge.web.endpoint import Reply
from delaybridge.web.shapes import MessagePage, StoredMessage

_COLUMNS = ("id", "destination", "state", "due", "attempts", "bytes", "headers", "why")
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run what begins so


def csv_reply(page: MessagePage) -> Reply:
    """The messages, one a row. why: the reason why it is dead or parked, or the last error.

    What rows cannot say is in headers: `Next-Cursor`, and `Unseen-Buckets` if some are missing.
    """
    text = io.StringIO()
    rows = csv.writer(text)
    rows.writerow(_COLUMNS)
    rows.writerows([_cell(value) for value in _row(each)] for each in page.items)
    headers = {
        "Content-Type": "text/csv; charset=utf-8",
        "Content-Disposition": 'attachment; filename="messages.csv"',
    }
    if page.next_cursor is not None:
        headers["Next-Cursor"] = page.next_cursor
    if page.unseen:
        headers["Unseen-Buckets"] = ", ".join(map(str, page.unseen))
    return Reply(text.getvalue().encode("utf-8", "backslashreplace"), 200, headers)


def _row(one: StoredMessage) -> tuple[object, ...]:
    headers = "; ".join(f"{name}={value}" for name, value in one.headers)
    why = one.reason or one.last_error
    return (
        one.id, one.destination, one.state, one.due, one.attempts, one.body_bytes, headers, why,
    )  # fmt: skip


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULAS) else text

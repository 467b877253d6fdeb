"""Pages of messages: which ones, and the cursor that leads to the next page."""

from __future__ import annotations

import base64
from typing import Literal
from zlib import crc32

import msgspec

from delaybridge.errors import MessageError
from delaybridge.message import State
from delaybridge.operate.views.listing import Cursor
from delaybridge.store.messages.record_filters import Conditions
from delaybridge.times import at_ms

_MOST = 500  # messages of a page


class PageQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages. destination: also an exchange or a broker. header: `name=value`, or `name`.

    attempts: at least so many. reason: the first word of why it is dead, or of its last error.
    due_from, due_to: RFC 3339, or with `_ms` in epoch ms; both included.
    """

    destination: str | None = None
    id_prefix: str = ""
    header: str | None = None
    attempts: int = 0
    reason: str | None = None
    due_from: str | None = None
    due_to: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
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
        """The limit. MessageError."""
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
        """Of all filters."""
        asked = (self.destination, self.id_prefix, self.header, self.attempts, self.reason)
        return crc32(msgspec.msgpack.encode((state, *asked, *self.span_ms())))


class PageOfState(PageQuery, kw_only=True):
    """The same, in one state."""

    state: State = State.DELAYED

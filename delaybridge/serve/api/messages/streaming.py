"""Messages as lines: a request of any length, answered while it arrives.

Nothing is read while the store works or the client does not read the answers, so that memory stays
the same however many lines there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.serve.api.messages.batch import refuse_key
from delaybridge.serve.api.messages.plain import plain_lines
from delaybridge.serve.api.messages.shapes import NewMessage
from delaybridge.serve.api.messages.together import (
    BatchItem,
    scheduled_together,
    stored_together,
)
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.json_text import are_plain, as_types, decoded
from delaybridge.serve.http.problems import Problem
from delaybridge.serve.shared.call import Call

_LINES = 500  # stored together
_GROUP_BYTES = 2**20
_LOOK_S = 1
_encoder = msgspec.json.Encoder()
routes = Routes(is_for_tenants=True)
Line = tuple[int, bytes | None]
"""Its number, and its text; None if it was too long."""


class MessageStream:
    """An ASGI application that stores a message a line, and answers each with a line."""

    def __init__(self, call: Call) -> None:
        self._call, self._most = call, call.site.most_bytes

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer until the body ends or the client leaves; break off if it may not go on."""
        self._ending = ending = scope["extensions"]["connection"].get("ending") or Ending()
        with self._call.seat():
            try:
                if not await self._answer(receive, send) and ending.break_off:
                    ending.break_off()
            finally:
                ending.is_read = None

    async def _answer(self, receive: Receive, send: Send) -> bool:
        """False: it may not go on."""
        cutter, is_whole, has_begun = Cutter(self._most), False, False
        start = {"type": "http.response.start", "status": 207, "headers": self._headers()}
        while not is_whole:
            if not await self._may_go_on():
                return False
            self._ending.is_read = True
            event = await receive()
            self._ending.is_read = False
            if event["type"] == "http.disconnect":
                return True  # half a line is not stored
            is_whole = not event.get("more_body")
            for some in cutter.cut(event.get("body", b""), is_whole=is_whole):
                if has_begun and not await self._turn():
                    return False
                text = await self._answers(some)
                if not has_begun:
                    has_begun = True
                    await send(start)
                await send({"type": "http.response.body", "body": text, "more_body": True})
        if not has_begun:
            await send(start)
        await send({"type": "http.response.body", "body": b""})
        return True

    async def _turn(self) -> bool:
        """Wait for as long as a further request of this token would be refused. As `_may_go_on`."""
        access, who = self._call.site.access, self._call.who
        while not self._call.site.is_draining and (wait_s := access.wait_s(who)):
            await asyncio.sleep(min(wait_s, _LOOK_S))
        return await self._may_go_on()

    async def _may_go_on(self) -> bool:
        is_known = await self._call.is_known()  # first: nothing may happen behind the others
        return is_known and not (self._call.site.is_draining or self._ending.has_ended)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        as_sent = self._call.media.encode()
        return [(b"content-type", as_sent), (b"x-accel-buffering", b"no")]

    async def _answers(self, lines: Sequence[Line]) -> bytes:
        items = await self._stored(lines)
        for (number, _), item in zip(lines, items, strict=True):
            item.line = number
        return _encoder.encode_lines(items)

    async def _stored(self, lines: Sequence[Line]) -> list[BatchItem]:
        texts = [text for _, text in lines if text is not None]
        read: Sequence[NewMessage | Problem] | None = None
        if len(texts) == len(lines):
            if plain := plain_lines(texts):
                return await stored_together(self._call, plain)
            read = as_types(texts, NewMessage) if are_plain(texts) else None
        if read is None:
            read = [await self._read(text) for _, text in lines]
        return await scheduled_together(self._call, read)

    async def _read(self, text: bytes | None) -> NewMessage | Problem:
        if text is None:
            what = f"a line has at most {self._most:,} bytes; see limits.body_bytes"
            return Problem(413, "message_too_large", what)
        try:
            return await decoded(text, NewMessage, self._call.site.most_dense)
        except Problem as exc:
            return exc


class Cutter:
    """Cuts what arrives into lines, and keeps the part of a line that has no end yet."""

    def __init__(self, most: int) -> None:
        """most: bytes of a line; no more are kept of a longer one."""
        self._most, self._kept, self._size, self._number = most, list[bytes](), 0, 0

    def cut(self, piece: bytes, *, is_whole: bool) -> Iterator[list[Line]]:
        """The lines that end here and are not empty, as many as are stored together.

        is_whole: the last line ends here, too.
        """
        lines = self._ended(piece, is_whole)
        numbered = enumerate(lines, self._number + 1)
        self._number += len(lines)
        found: list[Line] = []
        size = 0
        for line in [each for each in numbered if each[1] is None or each[1].strip()]:
            more = len(line[1] or b"")
            if found and (len(found) == _LINES or size + more > _GROUP_BYTES):
                yield found
                found, size = [], 0
            found.append(line)
            size += more
        if found:
            yield found

    def _ended(self, piece: bytes, is_whole: bool) -> list[bytes | None]:
        *ended, rest = piece.split(b"\n")
        if is_whole:
            ended.append(rest)
        found = [text if len(text) <= self._most else None for text in ended]
        if ended:
            self._keep(ended[0])
            found[0] = b"".join(self._kept) if self._size <= self._most else None
            self._kept, self._size = [], 0
        if not is_whole:
            self._keep(rest)
        return found

    def _keep(self, text: bytes) -> None:
        self._size += len(text)
        if self._size <= self._most:
            self._kept.append(text)
        else:
            self._kept.clear()


@routes(
    "POST /v1/messages:stream", "Schedule a stream of messages", body=bytes, answers={207: bytes},
    is_streamed=True, media="application/octet-stream",
)  # fmt: skip
async def stream(call: Call) -> MessageStream:
    """Schedule any number of messages, a JSON object a line; each line is answered with a line.

    Send `Content-Type: application/x-ndjson`, which is then also the type of the answer. The
    answers have the form of those of a batch, with the number of the `line`, in order, and are sent
    while lines still arrive: read them meanwhile. One that is refused hinders no other; an empty
    line has no answer. What has none when the connection ends may be stored: send it again, with
    the same ids.
    """
    refuse_key(call)
    return MessageStream(call)

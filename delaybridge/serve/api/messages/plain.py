"""Messages of nothing but texts, as most are: many are read in one go.

Each value is a string, so the number of strings tells whether a key was given twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from delaybridge.message import Message
from delaybridge.serve.http.json_text import PIECE, strings

_ENDS = (b"}", b"}\r")
_OF_MESSAGE = 6  # strings, with keys; an id are two more


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    destination: str
    body: str
    delay: str
    id: str | None = None


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[_Plain]


_batch, _list = msgspec.json.Decoder(_Batch), msgspec.json.Decoder(list[_Plain])


def plain_batch(body: bytes) -> list[Message] | None:
    """The messages of a batch, which is not large; None if one is not plain, or the batch."""
    found = _decoded(_batch, body)
    return found and _messages(found.messages, body, 1)


def plain_lines(lines: Sequence[bytes]) -> list[Message] | None:
    """The message of each line; None if one is not plain. No line has a line end within."""
    if not all(line.endswith(_ENDS) and len(line) <= PIECE for line in lines):
        return None
    # A string holds no line end, so each line ends a message, and as many as lines are one each.
    text = b"[%b]" % b",\n".join(lines)
    found = _decoded(_list, text)
    return _messages(found, text, 0) if found and len(found) == len(lines) else None


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        return None


def _messages(found: list[_Plain], text: bytes, others: int) -> list[Message] | None:
    """others: strings of the text beside these messages'."""
    to, delay, made = "", "", list[Message]()
    expected = others + _OF_MESSAGE * len(found)
    for one in found:
        # The same objects again: a client knows them by identity.
        to = to if one.destination == to else one.destination
        delay = delay if one.delay == delay else one.delay
        if (id := one.id) is not None:
            expected += 2
        made.append(Message(to, one.body.encode(), delay=delay, id=id))
    return made if strings(text) == expected else None

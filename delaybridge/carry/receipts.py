"""Receipts of an import: which messages are stored now, to be cancelled where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from delaybridge.accept.accept import check_id
from delaybridge.carry.importing import Ready
from delaybridge.errors import MessageError
from delaybridge.message import Limits, State
from delaybridge.store.messages.changes import Named
from delaybridge.store.messages.selection import PAGE_MESSAGES, Selected
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import bucket_of


class ImportReceipt(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A line that is stored: its number, and what names the message.

    version: which state of it was exported; it is cancelled at its source only if it still has it.
    """

    line: int
    id: str
    key: str | None = None
    key_base64: bytes | None = None
    version: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ImportReceipt).decode


def receipts_of(stored: Iterable[Ready]) -> bytes:
    """The receipts of lines that are stored."""
    lines = ((one.number, one.line) for one in stored)
    made = [ImportReceipt(n, e.id, e.key, e.key_base64, e.version) for n, e in lines]
    return b"".join(_encode(one) + b"\n" for one in made)


def named_in(
    texts: Iterable[bytes], limits: Limits, buckets: Sequence[Bucket]
) -> Iterator[list[Named]]:
    """The messages that receipts name, or ids that stand on lines of their own, by pages.

    MessageError names the wrong line; what was named on the pages before it is done by then. A
    receipt without an end was cut short by a crash, and is no error.
    """
    whole = ((n, text.strip()) for n, text in enumerate(texts, 1) if not _is_cut(text))
    found = (_named(n, text, limits, buckets) for n, text in whole if text)
    while some := list(islice(found, PAGE_MESSAGES)):
        yield some


def _is_cut(text: bytes) -> bool:
    return text.startswith(b"{") and not text.endswith(b"\n")


def _named(number: int, text: bytes, limits: Limits, buckets: Sequence[Bucket]) -> Named:
    try:
        if not text.startswith(b"{"):
            return check_id(text.decode(), limits)
        one = _decode(text)
        version = bytes.fromhex(one.version)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise MessageError("bad_line", f"line {number}", str(exc)) from None
    key = one.key_base64 or (one.id if one.key is None else one.key).encode()
    bucket = buckets[bucket_of(key, len(buckets))]
    return Selected(one.id, bucket.number, State.DELAYED, None, version)

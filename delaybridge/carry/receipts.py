"""Receipts of an import: which messages are stored now, to be cancelled where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Annotated

import msgspec

from delaybridge.accept.accept import check_id
from delaybridge.carry.line import Line
from delaybridge.errors import MessageError
from delaybridge.message import Limits, State
from delaybridge.store.messages.changes import Named
from delaybridge.store.messages.selection import PAGE_MESSAGES, Selected
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import bucket_of


class ImportReceipt(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A line that is stored: its number, `created` or `duplicate`, and what names the message.

    version: which state of it was exported; it is cancelled at its source only if it still has it.
    """

    line: Annotated[int, msgspec.Meta(ge=1, le=2**36)]
    id: str
    answer: str
    key: str | None = None
    key_base64: bytes | None = None
    version: str = ""

    def named(self, buckets: Sequence[Bucket]) -> Selected:
        """The message, where there are these buckets. ValueError: the version is wrong."""
        key = self.id.encode() if self.key is None else self.key.encode()
        place = bucket_of(key if self.key_base64 is None else self.key_base64, len(buckets))
        return Selected(
            self.id, buckets[place].number, State.DELAYED, None, bytes.fromhex(self.version)
        )


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ImportReceipt)


def read_receipts(texts: Iterable[bytes]) -> Iterator[ImportReceipt | str]:
    """Receipts, and ids that stand on lines of their own. MessageError names the wrong line."""
    for number, text in enumerate(texts, 1):
        if not (text := text.strip()):
            continue
        try:
            yield _decoder.decode(text) if text.startswith(b"{") else text.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise MessageError("bad_line", f"line {number}", str(exc)) from None


class StoredLines:
    """The lines that a receipt has: a bit for each, as there may be millions.

    last, id: the number of the last one that was noted, and its message's id.
    """

    def __init__(self, kept: IO[bytes] | None = None) -> None:
        """kept: a receipt; a line that a crash has cut short is removed, if it can be written."""
        self._kept, self._bits, self.last, self.id = kept, bytearray(), 0, ""
        if kept is not None:
            kept.seek(0)
            self._read(kept)

    def _read(self, kept: IO[bytes]) -> None:
        end = 0
        for text in kept:
            if not text.endswith(b"\n"):
                if kept.writable():
                    kept.truncate(end)
                return
            end += len(text)
            for receipt in read_receipts([text]):
                if isinstance(receipt, ImportReceipt):
                    self._add(receipt)

    def note(self, stored: Iterable[tuple[int, Line, str]]) -> None:
        """Add lines that are stored now, each with its answer, if the receipt can be written."""
        if self._kept is not None and self._kept.writable():
            for n, line, answer in stored:
                key = line.key, line.key_base64, line.version
                self._kept.write(_encode(ImportReceipt(n, line.id, answer, *key)) + b"\n")
            self._kept.flush()

    def _add(self, receipt: ImportReceipt) -> None:
        byte, bit = divmod(receipt.line, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(byte + 2**16 - len(self._bits)))
        self._bits[byte] |= 1 << bit
        self.last, self.id = receipt.line, receipt.id

    def __contains__(self, number: int) -> bool:
        byte, bit = divmod(number, 8)
        return byte < len(self._bits) and bool(self._bits[byte] >> bit & 1)


def named_in(
    texts: Iterable[bytes], limits: Limits, buckets: Sequence[Bucket]
) -> Iterator[list[Named]]:
    """The messages that these lines name, by pages; a page is whole before it is handed out.

    MessageError names the wrong line; what was named on the pages before it is done by then.
    """
    found = read_receipts(texts)
    while some := list(islice(found, PAGE_MESSAGES)):
        yield [check_id(e, limits) if isinstance(e, str) else e.named(buckets) for e in some]

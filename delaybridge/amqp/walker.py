"""A stream of AMQP 0-9-1 frames, walked without decoding it: most bytes pass, some methods stop.

Of each frame only its first seven bytes, a method's id and the last byte are looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from delaybridge.amqp.frames import BODY, FRAME, FRAME_OVERHEAD, HEADER, METHOD

HEARTBEAT = 8
HEADER_ID, BODY_ID, HEARTBEAT_ID = b"\x02", b"\x03", b"\x08"  # beside the ids of methods
MOST_BYTES = 1024 * 1024  # of a watched frame; brokers agree to frames of 128 KiB
_END = 0xCE
_body_size = struct.Struct(">11xQ").unpack_from  # in a header frame
_IDS = {HEADER: HEADER_ID, BODY: BODY_ID, HEARTBEAT: HEARTBEAT_ID}
_NEVER = 2**32  # more than a frame can have
_LEAST = [_NEVER] * 256  # bytes of the payload of each kind of frame
_LEAST[METHOD], _LEAST[HEADER], _LEAST[BODY], _LEAST[HEARTBEAT] = 4, 14, 0, 0
# publish, return, deliver, get-ok: a header and the body follow
_WITH_CONTENT = frozenset(bytes([0, 60, 0, method]) for method in (40, 50, 60, 71))
_ID_BYTES = 4
_LITTLE = 4096
_make = tuple.__new__  # half the time of Method(...)


class _Ids:
    """All ids with as many bytes, or more."""

    def __init__(self, least: int) -> None:
        self._least = least

    def __contains__(self, id: Any) -> bool:
        return len(id) >= self._least


EVERYTHING: Container[bytes] = _Ids(1)
EVERY_METHOD: Container[bytes] = _Ids(_ID_BYTES)


class FrameTooLarge(Exception):
    """A watched frame has more bytes than may be kept of it."""


class Method(NamedTuple):
    """A whole frame that was watched for; of another kind than a method if the id says so.

    id: class and method, four bytes. arguments: what follows the id, or the payload of another
    kind. frame: all of it, with its end.
    """

    channel: int
    id: bytes
    arguments: bytes
    frame: bytes


Part = bytes | memoryview
Piece = Part | Method


class FrameReader:
    """Reads one direction of a connection, however the network cut it.

    What is not watched is passed at once, even a part of a frame. A watched frame is kept until it
    is whole, and then taken. A method that a message follows is kept until it is whole, too: it may
    be watched by then. No byte is added or lost. From the first byte that is no frame of AMQP 0-9-1
    on, everything is passed unseen.

    passed, taken: are called in the order of the stream; `taken` with channel, id, data, and where
    in it the frame starts and ends. is_blind: a byte was no frame.
    """

    def __init__(
        self,
        passed: Callable[[Part], object],
        taken: Callable[[int, bytes, bytes, int, int], object],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.passed, self.taken = passed, taken
        self.is_blind = False
        self._most_bytes = most_bytes
        self._kept: list[bytes] = []
        self._missing = 0  # bytes until what is kept can be judged
        self._passing = 0  # bytes to come of a frame that passes in parts
        self._content_left = 0  # bytes to come of a message's body

    @property
    def has_part(self) -> bool:
        """Whether the start of a frame is kept until more of it comes."""
        return bool(self._kept)

    @property
    def is_at_boundary(self) -> bool:
        """Whether all that was passed and taken ends with a whole frame."""
        return not (self._passing or self.is_blind)

    @property
    def is_between_messages(self) -> bool:
        """Whether a method on any channel may be inserted after what was passed and taken.

        Brokers write the frames of a message one after the other. So a method may be inserted
        before every method in the stream, too.
        """
        return self.is_at_boundary and self._content_left <= 0

    def read(self, data: bytes, watched: Container[bytes]) -> None:
        """Pass and take what is complete with these bytes. Raises FrameTooLarge."""
        if self._missing:
            self._kept.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._kept)
            self._kept, self._missing = [], 0
        at = self._passing
        self._passing = max(at - len(data), 0)
        self.is_blind |= 0 < at <= len(data) and data[at - 1] != _END
        if self._passing or self.is_blind:
            self.passed(data)
            return
        start, at = self._walk(data, at, watched)
        if at < len(data):
            at = self._judge(data, at, watched)
        if start < at:
            self.passed(_part(data, start, at))

    def rewind(self) -> bytes:
        """Begin again at a boundary. Returns what was kept, which is to be read once more."""
        kept = b"".join(self._kept)
        self._kept, self._missing, self._passing, self._content_left = [], 0, 0, 0
        return kept

    def _walk(self, data: bytes, at: int, watched: Container[bytes]) -> tuple[int, int]:
        """Walk over whole frames from `at` on. Returns up to where was passed, and walked."""
        unpack, least, taken, size = FRAME.unpack_from, _LEAST, self.taken, len(data)
        start, last, left, id = 0, size - FRAME_OVERHEAD, self._content_left, b""
        while at <= last:
            kind, channel, length = unpack(data, at)
            end = at + length + FRAME_OVERHEAD
            if end > size or data[end - 1] != _END or length < least[kind]:
                break
            if kind == METHOD:
                id = data[at + 7 : at + 11]
            elif kind == BODY:
                left, id = left - length, BODY_ID
            elif kind == HEADER:
                (left,), id = _body_size(data, at), HEADER_ID
            else:
                id = HEARTBEAT_ID
            if id in watched:
                if start < at:
                    self.passed(_part(data, start, at))
                taken(channel, id, data, at, end)
                start = end
            at = end
        self._content_left = max(left, id in _WITH_CONTENT)
        return start, at

    def _judge(self, data: bytes, at: int, watched: Container[bytes]) -> int:
        """Up to where the data passes, if what starts at `at` is no whole frame. Keeps the rest."""
        kind = data[at]
        least = _LEAST[kind]
        missing = at + FRAME.size + least - len(data)
        if missing <= 0:
            _, _, length = FRAME.unpack_from(data, at)
            missing = at + length + FRAME_OVERHEAD - len(data) if length >= least else 0
            id = _IDS.get(kind) or data[at + 7 : at + 11]
            if missing > 0 and not (id in watched or (id in _WITH_CONTENT and length < _LITTLE)):
                self._note(kind, length, data, at)
                self._passing = missing
                return len(data)
            if missing > 0 and length > self._most_bytes:
                raise FrameTooLarge(f"a frame of {length} bytes")
        if missing <= 0 or least == _NEVER:
            self.is_blind = True
            return len(data)
        self._kept, self._missing = [data[at:]], missing
        return at

    def _note(self, kind: int, length: int, data: bytes, at: int) -> None:
        """Note what a frame that passes in parts says of its message."""
        if kind == HEADER:
            (self._content_left,) = _body_size(data, at)
        elif kind == BODY:
            self._content_left -= length


class Walker(FrameReader):
    """A reader that cuts the stream into pieces; joined, they are the stream.

    watched: as `read` takes it; may be replaced between feeds.
    """

    def __init__(self, watched: Container[bytes], most_bytes: int = MOST_BYTES) -> None:
        self._pieces: list[Piece] = []
        super().__init__(self._pieces.append, self._take, most_bytes)
        self.watched = watched

    def feed(self, data: bytes) -> Sequence[Piece]:
        """The pieces that are complete with these bytes. Raises FrameTooLarge."""
        pieces = self._pieces = []
        self.passed = pieces.append
        self.read(data, self.watched)
        return pieces

    def _take(self, channel: int, id: bytes, data: bytes, start: int, end: int) -> None:
        arguments = data[start + (11 if len(id) == _ID_BYTES else 7) : end - 1]
        self._pieces.append(_make(Method, (channel, id, arguments, data[start:end])))


def _part(data: bytes, start: int, end: int) -> Part:
    size = end - start
    # A view of little takes longer than its copy.
    return data[start:end] if size < _LITTLE or size == len(data) else memoryview(data)[start:end]

"""The frame walker loses no byte and misses no method, however the stream is cut."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delaybridge.amqp.walker import (
    BODY_ID,
    EVERY_METHOD,
    HEADER_ID,
    HEARTBEAT_ID,
    FrameTooLarge,
    Method,
    Piece,
    Walker,
)

DECLARE, DELIVER, ACK = b"\x00\x28\x00\x0a", b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50"
IDS = [DECLARE, DELIVER, ACK, HEADER_ID, BODY_ID, HEARTBEAT_ID]
NOT_AMQP = [
    b"AMQP\x00\x00\x09\x01",
    b"\x01\x00\x01\x00\x00\x00\x03\x00\x3c\x00\xce",  # a method without an id
    b"\x02\x00\x01\x00\x00\x00\x02\x00\x3c\xce",  # a header without a size
    b"\x04\x00\x00\x00\x00\x00\x00\xce",
    b"\x08\x00\x00\x00\x00\x00\x00\x00",  # another last byte
]


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    """A frame as AMQP 0-9-1 has it."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(id: bytes, arguments: bytes = b"", channel: int = 1) -> bytes:
    """A method's frame."""
    return frame(1, id + arguments, channel)


def header(size: int, channel: int = 1) -> bytes:
    """The header of a message with a body of this size."""
    return frame(2, struct.pack(">HHQH", 60, 0, size, 0), channel)


def walk(walker: Walker, data: bytes, cuts: Iterable[int] = ()) -> list[Piece]:
    """All pieces of the data, which arrives in parts of these sizes, the rest at once."""
    pieces: list[Piece] = []
    for size in [*cuts, len(data)]:
        pieces += walker.feed(data[:size])
        data = data[size:]
    return pieces


def joined(pieces: Sequence[Piece]) -> bytes:
    """The bytes that pieces stand for."""
    return b"".join(each.frame if isinstance(each, Method) else each for each in pieces)


def found(pieces: Sequence[Piece]) -> list[Method]:
    """The watched frames among the pieces."""
    return [each for each in pieces if isinstance(each, Method)]


FRAMES = st.one_of(
    st.builds(
        method,
        st.sampled_from([DECLARE, DELIVER, ACK]),
        st.binary(max_size=40) | st.just(b"\xce" * 4200),
        st.integers(0, 3),
    ),
    st.builds(header, st.integers(0, 2**64 - 1), st.integers(0, 3)),
    st.builds(frame, st.just(3), st.binary(max_size=40) | st.just(b"x" * 4200), st.integers(0, 3)),
    st.just(frame(8, b"", 0)),
)
CUTS = st.lists(st.integers(0, 12) | st.integers(0, 4200))
WATCHED = st.sets(st.sampled_from(IDS))


def id_of(whole: bytes) -> bytes:
    """What the walker calls a frame."""
    return whole[7:11] if whole[0] == 1 else {2: HEADER_ID, 3: BODY_ID, 8: HEARTBEAT_ID}[whole[0]]


@given(st.lists(FRAMES, max_size=8), WATCHED, CUTS)
def test_each_watched_frame_is_found_once_and_the_pieces_are_the_stream(
    frames: list[bytes], watched: set[bytes], cuts: list[int]
) -> None:
    walker = Walker(watched)
    pieces = walk(walker, b"".join(frames), cuts)
    assert joined(pieces) == b"".join(frames)
    assert [each.frame for each in found(pieces)] == [f for f in frames if id_of(f) in watched]
    for each in found(pieces):
        assert each.id == id_of(each.frame)
        assert each.channel == int.from_bytes(each.frame[1:3], "big")
        assert each.arguments == each.frame[11 if each.frame[0] == 1 else 7 : -1]
    assert walker.is_at_boundary
    assert not (walker.has_part or walker.is_blind)


@given(
    st.lists(FRAMES | st.sampled_from(NOT_AMQP) | st.binary(max_size=30), max_size=6),
    WATCHED,
    CUTS,
)
@example([NOT_AMQP[2], method(DECLARE)], {DECLARE}, [])
@example([NOT_AMQP[2], method(DECLARE)], {DECLARE}, [1] * 30)
def test_garbage_passes_and_the_frames_before_it_are_found(
    parts: list[bytes], watched: set[bytes], cuts: list[int]
) -> None:
    stream = b"".join(parts)
    walker, whole = Walker(watched), Walker(watched)
    try:
        pieces = walk(walker, stream, cuts)
    except FrameTooLarge:
        with pytest.raises(FrameTooLarge):
            walk(whole, stream)
        return
    passed = joined(pieces)
    assert stream.startswith(passed)
    assert walker.has_part or passed == stream
    assert found(pieces) == found(walk(whole, stream))
    assert walker.is_blind == whole.is_blind


@pytest.mark.parametrize("garbage", NOT_AMQP)
def test_what_is_no_frame_passes_unseen_from_there_on(garbage: bytes) -> None:
    for cuts in ([], [1] * 60):
        walker = Walker({DECLARE})
        stream = method(DECLARE) + garbage + method(DECLARE)
        pieces = walk(walker, stream, cuts)
        assert joined(pieces) == stream
        assert len(found(pieces)) == 1
        assert walker.is_blind
        assert not walker.is_at_boundary


def test_nothing_watched_returns_the_same_bytes() -> None:
    data = method(ACK, bytes(9)) * 1000
    (piece,) = Walker({DECLARE}).feed(data)
    assert piece is data


def test_a_large_body_passes_at_once_and_without_a_copy() -> None:
    walker = Walker({DECLARE})
    body = frame(3, b"x" * 100_000)
    pieces = walker.feed(method(DECLARE) + body[:50_000])
    assert [type(each) for each in pieces] == [Method, memoryview]
    assert not walker.is_at_boundary
    assert joined(walk(walker, body[50_000:])) == body[50_000:]
    assert walker.is_at_boundary


def test_a_watched_method_that_is_too_large_is_refused_before_it_is_kept() -> None:
    large = method(DECLARE, bytes(100))
    with pytest.raises(FrameTooLarge):
        Walker({DECLARE}, most_bytes=50).feed(large[:11])
    assert joined(Walker({ACK}, most_bytes=50).feed(large)) == large


def test_a_method_that_arrives_byte_by_byte_is_one_piece() -> None:
    walker = Walker({DECLARE})
    large = method(DECLARE, bytes(100_000))
    pieces = [each for byte in large for each in walker.feed(bytes([byte]))]
    assert pieces == [Method(1, DECLARE, bytes(100_000), large)]


@pytest.mark.parametrize("watched", [frozenset(), {DELIVER}, EVERY_METHOD])
def test_a_method_may_be_inserted_between_messages_only(watched: Container[bytes]) -> None:
    frames = [method(DELIVER, bytes(30)), header(5), frame(3, b"abc"), frame(3, b"de")]
    walker = Walker(watched)
    between = []
    for at, each in enumerate(frames):
        for byte in each:
            walker.feed(bytes([byte]))
        between.append((at, walker.is_between_messages))
    assert between == [(0, False), (1, False), (2, False), (3, True)]
    walk(walker, method(DELIVER) + header(0))
    assert walker.is_between_messages
    walk(walker, method(DELIVER) + header(5)[:12])
    assert not walker.is_between_messages


def test_a_delivery_that_is_watched_once_its_rest_is_there_is_taken() -> None:
    deliver = method(DELIVER, b"\x03tag" + bytes(9) + b"\x05d.due\x03key")
    for cut in range(1, len(deliver)):
        walker = Walker(())
        assert joined(walker.feed(deliver[:cut])) == b"" and walker.has_part
        walker.watched = EVERY_METHOD
        assert [each.frame for each in found(walker.feed(deliver[cut:]))] == [deliver]

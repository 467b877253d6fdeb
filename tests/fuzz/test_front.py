"""Whatever a client sends: the broker's answers come through a front as they come directly."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from pika import frame, spec

from delaybridge.amqp.encoding import encode_table
from tests.rigs.drawn import drawn
from tests.rigs.front_raw import Basic, Fronts, RawClient, fronts_of
from tests.rigs.waiting import DEADLINE_S

A, B = b"\xfbA\xfd", b"\xfbB\xfd"  # stand for names, which each run has for itself
PROTOCOL = b"AMQP\x00\x00\x09\x01"
LAST = frame.Method(1, Basic.Qos()).marshal()  # its answer is the last one to a step
CLOSED = (spec.Connection.Close, spec.Connection.CloseOk)
# A consume would be answered with messages, and a queue without a name with one of the broker's.
NOT_RAW = {(60, 20), (50, 10)}

NAMES = st.sampled_from([A, B, b"", b"amq.direct", b"amq.gen"])
TYPES = st.sampled_from([b"direct", b"fanout", b"topic", b"headers", b"nope", b"", b"x-delayed"])
TABLES = st.sampled_from(
    [
        *(b"", encode_table([("x-delayed-type", "direct")]), encode_table([("x-match", "all")])),
        encode_table([("alternate-exchange", "amq.direct")]),
        *(b"\xff", b"\x01aS\xff\xff\xff\xff", b"\x05abcS"),
    ]
)
LONG_TABLES = st.builds(lambda table: struct.pack(">I", len(table)) + table, TABLES) | st.binary(
    max_size=8
)
BITS = st.integers(0, 31).map(lambda bits: bytes([bits & ~16 if bits < 24 else bits]))


def short(text: bytes) -> bytes:
    """A short text, whose stand-ins keep their length."""
    return bytes([len(text)]) + text


def method(class_id: int, method_id: int, *parts: bytes) -> bytes:
    """A method's frame on channel 1."""
    payload = struct.pack(">HH", class_id, method_id) + b"".join(parts)
    return struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"


TICKET = st.just(b"\0\0")
SHORT = NAMES.map(short)
STEPS = st.one_of(
    st.builds(
        method, st.just(40), st.just(10), TICKET, SHORT, TYPES.map(short), BITS, LONG_TABLES
    ),
    st.builds(method, st.just(40), st.just(20), TICKET, SHORT, BITS),
    st.builds(
        method, st.just(40), st.sampled_from([30, 40]), TICKET, SHORT, SHORT, SHORT, BITS,
        LONG_TABLES,
    ),
    st.builds(
        method, st.just(50), st.just(10), TICKET, st.sampled_from([A, B]).map(short), BITS,
        LONG_TABLES,
    ),
    st.builds(
        method, st.just(50), st.just(20), TICKET, SHORT, SHORT, SHORT, BITS, LONG_TABLES
    ),
    st.builds(method, st.just(50), st.just(50), TICKET, SHORT, SHORT, SHORT, LONG_TABLES),
    st.tuples(
        st.sampled_from([10, 20, 40, 50, 60, 85, 90]), st.integers(0, 130), st.binary(max_size=40)
    )
    .filter(lambda raw: raw[:2] not in NOT_RAW)
    .map(lambda raw: method(*raw)),
)  # fmt: skip
JUNK = st.one_of(
    st.binary(max_size=40),
    st.lists(STEPS | st.binary(max_size=20), max_size=4).map(lambda all: PROTOCOL + b"".join(all)),
)


@pytest.fixture
async def fronts(rabbitmq_url: str) -> AsyncIterator[Fronts]:
    async with fronts_of(rabbitmq_url) as fronts:
        yield fronts


async def answers(client: RawClient, steps: list[bytes], names: dict[bytes, bytes]) -> list[str]:
    """What the broker answers to each step; it ends with the connection."""
    heard = []
    for step in steps:
        for stand_in, name in names.items():
            step = step.replace(stand_in, name)
        client.send(step, LAST)
        while True:
            try:
                answer = await client.taken()
            except (AssertionError, ConnectionError):  # closed
                return [*heard, "closed"]
            text = repr(answer)
            for stand_in, name in names.items():
                as_bytes = ",".join(map(str, name)), ",".join(map(str, stand_in))
                text = text.replace(name.decode(), repr(stand_in)).replace(*as_bytes)
            heard.append(text)
            if isinstance(answer, CLOSED):
                return heard
            if isinstance(answer, spec.Channel.Close):
                client.send(spec.Channel.CloseOk())
                await client.ask(spec.Channel.Open())
            if isinstance(answer, Basic.QosOk | spec.Channel.Close):
                break
    return heard


async def test_a_client_that_declares_nothing_delayed_hears_what_the_broker_says(
    fronts: Fronts, rabbitmq_url: str
) -> None:
    urls = rabbitmq_url, await fronts.start()
    for number, steps in enumerate(drawn(st.lists(STEPS, min_size=1, max_size=6))):
        heard = []
        for way, url in enumerate(urls):
            names = {A: b"ZA%d" % way, B: b"ZB%d" % way}
            client = await fronts.client(url)
            heard.append(await answers(client, steps, names))
            await client.close()
        assert heard[0] == heard[1], (number, steps)


async def test_a_front_outlives_any_bytes(fronts: Fronts) -> None:
    url = await fronts.start()
    good = await fronts.client(url)
    for junk in drawn(JUNK):
        reader, writer = await asyncio.open_connection(good.parts.hostname, good.parts.port)
        writer.write(junk)
        writer.write_eof()
        with suppress(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while await reader.read(65536):
                    pass
        writer.close()
        assert isinstance(await good.ask(Basic.Qos()), Basic.QosOk)
    assert await good.queue("amq.direct")

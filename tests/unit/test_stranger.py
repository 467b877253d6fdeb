"""What answers where another server should, without any of these servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from redis.exceptions import InvalidResponse

from delaybridge.store.redis.errors import translate
from delaybridge.stranger import speaker, stranger


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """A server that answers the first bytes of each connection, and closes it; its port."""

    serving = set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with suppress(OSError):
            writer.write(answer(await reader.read(100)))
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.gather(*filter(None, serving))  # else the loop ends before their sockets do


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        (b"AMQP\0\0\x09\x01", "RabbitMQ"),
        (b"+PONG\r\n", "Redis"),
        (b"-NOAUTH Authentication required.\r\n", "Redis"),
        (b"HTTP/1.1 400 Bad Request\r\n", "a web server (HTTP)"),
        (b"\x15\x03\x03\0\x02\x02F", "TLS"),
        (b"220 mail.example.com ESMTP", ""),
        (b"", ""),
    ],
)
async def test_a_server_is_known_by_what_it_answers(reply: bytes, name: str) -> None:
    assert speaker(reply) == name
    async with answering(lambda asked: reply if asked == b"PING\r\n" else b"") as port:
        assert await stranger("127.0.0.1", port) == name


async def test_a_kafka_is_known_by_the_answer_to_its_own_request() -> None:
    def kafka(asked: bytes) -> bytes:
        is_request = int.from_bytes(asked[:4]) == len(asked) - 4  # else it closes the connection
        return b"\0\0\1\0" + asked[8:12] + b"\0\0" if is_request else b""

    async with answering(kafka) as port:
        assert await stranger("127.0.0.1", port) == "Kafka"


async def test_where_nothing_listens_no_server_is_named() -> None:
    async with answering(lambda _: b"") as port:
        pass
    assert await stranger("127.0.0.1", port) == ""


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ('Protocol error, got "A" as reply type byte', "RabbitMQ"),
        ("Protocol Error: b'AMQP\\x00\\x00\\t\\x01'", "RabbitMQ"),
        ('Protocol error, got "H" as reply type byte', "a web server"),
        ('Protocol error, got "J" as reply type byte', "another server"),
    ],
)
def test_a_store_that_is_no_redis_is_named(said: str, name: str) -> None:
    text = f"redis: {name} answers there, not Redis: check redis.url"
    assert str(translate(InvalidResponse(said))) == text


def test_of_the_addresses_of_a_host_that_refuse_one_is_named() -> None:
    refused = "[Errno 111] Connect call failed ('{}', 6379{})"
    both = f"{refused.format('::1', ', 0, 0')}, {refused.format('127.0.0.1', '')}"
    said = f"Error Multiple exceptions: {both} connecting to localhost:6379."
    wanted = (
        "Error [Errno 111] Connect call failed ('127.0.0.1', 6379) connecting to localhost:6379."
    )
    assert str(translate(ConnectionError(said))) == f"redis: no answer: {wanted}"

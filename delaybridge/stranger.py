"""Which server answers where another one should: a wrong port is a usual mistake of a URL."""

from __future__ import annotations

import asyncio
import contextlib

_ANSWER_S = 1.0
_API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0KFK?\xff\xff"  # a request of Kafka, whose answer has its KFK?
_PING = b"PING\r\n"
RABBITMQ, KAFKA = "RabbitMQ", "Kafka"
_BEGINNINGS = {
    b"AMQP": RABBITMQ,
    b"+PONG": "Redis",
    b"-": "Redis",
    b"HTTP/": "a web server (HTTP)",
    b"\x15\x03": "TLS",
}


def speaker(reply: bytes) -> str:
    """What a server is that answers like this, when it does not understand; empty if unknown."""
    return next((name for begin, name in _BEGINNINGS.items() if reply.startswith(begin)), "")


async def wrong_server(host: str, port: int, wanted: str) -> str:
    """The reason if what answers at this address is known, and is not what is wanted; or empty."""
    if (name := await stranger(host, port)) in ("", wanted):
        return ""
    return f"wrong_server: {name} answers at {host}:{port}, not {wanted}"


async def stranger(host: str, port: int) -> str:
    """What answers at this address, such as `Redis`; empty if that is unknown. Raises nothing."""
    if found := speaker(await _answer(host, port, _PING)):
        return found
    return KAFKA if (await _answer(host, port, _API_VERSIONS))[4:8] == b"KFK?" else ""


async def _answer(host: str, port: int, question: bytes) -> bytes:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(question)
                return await reader.read(64)
            finally:
                writer.close()
    return b""

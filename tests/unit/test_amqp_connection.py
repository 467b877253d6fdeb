"""A connection to RabbitMQ that never opens is given up, whatever pika says or does not say."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from delaybridge.amqp import connection
from delaybridge.errors import PublishUnavailable

PARAMETERS: Any = SimpleNamespace(socket_timeout=0.005, stack_timeout=0.005)


class Silent:
    """pika's connection once an error in a callback has ended its attempt: nothing ever comes."""

    def __init__(self, _: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.opened: asyncio.Future[None] = loop.create_future()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_a_connection_that_neither_opens_nor_fails_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "GIVE_UP_S", 0.01)
    made = []
    make: Any = lambda *given: made.append(Silent(*given)) or made[0]  # type: ignore[func-returns-value] # noqa: E731
    with pytest.raises(PublishUnavailable, match="no answer"):
        await connection.open_connection(PARAMETERS, make)
    assert made[0].is_closed


async def test_without_a_free_descriptor_the_reason_is_given_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(PublishUnavailable, match="Too many open files"):
        await connection.open_connection(PARAMETERS, Silent)  # type: ignore[type-var]

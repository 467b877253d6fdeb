"""An answer on a connection that is closed, but was not yet told to be lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from delaybridge.serve.http.transport import Cycle


class ClosedTransport:
    """As one of uvloop."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        raise RuntimeError("the handler is closed")


async def as_asgi(cycle: Cycle) -> None:
    await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
    await cycle.send({"type": "http.response.body", "body": b"x"})


async def at_once(cycle: Cycle) -> None:
    await cycle.answer(200, b"", b"x")


@pytest.mark.parametrize("answering", [as_asgi, at_once])
async def test_an_answer_on_a_closed_connection_is_dropped_without_a_word(
    answering: Callable[[Cycle], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    transport: Any = ClosedTransport()
    scope: Any = {"type": "http", "method": "POST", "headers": []}
    log = logging.getLogger("uvicorn.error")
    cycle = Cycle(
        scope=scope, transport=transport, flow=FlowControl(transport), logger=log,
        access_logger=log, access_log=False, default_headers=[], message_event=asyncio.Event(),
        expect_100_continue=False, keep_alive=True, on_response=lambda: None,
    )  # fmt: skip

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answering(cycle)

    await cycle.run_asgi(app)
    assert caplog.records == []

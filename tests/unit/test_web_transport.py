"""Answers that come too late: the connection is closed, or the server has stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.http.transport import Cycle
from delaybridge.serve.shared.application import Resource


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


async def test_what_a_stop_breaks_off_is_answered_with_503_and_only_that() -> None:
    routes, sent = Routes(), list[Any]()
    site = MagicMock(is_draining=True)

    @routes("GET /v1/long", "Takes longer than a stop", answers={200: None})
    async def long(call: Any) -> None: ...

    async def broken_off(*_: Any) -> Any:
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        sent.append(message)

    resource: Any = Resource(site, {"GET": routes.endpoints[0]})
    resource._answer = broken_off
    await resource({"method": "GET"}, None, send)
    assert sent[0]["status"] == 503 and b"draining" in sent[1]["body"]
    site.is_draining = False
    with pytest.raises(asyncio.CancelledError):
        await resource({"method": "GET"}, None, send)

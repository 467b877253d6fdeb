"""Client and AsyncClient behind one face, so that a test is written once for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from delaybridge import AsyncClient, Client

TO = "rabbitmq:orders/close"
BUCKETS = 16  # of a namespace, if nobody says otherwise
FLAVOURS = [Client, AsyncClient]
Maker = Callable[..., Any]


class Awaited:
    """A client whose every method is awaited, be it Client or AsyncClient."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def call(*args: Any, **fields: Any) -> Any:
            answer = method(*args, **fields)
            return await answer if inspect.isawaitable(answer) else answer

        return call


class Threaded(Awaited):
    """The same, where the loop has to go on meanwhile: a `Client` is called in a thread."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)

        async def call(*args: Any, **fields: Any) -> Any:
            if isinstance(self.client, AsyncClient):
                return await method(*args, **fields)
            return await asyncio.to_thread(method, *args, **fields)

        return call

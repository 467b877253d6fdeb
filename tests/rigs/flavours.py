"""Client and AsyncClient behind one face, so that a test is written once for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from delaybridge import AsyncClient, Client

TO = "rabbitmq:orders/close"
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

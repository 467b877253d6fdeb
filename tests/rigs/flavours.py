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
    """A client whose every method is awaited, be it Client or AsyncClient; or a part of one."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return type(self)(getattr(self.client, name))

    async def __call__(self, *args: Any, **fields: Any) -> Any:
        answer = self.client(*args, **fields)
        return await answer if inspect.isawaitable(answer) else answer


class Threaded(Awaited):
    """The same, where the loop has to go on meanwhile: a `Client` is called in a thread."""

    async def __call__(self, *args: Any, **fields: Any) -> Any:
        answer = await asyncio.to_thread(self.client, *args, **fields)
        return await answer if inspect.isawaitable(answer) else answer

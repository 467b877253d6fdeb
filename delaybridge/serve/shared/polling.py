"""Polls: requests that wait for messages of pull topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.shared.call import Call
from delaybridge.serve.shared.tenancy import Tenancy
from delaybridge.store.messages.pulling import ReceivedMessage


class Poll:
    """An ASGI application that answers once there are messages of some topics, or in time.

    A subclass says how they are received, and what the answer is. wait_s: 0: at once.
    """

    def __init__(self, call: Call, topics: Sequence[str], wait_s: float) -> None:
        self.call, self.topics, self._wait_s = call, topics, wait_s
        self._awaited = [*map(Tenancy(call.tenant).topic, topics)]

    async def received(self) -> list[ReceivedMessage]:
        """Messages that are due now."""
        raise NotImplementedError

    def content(self, found: list[ReceivedMessage]) -> Any:
        """The answer with these messages."""
        raise NotImplementedError

    async def answer(self, ending: Ending) -> Any:
        """The content; None if the client is gone, which takes nothing."""
        with self.call.seat() if self._wait_s else nullcontext():
            found = await self._found(ending)
        if found and ending.has_ended:
            await self.call.verb("topics.release")(found)
            return None
        return self.content(found)

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (content := await self.answer(scope["extensions"]["connection"]["ending"])) is None:
            return
        text = msgspec.json.encode(content)
        headers = [(b"content-length", b"%d" % len(text)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def _found(self, ending: Ending) -> list[ReceivedMessage]:
        hub, loop = self.call.site.ready, asyncio.get_running_loop()
        ends_s = loop.time() + self._wait_s
        await hub.start()
        found: list[ReceivedMessage] = []
        while not (hub.is_closed or ending.has_ended):
            # They wait before it looks for messages: it misses none.
            waiters = {topic: hub.enter(topic, ending) for topic in self._awaited}
            timer = loop.call_at(ends_s, ending.wake)
            try:
                found = await self.received()
                if found or loop.time() >= ends_s:
                    break
                if len(waiters) == 1:
                    await waiters[self._awaited[0]]
                else:
                    await asyncio.wait(waiters.values(), return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
                wakes = bool(found) or hub.is_closed or ending.has_ended
                for topic, waiter in waiters.items():
                    hub.leave(topic, waiter, wakes=wakes)
        return found

"""Calls that block, on threads of their own.

asyncio's own threads are few, and every look-up of a host name needs one of them: a cluster that is
silent would hold up the connections to all other brokers. And it waits for them when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
THREAD = "delaybridge kafka call"


async def on_thread(call: Callable[[], T]) -> T:
    """What the call returns or raises. Cancelled, it is left behind."""
    answer: Future[T] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as exc:
            answer.set_exception(exc)
        else:
            answer.set_result(result)

    # A daemon: a call that never returns must not keep the process.
    Thread(target=run, name=THREAD, daemon=True).start()
    return await asyncio.wrap_future(answer)

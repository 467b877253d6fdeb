"""Proxies on a thread of their own, so that a cell can break connections while it waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import DEADLINE_S
from tests.servers.process import free_port


class Proxies:
    """Starts proxies; all end with `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: list[FaultProxy] = []

    def start(self, target: int) -> FaultProxy:
        """A proxy that leads to a port of this machine. Set its mode from any thread."""
        proxy = FaultProxy(free_port(), target)
        self._do(proxy.__aenter__())
        self._open.append(proxy)
        return proxy

    def reset(self, proxy: FaultProxy) -> None:
        async def reset() -> None:
            proxy.reset()

        self._do(reset())

    def close(self) -> None:
        for proxy in self._open:
            self._do(proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

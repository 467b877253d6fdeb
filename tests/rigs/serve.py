"""`delaybridge serve` of a bridge, on one port."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess

import httpx

from tests.rigs.bridge import Bridge
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import until_async
from tests.servers.process import free_port


class Server:
    """`delaybridge serve` on one port, which is killed and started again."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.answers = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._process = self._bridge.start("serve", "--port", str(self._port), **PATIENT_PROCESS)

        async def is_there() -> bool:
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(verify=False) as client:
                    return (await client.get(f"{self.url}/health/live")).status_code == 200
            return False

        await until_async(is_there, "the server answers")
        self.answers.set()

    async def kill(self) -> None:
        self.answers.clear()
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

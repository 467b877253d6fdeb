"""The checks of `delaybridge doctor`, run by a server for all who ask at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from delaybridge.operate.doctor.findings import findings
from delaybridge.operate.troubles.finding import Finding
from delaybridge.operate.troubles.listed import trouble
from delaybridge.settings.settings import Settings

_DEADLINE_S = 30.0


class Doctor:
    """The checks of one process. They run once at a time: who asks meanwhile shares the result."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: list[Finding] = []
        self._over: asyncio.Future[None] | None = None

    async def findings(self, within_s: float = _DEADLINE_S) -> list[Finding]:
        """Everything that was found; at the deadline what was found until then, and that as a
        fault. The checks then go on, and the next who asks gets theirs.
        """
        if self._over is None or self._over.done():
            self._over, self._found = asyncio.get_running_loop().create_future(), []
            # A daemon, for a check that hangs must not hold up the end of the process.
            args = (self._settings, self._found, self._over)
            threading.Thread(target=_check, args=args, daemon=True).start()
        over, found = self._over, self._found
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(over)
        except TimeoutError:
            return [*found, trouble("checks_unfinished", within=f"{within_s:g}")]
        return found


def _check(settings: Settings, found: list[Finding], over: asyncio.Future[None]) -> None:
    error: Exception | None = None
    try:
        for finding in findings(settings):
            found.append(finding)  # seen by who cannot wait for all
    except Exception as exc:  # told to those who asked
        error = exc

    def tell() -> None:
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop has ended
        over.get_loop().call_soon_threadsafe(tell)

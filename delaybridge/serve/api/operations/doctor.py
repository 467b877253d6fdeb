"""The checks of `delaybridge doctor` over HTTP: Redis, brokers, clock, workers, settings."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

import msgspec

from delaybridge.errors import printable
from delaybridge.operate.doctor.finding import FAIL, Finding
from delaybridge.operate.doctor.findings import findings
from delaybridge.serve.http.endpoint import Call, Endpoint, Reply, Scope
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import redact_text

_DEADLINE_S = 30.0


class CheckedItem(msgspec.Struct):
    """level: ok, warn or fail. about: what was checked, as `redis`. text: the fact or the fault.

    remedy: what to change; may be empty.
    """

    level: str
    about: str
    text: str
    remedy: str


class CheckedList(msgspec.Struct):
    """failed: how many of the items are of the level fail."""

    items: list[CheckedItem]
    failed: int


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
            what = f"not everything was checked within {within_s:g} s"
            return [*found, Finding(FAIL, "checks", what, "Ask again, or run: delaybridge doctor")]
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


def checked(found: Sequence[Finding]) -> CheckedList:
    """The findings as they are shown, without secrets."""
    items = [CheckedItem(each.level.lower(), *map(_shown, each[1:])) for each in found]
    return CheckedList(items, sum(each.level == FAIL for each in found))


def _shown(text: str) -> str:
    return printable(redact_text(text))


async def checks(call: Call) -> Reply:
    """What `delaybridge doctor` prints, as this server sees it.

    It tries scripts on a bucket of their own, which is removed, and connects to every broker. The
    answer has what was found within 30 seconds.
    """
    return Reply(checked(await call.site.doctor.findings()))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/checks", scope=Scope.ADMIN, handler=checks,
        summary="Check everything a deployment needs", answers={200: CheckedList},
    ),
)  # fmt: skip

"""The checks of `delaybridge doctor` over HTTP: Redis, brokers, clock, workers, settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from delaybridge.client.verbs import Scope
from delaybridge.errors import printable
from delaybridge.operate.doctor.finding import FAIL, Finding
from delaybridge.serve.http.routes import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.settings.urls import redact_text

routes = Routes()


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


def checked(found: Sequence[Finding]) -> CheckedList:
    """The findings as they are shown, without secrets."""
    items = [CheckedItem(each.level.lower(), *map(_shown, each[1:])) for each in found]
    return CheckedList(items, sum(each.level == FAIL for each in found))


def _shown(text: str) -> str:
    return printable(redact_text(text))


@routes(
    "GET /v1/checks", "Check everything a deployment needs", scope=Scope.ADMIN,
    answer=CheckedList,
)  # fmt: skip
async def checks(call: Call) -> Any:
    """What `delaybridge doctor` prints, as this server sees it.

    It tries scripts on a bucket of their own, which is removed, and connects to every broker. The
    answer has what was found within 30 seconds.
    """
    return checked(await call.site.doctor.findings())

"""What a deployment is made of: its settings, without secrets, its Redis, and the checks of all."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.errors import printable
from delaybridge.operate.troubles.finding import FAIL, Finding
from delaybridge.operate.views.described import plain
from delaybridge.operate.views.facts import StoreFacts, read_facts
from delaybridge.serve.api.description.openapi import object_of
from delaybridge.serve.http.endpoint import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import redact_text

_LIBRARIES = ("redis", "hiredis", "pika", "confluent-kafka", "starlette", "uvicorn", "sqlalchemy")
routes = Routes()


class SettingState(msgspec.Struct):
    """name: its key path. value: as in the settings file, passwords masked. source: a flag, a
    variable, a file or `default`. variable: what sets it in the environment."""

    name: str
    value: Any
    source: str
    variable: str


class SettingList(msgspec.Struct):
    """cautions: settings that are accepted but risky. build: versions by name."""

    items: list[SettingState]
    cautions: list[str]
    build: dict[str, str]


def settings_in_force(settings: Settings) -> SettingList:
    """All settings, those without a section first."""
    origin = settings.sources()
    items = [
        # A URL as text masks its password.
        SettingState(
            path, str(value) if isinstance(value, str) else value, origin[path], variable_of(path)
        )
        for path, value in settings.items()
    ]
    return SettingList(items, settings.cautions(), build())


def variable_of(path: str) -> str:
    """The variable of a setting: `DELAYBRIDGE_LEASE__TTL_MS` for `lease.ttl_ms`."""
    return f"DELAYBRIDGE_{path.replace('.', '__').upper()}"


def build() -> dict[str, str]:
    """Versions of this package, of Python and of the clients that are installed."""
    found = {"delaybridge": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@routes("GET /v1/settings", "List the settings in force", scope=Scope.ADMIN, is_safe=True)
async def settings(call: Call) -> SettingList:
    """The settings of this server, where each came from, and versions."""
    return settings_in_force(call.site.settings)


class CheckedItem(msgspec.Struct):
    """level: ok, warn or fail. about: what was checked, as `redis`. text: the fact or the fault.

    remedy: what to change; may be empty. code: of docs/troubleshooting.md; empty: all is well.
    """

    level: str
    about: str
    text: str
    remedy: str
    code: str = ""


class CheckedList(msgspec.Struct):
    """failed: how many of the items are of the level fail."""

    items: list[CheckedItem]
    failed: int


def checked(found: Sequence[Finding]) -> CheckedList:
    """The findings as they are shown, without secrets."""
    items = [
        CheckedItem(f.level.lower(), f.about, _shown(f.what), _shown(f.remedy), f.code)
        for f in found
    ]
    return CheckedList(items, sum(each.level == FAIL for each in found))


def _shown(text: str) -> str:
    return printable(redact_text(text))


@routes("GET /v1/checks", "Check everything a deployment needs", scope=Scope.ADMIN)
async def checks(call: Call) -> CheckedList:
    """What `delaybridge doctor` prints, as this server sees it.

    It tries scripts on a bucket of their own, which is removed, and connects to every broker. The
    answer has what was found within 30 seconds.
    """
    return checked(await call.site.doctor.findings())


async def facts_of(call: Call) -> StoreFacts:
    """The facts, with one look at Redis."""
    return await call.site.client.run(read_facts)


@routes("GET /v1/store", "Show what Redis is", answer=object_of(StoreFacts))
async def store(call: Call) -> Any:
    """Version, memory, persistence and replicas of each server; entries of our keys."""
    return plain(await facts_of(call))

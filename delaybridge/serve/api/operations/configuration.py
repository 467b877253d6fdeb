"""The settings in force, without secrets, and what this process is made of."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from delaybridge import __version__
from delaybridge.client.verbs import Scope
from delaybridge.serve.http.routes import Routes
from delaybridge.serve.shared.call import Call
from delaybridge.settings.settings import Settings

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
    """`DELAYBRIDGE_LEASE__TTL_MS` for `lease.ttl_ms`."""
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


@routes(
    "GET /v1/settings", "List the settings in force", scope=Scope.ADMIN, is_safe=True,
    answer=SettingList,
)  # fmt: skip
async def settings(call: Call) -> Any:
    """The settings of this server, where each came from, and versions."""
    return settings_in_force(call.site.settings)

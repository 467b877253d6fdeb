"""The HTTP API and the console: a table of endpoints, each answered by a function of a call.

Rooms from the lowest to the highest: stored, http, access, shared, api, console, dialects, server.
`shared/application.py` finds the endpoint of a request, checks access and reads it;
`server/table.py` lists all endpoints. Every answer of the API is JSON, every error a problem of
RFC 9457.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delaybridge.errors import ConfigError

if TYPE_CHECKING:
    from delaybridge.serve.server.mounting import MountedApp
    from delaybridge.settings.settings import Settings

__all__ = ["app"]


def app(settings: Settings | None = None, *, trusted: bool = False) -> MountedApp:
    """The API and the console as an ASGI application, to be mounted in another one.

    settings: by default those of the environment and the settings file. trusted: without tokens
    whoever reaches it may do everything; True says that your application checks who asks.
    ConfigError: neither tokens nor `trusted`; or the extra `web` is not installed.
    """
    from delaybridge.settings.settings import Settings

    try:
        from delaybridge.serve.server.mounting import MountedApp
    except ModuleNotFoundError as exc:
        raise ConfigError(f'HTTP needs {exc.name}: pip install "delaybridge[web]"') from exc

    return MountedApp(settings or Settings.load(), trusted=trusted)

"""The HTTP API and the console: a table of endpoints, each answered by a function of a call.

`application.py` finds the endpoint, checks access and reads the request; `table.py` lists them.
Every answer of the API is JSON, every error a problem of RFC 9457.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delaybridge.serve.server.mounting import MountedApp
    from delaybridge.settings.settings import Settings

__all__ = ["app"]


def app(settings: Settings | None = None, *, trusted: bool = False) -> MountedApp:
    """The API and the console as an ASGI application, to be mounted in another one.

    settings: by default those of the environment and the settings file. trusted: without tokens
    everybody who reaches it may do everything; True says that your application checks who asks.
    ConfigError: neither tokens nor `trusted`.
    """
    from delaybridge.serve.server.mounting import MountedApp
    from delaybridge.settings.settings import Settings

    return MountedApp(settings or Settings.load(), trusted=trusted)

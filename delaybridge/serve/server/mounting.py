"""The API and the console as a part of another ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import quote, unquote

from starlette.types import Receive, Scope, Send

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import ConfigError
from delaybridge.serve.http.disconnect import Ending
from delaybridge.serve.server.serving import (
    answering_within,
    api_of,
    console_snapshots,
    dialect_endpoints,
    site_of,
)
from delaybridge.serve.shared.application import App
from delaybridge.serve.shared.site import Site
from delaybridge.settings.settings import Settings

_REDIS_S = 1.8
_PATH_BYTES = "/:@!$&'()*+,;=-._~"


class MountedApp:
    """An ASGI application for any server and any path. See `delaybridge.serve.app`.

    It opens its connections at the first request, on the loop of that request, and closes them when
    the lifespan ends, or with `aclose`.
    """

    def __init__(self, settings: Settings, *, trusted: bool) -> None:
        """ConfigError: nothing says who may use it."""
        if not (settings.serve.token_file or trusted):
            what = "whoever reaches your application could do everything: give serve.token_file, "
            raise ConfigError(f"serve.token_file: {what}or trusted=True if you check who asks")
        dialect_endpoints(settings)  # ConfigError now, not at the first request
        self._given, self._settings = settings, answering_within(settings, _REDIS_S)
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()
        self._app: App | None = None
        self._site: Site | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; or take part in the lifespan, if the host has one for it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            app = await self._ready()
            connection = _Connection(receive)
            extensions = {**(scope.get("extensions") or {}), "connection": connection}
            try:
                await app({**scope, **_within(scope), "extensions": extensions}, receive, send)
            finally:
                connection.close()

    async def aclose(self) -> None:
        """Close all connections; for hosts that do not run the lifespan of what they mount."""
        self._app = None
        await self._open.aclose()

    @property
    def site(self) -> Site | None:
        """What its requests share; None before the first one."""
        return self._site

    async def _ready(self) -> App:
        async with self._opening:
            if self._app is None:
                client = AsyncClient.from_settings(self._settings)
                await self._open.enter_async_context(client)
                site = site_of(self._settings, client, console_snapshots(self._given))
                self._site = site
                self._open.push_async_callback(site.close)
                self._open.push_async_callback(site.drain)
                self._app = api_of(site)
            return self._app

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                await self.aclose()
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


def _within(scope: Scope) -> dict[str, Any]:
    """The path below the one where it is mounted, as it was sent."""
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path") or quote(scope["path"], safe=_PATH_BYTES).encode()
    path = raw.decode("ascii", "replace").partition("?")[0]
    parts, depth = path.split("/"), root.count("/") + 1
    if unquote("/".join(parts[:depth])) == root:  # some hosts take it off themselves
        path = "/" + "/".join(parts[depth:])
    # What a page links to is a path as it is sent, too.
    return {"root_path": quote(root, safe=_PATH_BYTES), "raw_path": path.encode("ascii", "replace")}


class _Connection(dict[str, Ending]):
    """The `ending` of one connection, for whoever waits on it.

    Servers tell the end to whoever receives after the body, so that a task does once an application
    asks for the ending. It has read the body then, or wants none.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._listening: asyncio.Task[None] | None = None

    def __missing__(self, key: str) -> Ending:
        self[key] = ending = Ending()
        self._listening = asyncio.create_task(self._listen(ending))
        return ending

    async def _listen(self, ending: Ending) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # the body of a request that has none for us
        ending.end()

    def close(self) -> None:
        """Stop listening: the request is answered."""
        if self._listening is not None:
            self._listening.cancel()

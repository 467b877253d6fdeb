"""Serving: a process that answers on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from ipaddress import ip_address

import uvicorn

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import ConfigError
from delaybridge.settings.settings import Settings
from delaybridge.web.access import Access, tokens_of
from delaybridge.web.app import App
from delaybridge.web.site import Site
from delaybridge.web.table import ENDPOINTS
from delaybridge.worker.eventlog import say
from delaybridge.worker.service import loop_factory

_BACKLOG = 2048
_DRAIN_S = 20


def serve(settings: Settings) -> None:
    """Answer until SIGTERM or Ctrl-C. ConfigError: the port or the tokens cannot be used."""
    access = Access(tokens_of(settings.serve.token_file), read_only=settings.serve.read_only)
    host = settings.serve.host
    if not settings.serve.token_file and not _is_loopback(host):
        what = "whoever reaches it could do everything; give serve.token_file, or use 127.0.0.1"
        raise ConfigError(f"serve.host: {host}: {what}")
    with listener(host, settings.serve.port) as sock:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{sock.getsockname()[1]}{settings.serve.base_path}"
        say(logging.INFO, "serving", url=url)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(answer_on(sock, settings, access))


async def answer_on(sock: socket.socket, settings: Settings, access: Access) -> None:
    """Answer on a listening socket until SIGTERM or SIGINT, or until this is cancelled."""
    async with AsyncClient.from_settings(settings) as client:
        site = Site(settings, client)
        app = App(site, access, ENDPOINTS)
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        try:
            await uvicorn.Server(config).serve(sockets=[sock])
        finally:
            await site.close()


def listener(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if there can be none."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as exc:
        code = exc.errno if isinstance(exc, OSError) else None
        if code == errno.EADDRINUSE:
            what = f"serve.port: {port} on {host} is in use; choose another, or 0 for any"
        else:
            what = f"serve.host: cannot listen on {host}, port {port}: {exc}"
        raise ConfigError(what) from None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""Serving: a process that answers on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from types import FrameType

import uvicorn

from delaybridge.client.async_client import AsyncClient
from delaybridge.errors import ConfigError
from delaybridge.extensions import DIALECTS, check_dialect, load
from delaybridge.ledger.sql.opening import open_ledger
from delaybridge.serve.access.access import Access
from delaybridge.serve.console.screens.pages import NO_PAGE
from delaybridge.serve.console.snapshot import Snapshots
from delaybridge.serve.dialects.dialect import Dialect
from delaybridge.serve.http.endpoint import Endpoint
from delaybridge.serve.http.transport import bounded, sweep
from delaybridge.serve.server.capacity import capacity, within_open_files
from delaybridge.serve.server.processes import serve_together
from delaybridge.serve.server.table import ENDPOINTS
from delaybridge.serve.shared.application import App
from delaybridge.serve.shared.doctor import Doctor
from delaybridge.serve.shared.event_fanout import EventHub, ReadyHub
from delaybridge.serve.shared.seats import Seats
from delaybridge.serve.shared.site import Site
from delaybridge.settings.durability import Keeping
from delaybridge.settings.settings import Settings
from delaybridge.worker.eventlog import say
from delaybridge.worker.listening import listening
from delaybridge.worker.open_files import open_files
from delaybridge.worker.open_namespace import check_ledger
from delaybridge.worker.service import collect_seldom, loop_factory

_BACKLOG = 2048
_DRAIN_S = 20
_KEEP_ALIVE_S = 60
_REDIS_S, _PAGE_S = 1.8, 5.0
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]", "")  # "": HTTP/1.0


def serve(settings: Settings, prepare: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C. prepare: sets up the log of a process; it is pickled.

    ConfigError: the port or the tokens cannot be used, or the ledger's tables.
    """
    Access(settings)
    dialect_endpoints(settings)
    _check_ledger(settings)
    host = settings.serve.host
    settings = within_open_files(settings)
    with listener(host, settings.serve.port) as sock:
        # What a name stands for is known only now.
        if not settings.serve.token_file and not ip_address(sock.getsockname()[0]).is_loopback:
            what = "whoever reaches it could do everything; give serve.token_file, or use 127.0.0.1"
            raise ConfigError(f"serve.host: {host}: {what}")
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{sock.getsockname()[1]}{settings.serve.base_path}"
        say(logging.INFO, "serving", url=url, processes=settings.serve.processes)
        one = partial(serve_on, settings, prepare)
        if settings.serve.processes == 1:
            one(sock)
        else:
            serve_together(sock, settings.serve.processes, one)


def _check_ledger(settings: Settings) -> None:
    if settings.kept.mode is Keeping.LEDGER:
        ledger = open_ledger(settings.ledger.url, timeout_s=settings.redis.timeout_s)
        try:
            asyncio.run(check_ledger(ledger))
        finally:
            ledger.close()


def serve_on(settings: Settings, prepare: Callable[[], None], sock: socket.socket) -> None:
    """As `serve`, on a socket that listens, in a process that does nothing else."""
    prepare()
    collect_seldom()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(answer_on(sock, settings, again=True))


async def answer_on(
    sock: socket.socket,
    settings: Settings,
    *,
    redis_s: float = _REDIS_S,
    again: bool = False,
    **limits: float,
) -> None:
    """Answer on a listening socket until SIGTERM or SIGINT, or until this is cancelled.

    redis_s: the longest that a request waits for Redis. again: as of `TokenFile`. limits: of
    `transport.bounded`.
    """
    snapshots, settings = (
        console_snapshots(settings),
        answering_within(_within_host(settings), redis_s),
    )
    async with AsyncClient.from_settings(settings) as client:
        site = site_of(settings, client, snapshots, again=again)
        config = uvicorn.Config(
            api_of(site),
            http=bounded(settings.serve.connections, **limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_DRAIN_S,
            backlog=capacity(settings.serve.connections, open_files()).backlog,
        )
        server = SiteServer(config, site)
        sweeping = asyncio.create_task(sweep(server.server_state.connections))
        try:
            await server.serve(sockets=[sock])
        except asyncio.CancelledError:
            if server.started:  # uvicorn would leave the socket with the loop
                server.force_exit = True
                await server.shutdown([sock])
            raise
        finally:
            sweeping.cancel()
            await site.drain()
            await site.close()


def console_snapshots(settings: Settings) -> Snapshots:
    """For the console, which rather shows a slow Redis' numbers late than none."""
    return Snapshots(AsyncClient.from_settings(answering_within(settings, _PAGE_S)), settings)


def site_of(
    settings: Settings, client: AsyncClient, snapshots: Snapshots, *, again: bool = False
) -> Site:
    """What all requests share. ConfigError: the tokens cannot be used. again: as of `TokenFile`."""
    hubs = EventHub(settings), ReadyHub(settings)
    access = Access(settings, again=again)
    seats = Seats(settings.serve.connections)
    return Site(settings, client, *hubs, seats, access, snapshots, Doctor(settings))


def api_of(site: Site) -> App:
    """The application with all endpoints."""
    return App(site, (*ENDPOINTS, *dialect_endpoints(site.settings)), NO_PAGE)


def dialect_endpoints(settings: Settings) -> Sequence[Endpoint]:
    """Those of the dialect that serve.compat names; ConfigError if no package has it."""
    name = settings.serve.compat
    if not name:
        return ()
    check_dialect(name)
    found: Dialect = load(DIALECTS, name)
    return found.endpoints


def answering_within(settings: Settings, redis_s: float) -> Settings:
    """The same, but no request waits longer for Redis than clients wait for us."""
    timeout_s = min(settings.redis.timeout_s, redis_s)
    redis = settings.redis.model_copy(update={"timeout_s": timeout_s})
    return settings.model_copy(update={"redis": redis})


def _within_host(settings: Settings) -> Settings:
    """Without tokens it has the names of this host only: a page of another site may have its own
    name lead here, and then it is of the same origin."""
    serve = settings.serve
    if serve.token_file or serve.allowed_hosts:
        return settings
    return settings.model_copy(
        update={"serve": serve.model_copy(update={"allowed_hosts": (*_OWN_NAMES, serve.host)})}
    )


class SiteServer(uvicorn.Server):
    """Tells the site that it stops, so that streams end and the process can."""

    def __init__(self, config: uvicorn.Config, site: Site) -> None:
        super().__init__(config)
        self._site = site

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; at once if it is told a second time. The exit code of both is 0."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end what only waits, answer what is under way."""
        await self._site.drain()
        await super().shutdown(sockets)


def listener(host: str, port: int) -> socket.socket:
    """A listening socket; ConfigError if there can be none."""
    sock = listening("serve", host, port, backlog=_BACKLOG, zero="any")
    # Accepted sockets inherit it. asyncio sets it only where the protocol is named, and an answer
    # in two writes would wait 40 ms for the client's acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock

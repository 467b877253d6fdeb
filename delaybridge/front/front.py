"""The front process: a proxy of AMQP 0-9-1 that accepts delayed exchanges."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from pika.connection import Parameters

from delaybridge.errors import ConfigError, StoreError
from delaybridge.front.announcing import announce, leave, probe
from delaybridge.front.counts import FrontCounts
from delaybridge.front.link import Refused
from delaybridge.front.opening import Node, Nodes, Opening, nodes_of
from delaybridge.front.relay import Relay
from delaybridge.front.vhost import Vhost
from delaybridge.ingest import fronted
from delaybridge.ingest.routes import Route
from delaybridge.publish import PublishOptions
from delaybridge.publish.rabbitmq.publisher import parameters_of
from delaybridge.settings.entrances import FrontSettings
from delaybridge.settings.settings import Settings
from delaybridge.settings.urls import kinds_of
from delaybridge.store.redis.store import AsyncStore
from delaybridge.worker.eventlog import say
from delaybridge.worker.open_files import open_files, raise_open_files
from delaybridge.worker.parts import MakeParts, Part, no_parts
from delaybridge.worker.service import Identity, OnReport, ProcessReport, Service, end, run

_log = logging.getLogger("delaybridge")
_LOOK_S = 5.0  # between two looks for delayed exchanges that RabbitMQ has half deleted
_AGAIN_S = 1.0  # before an exchange is put on the namespace's list again, while Redis is away
_GOODBYE_S = 3.0  # that clients have to answer a connection.close
_BACKLOG = 1024
_FILES_EACH, _OTHER_FILES = 2, 100  # sockets of a client, and all else


class FrontProcess(Service):
    """The work of one front process, from start to drained. listen: its address.

    vhosts: its own side of each vhost by name.
    """

    left_behind = "clients lose their connections"

    def __init__(self, settings: Settings, identity: Identity, parts: Sequence[Part] = ()) -> None:
        """ConfigError if the settings name no broker to stand before."""
        super().__init__(parts)
        self.settings, self.all_settings, self.identity = settings.front, settings, identity
        self.listen = self.settings.listen
        self.counts = FrontCounts(self.emit)
        broker, of_vhosts = brokers_of(settings)
        self.nodes = Nodes(broker, self.settings.nodes, self.counts)
        self.vhosts = {
            name: Vhost(of, parameters, self.settings, self._enlist, self.nodes.listed)
            for name, (of, parameters) in of_vhosts.items()
        }
        raise_open_files(_FILES_EACH * self.settings.connections + _OTHER_FILES)
        files = max((open_files() - _OTHER_FILES) // _FILES_EACH, 1)
        self._most = min(self.settings.connections, files)
        self._relays: set[Relay] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unlisted: dict[Route, None] = {}  # not on the namespace's list yet
        self._more = asyncio.Event()
        self._gone = asyncio.Event()

    async def work(self) -> None:
        """Relay until stopped, then drain."""
        server = await self._listen()
        self.listen = str(Node(*server.sockets[0].getsockname()[:2]))
        say(logging.INFO, "front_started", listen=self.listen, pid=os.getpid())
        store = AsyncStore(self.all_settings.redis.url, timeout_s=self.all_settings.redis.timeout_s)
        beside = (
            self._keep_list(store), self._keep_looking(), announce(self, store), probe(self),
        )  # fmt: skip
        work = [asyncio.create_task(each) for each in beside]
        try:
            await self.stopping.wait()
            server.close()
            await self._drain()
        finally:
            for relay in list(self._relays):
                relay.abort()
            await end([*work, *self._tasks])
            await leave(self, store)
            await store.close()
            for vhost in self.vhosts.values():
                await vhost.close()
            self.emit.flush()

    def report(self) -> ProcessReport:
        """Its totals, its connections, and the state of the broker's nodes."""
        return self.counts.report(super().report())

    # what relays and openings ask

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside the connections; it ends with the process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def is_full(self) -> bool:
        """Whether as many clients are connected as may be."""
        return len(self.counts.connections) >= self._most

    def began(self, relay: Relay) -> None:
        """A relay passes on from now on."""
        self._relays.add(relay)
        relay.shown.sides = relay.client, relay.broker

    def ended(self, relay: Relay) -> None:
        """Both sockets of a relay are closed, or closing. Safe to call twice."""
        self._relays.discard(relay)
        self.counts.closed(relay.shown)
        if not self._relays:
            self._gone.set()

    # beside them

    async def _listen(self) -> asyncio.Server:
        """Listen together with other fronts; ConfigError."""
        host, _, port = self.settings.listen.rpartition(":")
        tls, loop = tls_of(self.settings), asyncio.get_running_loop()
        about: dict[str, Any] = {"reuse_port": True, "backlog": _BACKLOG, "ssl": tls}
        try:
            return await loop.create_server(
                lambda: Opening(self), host.strip("[]") or "127.0.0.1", int(port), **about
            )
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"front.listen: {self.settings.listen}: {exc}; choose another address"
            ) from None

    async def _drain(self) -> None:
        """Let clients leave; then close what is left as a broker does that is being stopped."""
        for timeout_s, then in ((self.settings.drain_timeout_s, True), (_GOODBYE_S, False)):
            self._gone.clear()
            if not self._relays:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._gone.wait()
            if then:
                for relay in list(self._relays):
                    relay.shut_down()

    def _enlist(self, route: Route) -> None:
        self._unlisted[route] = None
        self._more.set()

    async def _keep_list(self, store: AsyncStore) -> None:
        """Put exchanges on the namespace's list; as long as Redis does not answer, try again."""
        while True:
            await self._more.wait()
            self._more.clear()
            for route in list(self._unlisted):
                try:
                    await store.run(fronted.enlist(self.all_settings.namespace, route))
                except StoreError as exc:
                    _log.debug("%s is not on the list yet: %s", route, exc)
                    await asyncio.sleep(_AGAIN_S)
                    self._more.set()
                    break
                self._unlisted.pop(route)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for vhost in self.vhosts.values():
                try:
                    await vhost.remove_orphans()
                except Refused as exc:
                    _log.debug("looking for exchanges that are gone: %s", exc)


def brokers_of(settings: Settings) -> tuple[Parameters, dict[str, tuple[str, Parameters]]]:
    """The broker that the front stands before, and all of `[brokers]` that are the same server.

    These by vhost, with their names. ConfigError if it is not clear which is meant.
    """
    kinds = kinds_of(settings.brokers)
    known = [name for name, kind in kinds.items() if kind == "rabbitmq"]
    name = settings.front.broker or (known[0] if len(known) == 1 else "rabbitmq")
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ConfigError(
            f"front.broker: which broker? Of kind rabbitmq are configured: {listed}; name one "
            "with --broker NAME, or add it to [brokers]"
        )
    options = PublishOptions.from_settings(settings.publish, settings.http)
    found = {each: parameters_of(each, settings.brokers[each], options) for each in known}
    first = found[name]
    nodes = {(first.host, first.port), *nodes_of(settings.front.nodes, first.host, first.port)}
    same = {each: of for each, of in found.items() if (of.host, of.port) in nodes}
    by_vhost = {of.virtual_host: (each, of) for each, of in reversed(same.items())}
    return first, by_vhost | {first.virtual_host: (name, first)}


def tls_of(front: FrontSettings) -> ssl.SSLContext | None:
    """TLS towards clients, if there is a certificate; ConfigError if it cannot be used."""
    if not (front.tls_cert_file or front.tls_key_file):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(front.tls_cert_file, front.tls_key_file or None)
    except (OSError, ssl.SSLError) as exc:
        named = f"front.tls_cert_file ({front.tls_cert_file}), tls_key_file ({front.tls_key_file})"
        raise ConfigError(f"{named}: {exc}; both must be PEM files") from None
    return context


def run_front(
    settings: Settings,
    *,
    parts: MakeParts = no_parts,
    name: str | None = None,
    ignore: Iterable[signal.Signals] = (),
    on_start: Callable[[Identity], None] = lambda identity: None,
    on_report: OnReport | None = None,
) -> None:
    """Relay in this process until SIGTERM or Ctrl-C, then drain; a second one ends it at once."""
    identity = Identity.of_this_process(name)
    on_start(identity)
    service = FrontProcess(settings, identity, parts(settings, identity))
    run(service, ignore=ignore, on_report=on_report)

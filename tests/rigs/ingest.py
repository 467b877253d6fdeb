"""An ingest process and a worker on this test's own loop, between real servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge import AsyncClient
from delaybridge.ingest.process import Ingester, routes_of
from delaybridge.operate.notices.announcements import SourceInfo
from delaybridge.operate.parts.lists import ingest_parts, worker_parts
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol.stored import Stored
from delaybridge.worker.service import Identity, Service
from delaybridge.worker.worker import Worker
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, ended, stopped, until_async


class Entrance(AbstractAsyncContextManager):
    """The parts between a producer and a consumer: ingest, the store and, on request, a worker."""

    def __init__(
        self, redis_url: str, namespace: str, brokers: dict[str, str], **ingest: Any
    ) -> None:
        """ingest: settings of that section; limits, retry and lease: of those. share:
        the tenants."""
        limits, retry = ingest.pop("limits", {}), ingest.pop("retry", {})
        share = ingest.pop("share", ())
        lease = ingest.pop("lease", {"ttl_ms": 15_000, "renew_ms": 300})
        self.settings = Settings.load(
            None,
            {
                "redis": {"url": redis_url, "timeout_s": 10.0},  # a busy machine is no fault
                "namespace": namespace,
                "brokers": brokers,
                "buckets": 4,
                "tenants": list(share),
                "ingest": ingest,
                "limits": limits,
                "retry": retry,
                "lease": lease,
            },
            environ={},
        )
        patient = self.settings.redis.model_copy(update={"timeout_s": PATIENCE_S})
        self.client = AsyncClient.from_settings(self.settings.model_copy(update={"redis": patient}))
        self._services: dict[asyncio.Task[None], Service] = {}

    async def __aexit__(self, *exc: object) -> None:
        await self.stop_all()
        await self.client.close()

    def ingest(self, *kinds: str) -> asyncio.Task[None]:
        routes = routes_of(self.settings, kinds)
        who = _someone()
        parts = ingest_parts(self.settings, who)
        return self._start(Ingester(self.settings, who, routes, parts=parts))

    def scan(self) -> asyncio.Task[None]:
        who = _someone()
        return self._start(Worker(self.settings, who, worker_parts(self.settings, who)))

    def _start(self, service: Service) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(service.work())
        self._services[task] = service
        return task

    def ingest_of(self, task: asyncio.Task[None], broker: str = "rabbitmq") -> Any:
        """What that ingest process has for one broker."""
        service: Any = self._services[task]
        return service._ingests[broker]

    async def stop_all(self) -> None:
        for task in list(self._services):
            await self.stop(task)

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Stop it as SIGTERM would, and wait until it has ended."""
        service = self._services.pop(task)
        service.stopping.set()
        await stopped(task)

    async def kill(self, task: asyncio.Task[None]) -> None:
        """End it at once, whatever it is doing."""
        del self._services[task]
        await ended(task)

    async def delayed(self) -> list[Stored]:
        return (await self.client.pending(limit=1000)).items

    async def dead(self) -> list[Stored]:
        return (await self.client.dead(limit=1000)).items

    async def until_delayed(self, count: int) -> None:
        async def are() -> bool:
            return len(await self.delayed()) == count

        await self.until(are, f"{count} messages pending")

    async def until_stored(self, count: int) -> None:
        """Wait until the store holds this number of messages; it must never hold more."""

        async def are() -> bool:
            found = (await self.client.stats()).delayed
            assert found <= count, "stored twice"
            return found == count

        await self.until(are, f"{count} stored")

    async def until_dead(self, count: int) -> None:
        async def are() -> bool:
            return len(await self.dead()) == count

        await self.until(are, f"{count} messages quarantined")

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition (a coroutine function or a plain one) to become true."""

        async def is_so() -> Any:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            for task in () if found else self._services:
                if task.done():
                    task.result()  # raises what ended it
            return found

        return await until_async(is_so, what)


MakeEntrance = Callable[..., Entrance]


async def source(entrance: Entrance, name: str, state: str = "") -> SourceInfo | None:
    """What an ingest process announces of a topic or exchange, in a state that begins like this."""
    ingests = (await entrance.client.stats()).ingests
    found = (s for ingest in ingests for s in ingest.sources if s.source.endswith(f":{name}"))
    return next((each for each in found if each.state.startswith(state)), None)


async def announced(entrance: Entrance, name: str, *counts: int) -> SourceInfo:
    """What is announced of a source, once it is, and it has read and quarantined so many, if given.

    A process that waits for the machine may be missing from the announcements for a while.
    """

    async def look() -> SourceInfo | None:
        found = await source(entrance, name)
        is_it = found and (not counts or (found.total, found.quarantined) == counts)
        return found if is_it else None

    found: SourceInfo = await entrance.until(look, f"{name} is announced")
    return found


def _someone() -> Identity:
    return Identity.of_this_process(f"p{uuid.uuid4().hex[:8]}")


class Rabbit:
    """A plain pika producer and consumer; each call has a thread and a connection of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: list[tuple[str, str]] = []

    async def do(self, work: Callable[[BlockingChannel], Any]) -> Any:
        def run() -> Any:
            connection = pika.BlockingConnection(pika.URLParameters(self.url))
            try:
                return work(connection.channel())
            finally:
                if connection.is_open:
                    connection.close()

        return await asyncio.to_thread(run)

    async def target(self, name: str, type: str = "topic", **arguments: Any) -> str:
        """An exchange and a quorum queue of one name; the queue gets every message."""

        def declare(channel: BlockingChannel) -> None:
            channel.exchange_declare(name, type, durable=True)
            channel.queue_declare(
                name, durable=True, arguments={"x-queue-type": "quorum", **arguments}
            )
            channel.queue_bind(name, name, "#")

        await self.do(declare)
        return name

    async def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"body",
        headers: dict[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Publish with a confirm, mandatory."""
        described = pika.BasicProperties(headers=headers, **properties)

        def send(channel: BlockingChannel) -> None:
            channel.confirm_delivery()
            channel.basic_publish(exchange, key, body, described, mandatory=True)

        await self.do(send)

    async def take(self, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
        """Consume and acknowledge this many messages: (method, properties, body) of each."""

        def receive(channel: BlockingChannel) -> list[tuple[Any, Any, bytes]]:
            found = []
            for method, properties, body in channel.consume(queue, inactivity_timeout=DEADLINE_S):
                if method is None:
                    break
                channel.basic_ack(method.delivery_tag)
                found.append((method, properties, body))
                if len(found) == count:
                    break
            return found

        taken: list[tuple[Any, Any, bytes]] = await self.do(receive)
        assert len(taken) == count, f"only {len(taken)} of {count} came to {queue}"
        return taken

    async def is_read(self, exchange: str) -> bool:
        """Whether the queue of this name has a consumer: by then a delay exchange is bound."""

        def look(channel: BlockingChannel) -> bool:
            try:
                declared = channel.queue_declare(exchange, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
            return int(declared.method.consumer_count) > 0

        return bool(await self.do(look))

    async def waiting(self, queue: str) -> int:
        def look(channel: BlockingChannel) -> int:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

        return int(await self.do(look))

"""A front in the test's own process, and a client of it that sends what methods it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pika
from pika import frame, spec

from delaybridge.front.front import FrontProcess
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import Identity
from tests.rigs.waiting import DEADLINE_S, stopped
from tests.servers.process import LOOPBACK, free_port

NO_REDIS = "redis://127.0.0.1:1/0"  # no declare and no publish needs it
Exchange, Queue, Basic = spec.Exchange, spec.Queue, spec.Basic
DELAYED = "x-delayed-message"


def declare(exchange: str, type: Any = "direct", **about: Any) -> Any:
    """The declare of a delayed exchange as clients send it."""
    arguments = about.pop("arguments", {}) | ({} if type is None else {"x-delayed-type": type})
    return Exchange.Declare(
        exchange=exchange, type=DELAYED, arguments=arguments, **{"durable": True} | about
    )


class RawClient:
    """A connection whose channels are open: sends methods as they are, and takes what comes."""

    def __init__(self, url: str) -> None:
        self.parts = urlsplit(url)
        self._data = b""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self, channels: int = 1) -> None:
        parts = self.parts
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        assert isinstance(await self.taken(), spec.Connection.Start)
        login = f"\0{parts.username}\0{parts.password}"
        self.send(spec.Connection.StartOk({}, "PLAIN", login, "en_US"), channel=0)
        tune = await self.taken()
        self.send(
            spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0),
            spec.Connection.Open(unquote(parts.path[1:]) or "/"),
            channel=0,
        )
        opened = await self.taken()
        assert isinstance(opened, spec.Connection.OpenOk), opened
        for number in range(1, channels + 1):
            await self.ask(spec.Channel.Open(), channel=number)

    def send(self, *methods: Any, channel: int = 1) -> None:
        """All in one write."""
        self._writer.write(b"".join(self.encoded(each, channel) for each in methods))

    @staticmethod
    def encoded(method: Any, channel: int = 1) -> bytes:
        """A method, or what `message` made, as frames."""
        if isinstance(method, bytes):
            return method
        return bytes(frame.Method(channel, method).marshal())

    @staticmethod
    def message(exchange: str, key: str, mandatory: bool = False, **headers: Any) -> bytes:
        """A publish with its content, on channel 1."""
        publish = Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
        properties = pika.BasicProperties(headers=headers)
        parts = frame.Method(1, publish), frame.Header(1, 1, properties), frame.Body(1, b"x")
        return b"".join(part.marshal() for part in parts)

    async def frame(self) -> Any:
        """The next frame that is no heartbeat."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                size, found = frame.decode_frame(self._data)
                if found is None:
                    more = await self._reader.read(65536)
                    assert more, "the connection was closed"
                    self._data += more
                    continue
                self._data = self._data[size:]
                if not isinstance(found, frame.Heartbeat):
                    return found

    async def taken(self) -> Any:
        """The next method; content is left out."""
        while True:
            found = await self.frame()
            if isinstance(found, frame.Method):
                return found.method

    async def ask(self, method: Any, channel: int = 1) -> Any:
        """The next method after this one was sent."""
        self.send(method, channel=channel)
        return await self.taken()

    async def queue(self, exchange: str, key: str = "k", **about: Any) -> str:
        """An exclusive queue, bound with this key."""
        made = (await self.ask(Queue.Declare(exclusive=True))).queue
        bound = await self.ask(Queue.Bind(queue=made, exchange=exchange, routing_key=key, **about))
        assert isinstance(bound, Queue.BindOk), bound
        return str(made)

    async def refused(self, method: Any) -> tuple[int, str]:
        """Code and text of the channel.close that it gets; the channel is open again then."""
        answer = await self.ask(method)
        assert isinstance(answer, spec.Channel.Close), answer
        self.send(spec.Channel.CloseOk())
        assert isinstance(await self.ask(spec.Channel.Open()), spec.Channel.OpenOk)
        return answer.reply_code, answer.reply_text

    async def close(self) -> None:
        self._writer.close()


class Fronts:
    """Fronts before one broker, and their clients; all end with the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._tasks: list[tuple[FrontProcess, asyncio.Task[None]]] = []
        self._clients: list[RawClient] = []

    async def start(self, brokers: dict[str, str] | None = None, **front: Any) -> str:
        """Start one; the URL for its clients."""
        port = free_port()
        overrides = {
            "redis": {"url": NO_REDIS, "timeout_s": 0.1},
            "brokers": brokers or {"rabbitmq": self.url},
            "front": {"listen": f"{LOOPBACK}:{port}", "drain_timeout_s": 0, **front},
        }
        settings = Settings.load(overrides=overrides, environ={})
        process = FrontProcess(settings, Identity.of_this_process(None))
        task = asyncio.create_task(process.work())
        self._tasks.append((process, task))
        await asyncio.sleep(0)
        assert not task.done(), task.result()
        parts = urlsplit(self.url)
        return parts._replace(
            netloc=f"{parts.username}:{parts.password}@{LOOPBACK}:{port}"
        ).geturl()

    @property
    def refused(self) -> dict[str, str]:
        """What operators are told of refusals of the front that was started last."""
        announced = self._tasks[-1][0].counts.announcement()
        return dict(announced["refused"])

    async def client(self, url: str, channels: int = 1) -> RawClient:
        """A client of a front, or of the broker."""
        client = RawClient(url)
        for _ in range(50):
            try:
                await client.open(channels)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for process, _ in self._tasks:
            process.stopping.set()
        await stopped(*(task for _, task in self._tasks))


@asynccontextmanager
async def fronts_of(url: str) -> AsyncIterator[Fronts]:
    """Fronts before the broker of this URL."""
    fronts = Fronts(url)
    try:
        yield fronts
    finally:
        await fronts.close()

"""The abilities of every broker of the publisher contract: serve, record, fail and come back.

Each broker has a file with its class; a new one also needs a line in `test_publish_contract.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from delaybridge.errors import PublishUnavailable
from delaybridge.message import Delivery, Destination, Record
from delaybridge.publish import Outcome, Publisher, PublishOptions, Verdict, connect
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import until_async
from tests.servers.process import free_port

DUE_MS = 1_800_000_000_000
OPTIONS = PublishOptions()
QUICK_S = 1.0


def quick(options: PublishOptions = OPTIONS) -> PublishOptions:
    """Options of a publisher that soon gives up a message: for tests of just that."""
    return replace(options, confirm_timeout_s=QUICK_S, heartbeat_s=5)


class Received(NamedTuple):
    """One message as a plain consumer received it."""

    id: str
    body: bytes | None
    attempt: int


class Sink:
    """Takes a publisher's reports: each delivery once."""

    def __init__(self) -> None:
        self.outcomes: dict[Delivery, Outcome] = {}
        self.changes: list[str | None] = []
        self.publisher: Publisher | None = None

    def report(self, deliveries: Sequence[Delivery], outcome: Outcome) -> None:
        for delivery in deliveries:
            assert delivery not in self.outcomes, f"{delivery.id} reported twice"
            self.outcomes[delivery] = outcome

    def changed(self) -> None:
        if self.publisher is not None:
            self.changes.append(self.publisher.unavailable)

    async def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Publish them, and wait until each has its outcome."""
        assert self.publisher is not None
        self.publisher.publish(deliveries)
        await self.all_of(deliveries)

    async def confirm_again(
        self, rig: Rig, to: Destination | None = None, count: int = 5
    ) -> list[Delivery]:
        """Publish until all of a batch are confirmed; what was published, the batch last."""
        to = to or await rig.new_destination()
        sent: list[Delivery] = []

        async def are_confirmed() -> bool:
            sent.extend(batch := rig.deliveries(to, count))
            await self.publish(batch)
            return self.verdicts(batch) == {Verdict.CONFIRMED}

        await until_async(are_confirmed, "confirmed again")
        return sent

    async def all_of(self, deliveries: Iterable[Delivery]) -> None:
        wanted = set(deliveries)
        await until_async(lambda: wanted <= self.outcomes.keys(), "all reported")

    def verdicts(self, deliveries: Iterable[Delivery]) -> set[Verdict]:
        return {self.outcomes[delivery].verdict for delivery in deliveries}

    def reasons(self, deliveries: Iterable[Delivery]) -> set[str]:
        """The first words of their reasons."""
        return {self.outcomes[delivery].reason.split(":")[0] for delivery in deliveries}


def connect_to(kind: str, url: str, options: PublishOptions = OPTIONS) -> tuple[Any, Sink]:
    """A publisher, which is not connected yet, and its sink."""
    sink = Sink()
    made = connect(kind, url, report=sink.report, on_change=sink.changed, options=options)
    sink.publisher = made
    return made, sink


class Rig(contextlib.AbstractAsyncContextManager):
    """One kind of broker: its own server behind a proxy, and the faults that a test may cause."""

    kind: str
    missing_reason = ""
    oversize: int | None = 20 * 1024 * 1024  # None: the broker has no limit of its own
    oversize_reason = "message_too_large"
    is_ordered = True  # False: only messages with the same key keep their order
    options = OPTIONS
    is_pipelined = True  # False: sends one at a time; the next ones are not written yet
    raising: tuple[str, ...] = ()  # MODULE:CLASS.METHOD on a message's way
    may_fail_to_connect = True  # once: the broker has just started, maybe beside others

    @abstractmethod
    def url(self) -> str:
        """Where the publisher connects: through the proxy."""

    @abstractmethod
    def make(self, name: str | None = None) -> str:
        """A new address that exists."""

    @abstractmethod
    def read(self, address: str, at_least: int) -> list[Received]:
        """Every message at an address, in order, once there are `at_least` this many."""

    def login(self, file: Path) -> tuple[str, str] | None:
        """A URL whose user has the password in the file, and the password; None: no users."""
        return None

    async def new_destination(self) -> Destination:
        return self.destination(await asyncio.to_thread(self.make))

    def missing_destination(self) -> Destination:
        return self.destination(f"missing-{uuid.uuid4().hex}")

    def destination(self, address: str) -> Destination:
        return Destination(self.kind, self.kind, address)

    def delivery(self, to: Destination, body: bytes = b"body", **record: Any) -> Delivery:
        """A delivery with an id of its own."""
        made = Record(str(to), body, **record)
        return Delivery(uuid.uuid4().hex, made, to, DUE_MS, 1)

    def deliveries(self, to: Destination, count: int) -> list[Delivery]:
        """This number of deliveries; the body of each is its index."""
        return [self.delivery(to, str(number).encode()) for number in range(count)]

    # a session of one test

    async def __aexit__(self, *_: object) -> None:
        return

    @abstractmethod
    def close(self) -> None:
        """Stop the server, which serves many tests."""

    @contextlib.asynccontextmanager
    async def connected(self, options: PublishOptions | None = None, url: str | None = None) -> Any:
        """A publisher that is connected, and its sink. url: where it is not known to succeed."""
        made, sink = connect_to(self.kind, url or self.url(), options or self.options)
        try:
            try:
                await made.connect()
            except PublishUnavailable as exc:
                if url is not None or "unreachable" not in str(exc) or not self.may_fail_to_connect:
                    raise
                self.may_fail_to_connect = False
                await until_async(lambda: made.unavailable is None, f"it connects; before: {exc}")
                del sink.changes[:-1]
            yield made, sink
        finally:
            await made.close(0.0)

    @abstractmethod
    async def stop(self) -> None:
        """Stop the broker."""

    @abstractmethod
    async def start(self) -> None:
        """Start the broker, with the data that it had."""

    @abstractmethod
    async def swallow_confirms(self, publisher: Publisher) -> None:
        """Lose every answer of the broker from now on."""

    @abstractmethod
    async def lose_confirm(self, to: Destination, total: int) -> None:
        """Wait until a confirm is lost; where each message has its own, until all `total` are."""

    @abstractmethod
    async def reset(self, publisher: Publisher) -> None:
        """Reset all connections."""

    @abstractmethod
    async def heal(self, publisher: Publisher) -> None:
        """Let everything through again."""


class NetworkRig(Rig):
    """A rig whose broker is a process, reached through a proxy on a port that stays the same."""

    def __init__(self) -> None:
        self.proxy_port = free_port()
        self.node: Any = None

    async def __aenter__(self) -> Self:
        await self.start()
        self.proxy = FaultProxy(self.proxy_port, self.node.port)
        await self.proxy.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.__aexit__()

    def close(self) -> None:
        self.node.close()

    async def stop(self) -> None:
        # Not killed: RabbitMQ 4.3 forgets what it confirmed for a quorum queue that was declared
        # within the last second or two before a SIGKILL.
        await asyncio.to_thread(self.node.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self.node.start)

    async def swallow_confirms(self, publisher: Publisher) -> None:
        self.proxy.mode = "blackhole_down"

    async def lose_confirm(self, to: Destination, total: int) -> None:
        await until_async(lambda: self.proxy.swallowed, "the broker answered")

    async def reset(self, publisher: Publisher) -> None:
        self.proxy.reset()

    async def heal(self, publisher: Publisher) -> None:
        self.proxy.mode = "pass"

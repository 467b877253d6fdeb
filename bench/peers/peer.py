"""The tasks that every peer must do, so that the same figures can be measured of each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import psutil
import redis

from bench.lateness import Lateness
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

DAY_S = 86_400
DELAY_S = 2  # of the messages whose lateness is measured
SPARE_S = 1.5  # from the last add to the due time
PATIENCE_S = 60.0  # how long after the due time a peer counts as failed
POLL_S = 0.02


class TooLate(RuntimeError):
    """Messages were still being added when they came due, so the figure is worthless."""


class Servers(NamedTuple):
    """One Redis and one RabbitMQ node for all peers."""

    redis: RedisServer
    rabbitmq: RabbitMQNode

    def redis_bytes(self) -> int:
        """Bytes that Redis has allocated."""
        with redis.Redis.from_url(self.redis.url) as connection:
            return int(connection.info("memory")["used_memory"])


class Peer:
    """One way to delay messages, ready within its `with` block; at its end, nothing is left."""

    name: ClassVar[str]
    stored: ClassVar[str]  # where a message is when its add is confirmed
    cannot: ClassVar[str]  # what its users cannot do
    # Limits for peers that would take minutes for more messages.
    most_due: ClassVar[int | None] = None
    most_pending: ClassVar[int | None] = None

    def __init__(self, servers: Servers) -> None:
        self.servers, self.url = servers, servers.rabbitmq.url
        self.stack = ExitStack()
        self.note = ""
        self.pending = 0

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()

    def open(self) -> None:
        """Start the peer's servers and processes, and register their end with `stack`."""

    def fill(self, count: int) -> float:
        """Add `count` messages of 100 bytes due tomorrow; returns adds per second."""
        raise NotImplementedError

    def burst(self, count: int, slack: int = 1) -> float:
        """Add messages due at one moment; seconds from then until the last has arrived.

        slack: factor for the time allowed for adding. Raises TooLate if it was not enough.
        """
        raise NotImplementedError

    def lateness(self, rate: int, seconds: float) -> Lateness | str:
        """Lateness of messages that come due at `rate` per second; or why there is no figure."""
        raise NotImplementedError

    def memory_bytes(self) -> Mapping[str, int]:
        """Bytes of memory used with messages pending, by where it is used (`in Redis`)."""
        raise NotImplementedError

    def empty_memory_bytes(self) -> Mapping[str, int]:
        """The same before any message is pending."""
        return self.memory_bytes()

    def versions(self) -> Mapping[str, str]:
        """Versions of its libraries, by name."""
        return {}


def check_pending(added_s: float, due_s: float) -> None:
    """Raise TooLate unless the last message was added at least half a second before it was due.

    Call it when all have arrived: a dead letter whose target is gone would block the others.
    """
    if added_s > due_s - 0.5:
        raise TooLate(f"the last message was added {added_s - due_s + 0.5:.1f} s too late")


def lead_s(count: int, rate: float) -> float:
    """How many seconds before the due time to begin adding, at `rate` adds per second."""
    return 2 * count / rate + SPARE_S


def seeded_random() -> random.Random:
    """A generator that gives the same numbers in every run."""
    return random.Random(7)


def disk_bytes(folder: Path) -> int:
    """Bytes that the files in this folder take on the disk."""
    return sum(file.stat().st_blocks for file in folder.rglob("*") if file.is_file()) * 512


def cpu_of_all_s() -> float:
    """Seconds of CPU of this process and of all that it started: clients, servers, consumers."""
    own, total_s = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # its parent has what it used, once it was reaped
            total_s += sum(process.cpu_times()[:4])  # user, system, the same of its dead children
    return total_s

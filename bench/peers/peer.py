"""What a peer is: something that takes messages for later, asked for the same figures."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from typing import ClassVar, NamedTuple, Self

import redis

from bench.lateness import Lateness
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

DAY_S = 86_400
DELAY_S = 2  # of the messages whose lateness is taken
SPARE_S = 1.5  # from the last that is given in to the due time
PATIENCE_S = 60.0  # after the due time; then the peer has failed
POLL_S = 0.02


class TooLate(RuntimeError):
    """Messages were still being given in when they came due: no figure."""


class Servers(NamedTuple):
    """One Redis and one RabbitMQ node for all."""

    redis: RedisServer
    rabbitmq: RabbitMQNode

    def redis_bytes(self) -> int:
        """What Redis has allocated."""
        with redis.Redis.from_url(self.redis.url) as connection:
            return int(connection.info("memory")["used_memory"])


class Peer:
    """One way to delay messages. It is up within its `with` block, which leaves nothing behind."""

    name: ClassVar[str]
    cancel: ClassVar[str]
    # No more than so many are given to it, as more would take minutes.
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
        """Start what it needs; `stack` ends it."""

    def fill(self, count: int) -> float:
        """Give in so many of 100 bytes, due tomorrow; how many a second it took."""
        raise NotImplementedError

    def burst(self, count: int, slack: int = 1) -> float:
        """Seconds from the time when all these are due until the last has arrived.

        slack: by what to multiply the time that is left for giving them in. TooLate.
        """
        raise NotImplementedError

    def late(self, rate: int, seconds: float) -> Lateness | str:
        """How late messages are that come due at this rate; or why there is no figure."""
        raise NotImplementedError

    def held(self) -> Mapping[str, int]:
        """Bytes of memory that hold the messages, by what they are."""
        raise NotImplementedError

    def empty(self) -> Mapping[str, int]:
        """The same before there are any."""
        return self.held()

    def versions(self) -> Mapping[str, str]:
        """Of what it is made, beyond the servers."""
        return {}


def check_pending(given_s: float, due_s: float) -> None:
    """TooLate if the last was given in too late to lie pending before all came due.

    To be called once all have arrived: a dead letter whose target is gone stays in the way.
    """
    if given_s > due_s - 0.5:
        raise TooLate(f"given in {given_s - due_s + 0.5:.1f} s too late to be pending")


def lead_s(count: int, rate: float) -> float:
    """How long before they are due to begin, where so many can be given in a second."""
    return 2 * count / rate + SPARE_S


def summary(late_us: list[int]) -> Lateness:
    """The percentiles of microseconds, as bench.lateness takes them."""
    found = sorted(one / 1000 for one in late_us)
    count = len(found)
    return Lateness(found[count // 2], found[count * 99 // 100], found[-1], found[0])


def dice() -> random.Random:
    """The same numbers in every run."""
    return random.Random(7)

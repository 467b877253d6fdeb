"""Where the microseconds of a drained message go: each stage of a worker alone, without servers.

    python -m bench.stages [MESSAGES]

CPU of one message in each stage, the best of some runs: no stage waits for anything here.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hiredis import Reader

from bench.rig import BODY, Table
from delaybridge.amqp.connection import Encoder
from delaybridge.message import Delivery, Record, encode_record, new_id
from delaybridge.publish import CONFIRMED
from delaybridge.scan.context import ScanOptions
from delaybridge.scan.lane import Broker
from delaybridge.scan.lanes import Lanes
from delaybridge.scan.retry import RetryPolicy
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.session import Session
from delaybridge.store.replies import Claim, Fired
from delaybridge.store.scripts import request
from delaybridge.store.verbs import Bucket

T = TypeVar("T")
RUNS = 20
NOW_MS = 1_800_000_100_000
PLENTY = 2**40


class Still:
    """A clock that stands, an alarm that nobody hears, and a publisher that only takes."""

    unavailable = None
    name = "rabbitmq"

    def __init__(self) -> None:
        self.deliveries: Sequence[Delivery] = ()

    def now_ms(self) -> int:
        """Later than all that is due."""
        return NOW_MS

    def monotonic(self) -> float:
        """No time passes."""
        return 0.0

    def ring(self) -> None:
        """Nobody waits."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Keep them."""
        self.deliveries = deliveries


class Stages:
    """The parts of a worker, put together without a store and a broker."""

    def __init__(self, count: int) -> None:
        payload = encode_record(Record("rabbitmq:orders/key", BODY, b"", (0, b"", b"")))
        self.count, self._number = count, 1
        self._ids = [new_id().encode() for _ in range(count)]
        self._records = [
            struct.pack(">Bd4s", 1, NOW_MS - count + n + 0.99609375, b"call") + payload
            for n in range(count)
        ]
        self.still: Any = Still()
        self.lanes = Lanes(
            *({"rabbitmq": Broker("rabbitmq", self.still)}, RetryPolicy(), _unheard),
            window_messages=PLENTY,
            window_bytes=PLENTY,
        )
        options = ScanOptions(wheel_messages=PLENTY, wheel_bytes=PLENTY)
        self.scanner = Scanner(
            *(self.still, self.lanes, self.still, self.still, _unheard, options),  # type: ignore[arg-type]
            lost=lambda *_: None,
            damaged=lambda *_: None,
        )
        _, lane = self.lanes.route("rabbitmq:orders/key", NOW_MS)
        lane.flow.limit = PLENTY  # as after a burst
        self.session = Session(Bucket("bench", 0, "birth"), "owner:1", 1, 10_000, 0.0)
        self.session.ready = True
        self.reply = b"*%d\r\n" % (2 * count) + b"".join(
            b"$%d\r\n%s\r\n" % (len(text), text) for text in (*self._ids, *self._records)
        )

    def parse(self) -> object:
        """What hiredis does of a claim's reply."""
        reader = Reader()
        reader.feed(self.reply)
        return reader.gets()

    def receive(self) -> None:
        """A claim's answer becomes copies, and waits."""
        self._number += 1
        claimed = Claim(self._number, self._ids, self._records, [], None, False)
        self.scanner._claiming._received(self.session, claimed, NOW_MS)

    def select(self) -> list[Any]:
        """What is ripe is looked at, and chosen to be fired."""
        self.scanner._waiting.ripen(NOW_MS, 5, 5)
        (copies,) = self.scanner._firing._select(NOW_MS).values()
        return copies

    def hand_over(self, copies: list[Any]) -> None:
        """The store allowed it: to the publisher."""
        fired = self.scanner._firing._covered(self.session, Fired(PLENTY, {}), copies)
        self.scanner._publishing.fired = fired
        self.scanner._publishing.publish(NOW_MS)

    def settle(self) -> bytes:
        """A confirm, to the command that says so."""
        self.lanes.outcome(self.still.deliveries, CONFIRMED, NOW_MS)
        commands = self.session.exits.take().commands
        return b"".join([request(command) for command in commands])


def _unheard(_: object) -> None:
    """Events are for the log."""


async def measure(count: int) -> dict[str, float]:
    """Microseconds of CPU a message, by stage."""
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[..., T], *arguments: object) -> T:
        began_s = time.process_time()
        result = work(*arguments)
        took_us = (time.process_time() - began_s) / count * 1e6
        found[name] = min(found.get(name, took_us), took_us)
        return result

    for _ in range(RUNS):
        stages = Stages(count)
        timed("read the claim's reply (hiredis)", stages.parse)
        timed("decode, route, put by", stages.receive)
        copies = timed("ripen, look, admit", stages.select)
        timed("order, hand over", stages.hand_over, copies)
        encoder = Encoder(1, 131_072, b"guest")
        frames = timed("frames", lambda e=encoder, s=stages: [*map(e.frames, s.still.deliveries)])
        timed("join", b"".join, frames)
        timed("confirm to settle, packed", stages.settle)
    return found


def main(count: int = 5000) -> None:
    """Print the table."""
    found = asyncio.run(measure(count))
    out = Table("Stages of a drained message, RabbitMQ, 100 bytes: CPU of a worker")
    for name, took_us in found.items():
        out.line(name, f"{took_us:.2f} us")
    out.line("all", f"{sum(found.values()):.2f} us")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

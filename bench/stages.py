"""How many microseconds of a worker's CPU each stage of a drained message takes, without servers.

    python -m bench.stages [MESSAGES]

Each figure is the lowest of RUNS runs: no stage waits for anything, so the lowest is the least
disturbed.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from hiredis import Reader

from bench.rig import BODY, Table
from delaybridge.amqp.frames import Encoder
from delaybridge.message import Delivery, Record, encode_record, new_id
from delaybridge.publish import CONFIRMED
from delaybridge.scan.lanes.lane import Broker
from delaybridge.scan.lanes.lanes import Lanes
from delaybridge.scan.lanes.retry import RetryPolicy
from delaybridge.scan.leases.session import Session
from delaybridge.scan.scanner import Scanner
from delaybridge.scan.wheel.claiming import ScanOptions
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Claim, Fired
from delaybridge.store.protocol.verbs import request

T = TypeVar("T")
RUNS = 20
NOW_MS = 1_800_000_100_000  # later than every due time here
UNLIMITED = 2**40


class Stub:
    """Stands in for the clock, the alarm, the store and the publisher."""

    unavailable = None
    name = "rabbitmq"

    def __init__(self) -> None:
        self.deliveries: Sequence[Delivery] = ()

    def now_ms(self) -> int:
        """Return NOW_MS."""
        return NOW_MS

    def monotonic(self) -> float:
        """Return 0: no time passes."""
        return 0.0

    def ring(self) -> None:
        """Do nothing: no scanner sleeps here."""

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        """Keep the deliveries, unconfirmed."""
        self.deliveries = deliveries


class Stages:
    """A scanner with its lanes and one session, but without a store and a broker."""

    def __init__(self, count: int) -> None:
        payload = encode_record(Record("rabbitmq:orders/key", BODY, b"", (0, b"", b"")))
        self.count, self._number = count, 1
        self._encoder = Encoder(1, 131_072, b"guest")
        self._ids = [new_id().encode() for _ in range(count)]
        self._records = [
            struct.pack(">Bd4s", 1, NOW_MS - count + n + 0.99609375, b"call") + payload
            for n in range(count)
        ]
        self.stub = cast(Any, Stub())
        brokers = {"rabbitmq": Broker("rabbitmq", self.stub)}
        self.lanes = Lanes(
            brokers, RetryPolicy(), _ignore_event, window_messages=UNLIMITED, window_bytes=UNLIMITED
        )
        options = ScanOptions(wheel_messages=UNLIMITED, wheel_bytes=UNLIMITED)
        self.scanner = Scanner(
            self.stub,
            self.lanes,
            self.stub,
            self.stub,
            _ignore_event,
            options,
            lost=lambda *_: None,
            damaged=lambda *_: None,
            retake=lambda *_: None,
            allow=self.stub,
        )
        _, lane = self.lanes.routing.route("rabbitmq:orders/key", NOW_MS)
        lane.flow.limit = UNLIMITED  # its value after a burst
        self.session = Session(Bucket("bench", 0, "birth"), "owner:1", 1, 10_000, 0.0)
        self.session.reclaimed()
        self.reply = b"*%d\r\n" % (2 * count) + b"".join(
            b"$%d\r\n%s\r\n" % (len(text), text) for text in (*self._ids, *self._records)
        )

    def parse(self) -> object:
        """Parse a claim's reply with hiredis."""
        reader = Reader()
        reader.feed(self.reply)
        return reader.gets()

    def receive(self) -> None:
        """Turn the reply into copies, and let them wait."""
        self._number += 1
        claimed = Claim(self._number, self._ids, self._records, [], None, False)
        self.scanner.claiming.received(self.session, claimed, NOW_MS, Counter())

    def select(self) -> list[Any]:
        """Check the ripe copies for obstacles, and select those to be fired."""
        self.scanner.waiting.ripen(NOW_MS, 5, 5)
        (copies,) = self.scanner.firing.select(NOW_MS).values()
        return copies

    def hand_over(self, copies: list[Any]) -> None:
        """Hand fired copies to the publisher."""
        fired = self.scanner.firing.covered(self.session, Fired(UNLIMITED, {}), copies)
        self.scanner.publishing.add(fired)
        self.scanner.publishing.publish(NOW_MS)

    def encode(self) -> list[bytes]:
        """Encode the deliveries as AMQP frames."""
        return [*map(self._encoder.frames, self.stub.deliveries)]

    def settle(self) -> bytes:
        """Turn the broker's confirms into the packed settle command."""
        self.lanes.outcomes.report(self.stub.deliveries, CONFIRMED, NOW_MS)
        commands = self.session.exits.take_report().commands
        return b"".join([request(command) for command in commands])


def _ignore_event(_: object) -> None:
    """Log nothing."""


async def measure(count: int) -> dict[str, float]:
    """Microseconds of CPU per message, by the name of the stage."""
    found: dict[str, float] = {}

    def timed(name: str, stage: Callable[..., T], *arguments: object) -> T:
        began_s = time.process_time()
        result = stage(*arguments)
        took_us = (time.process_time() - began_s) / count * 1e6
        found[name] = min(found.get(name, took_us), took_us)
        return result

    for _ in range(RUNS):
        stages = Stages(count)
        timed("read the claim's reply (hiredis)", stages.parse)
        timed("decode, find the lane, store the copy", stages.receive)
        copies = timed("ripen, check for obstacles, admit", stages.select)
        timed("order by due time, hand over", stages.hand_over, copies)
        frames = timed("encode frames", stages.encode)
        timed("join frames", b"".join, frames)
        timed("confirm, settle, pack", stages.settle)
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

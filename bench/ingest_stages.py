"""How many microseconds of CPU each stage of an ingested message takes, without servers.

    python -m bench.ingest_stages [MESSAGES]

100-byte bodies with an id and a delay. Each figure is the lowest of RUNS runs: no stage waits for
anything, so the lowest is the least disturbed.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from bench.rig import BODY, Table
from delaybridge.amqp.connection import READ_BYTES
from delaybridge.amqp.encoding import HEADERS_FLAG, encode_properties, encode_table
from delaybridge.amqp.walker import FrameReader
from delaybridge.ingest.entries import Entry
from delaybridge.ingest.kafka.records import RawRecord, RecordReader
from delaybridge.ingest.rabbitmq.channel import IntakeChannel
from delaybridge.ingest.rabbitmq.connection import IntakeConnection
from delaybridge.ingest.rabbitmq.intake import Intake
from delaybridge.ingest.rabbitmq.messages import MessageReader
from delaybridge.ingest.reach import AllowList
from delaybridge.ingest.routes import Route
from delaybridge.ingest.storing import store_entries
from delaybridge.message import Limits
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.verbs import request

T = TypeVar("T")
RUNS = 30
HOUR_MS = 3_600_000
CREATED = 1  # as the script answers
KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka"}
BUCKETS = [Bucket("bench", n, "birth") for n in range(16)]
CALLS: Any = SimpleNamespace(  # of a namespace that is open
    buckets=BUCKETS,
    open=lambda: _known(BUCKETS),
    quota=SimpleNamespace(read_counts=lambda _: _known(False)),
    following=SimpleNamespace(held=lambda: ()),
)


def _known(answer: T) -> Any:
    """A call that needs no command."""
    yield from ()
    return answer


class Connection(IntakeConnection):
    """Only the reading part of a connection."""

    def __init__(self) -> None:
        self._deliveries, self._window_bytes, self.held_bytes = {}, 2**40, 0
        self._is_paused, self._unread, self.bytes_received = False, b"", 0
        self._reader = FrameReader(self._pass_to_pika, self._take)


def frames(count: int) -> bytes:
    """Deliveries as RabbitMQ sends them."""
    sent = []
    table = encode_table([("x-delay", HOUR_MS)])
    for tag in range(1, count + 1):
        method = b"\0\x3c\0\x3c\x1f" + b"c" * 31 + struct.pack(">QB", tag, 0)
        method += b"\x07x.delay\x08some.key"
        flags, before, after = encode_properties({"delivery_mode": 2, "message_id": f"id-{tag}"})
        header = struct.pack(">HHQH", 60, 0, len(BODY), flags | HEADERS_FLAG) + before
        header += struct.pack(">I", len(table)) + table + after
        for kind, payload in enumerate((method, header, BODY), 1):
            sent.append(struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce")
    return b"".join(sent)


class Stopwatch:
    """Lowest CPU time of each stage. found: microseconds a message, by the stage's name."""

    def __init__(self, count: int) -> None:
        self.found: dict[str, float] = {}
        self._count = count

    def timed(self, name: str, stage: Callable[..., T], *arguments: object) -> T:
        """Run a stage."""
        began_s = time.process_time()
        result = stage(*arguments)
        took_us = (time.process_time() - began_s) / self._count * 1e6
        self.found[name] = min(self.found.get(name, took_us), took_us)
        return result

    def store(self, entries: Sequence[Entry]) -> None:
        """Run the stages of storing entries, all of which are new."""
        steps = store_entries(CALLS, entries)
        commands = [*self.timed("plan and make the calls", lambda: [*next(steps)])]
        self.timed("pack", lambda: b"".join(map(request, commands)))
        replies = [[CREATED, HOUR_MS, command.args[9]] for command in commands]

        def answered() -> None:
            try:
                steps.send([c.parse(reply) for c, reply in zip(commands, replies, strict=True)])
            except StopIteration:
                pass

        self.timed("read the answers", answered)


async def measure_rabbitmq(count: int) -> dict[str, float]:
    """Microseconds of CPU per message of a delay exchange, by the name of the stage."""
    watch, data = Stopwatch(count), frames(count)
    route = Route("rabbitmq", "rabbitmq", "x.delay", "x")
    reader = MessageReader(route, KINDS, Limits(), AllowList(()), ["x.delay"], "[]")
    unused: Any = None
    intake = Intake(reader, unused, unused, 4000, unused, unused)
    ignore = SimpleNamespace(channel_number=1, add_on_close_callback=id, add_on_cancel_callback=id)
    for _ in range(RUNS):
        connection = Connection()
        channel = IntakeChannel(connection, cast(Any, ignore), ["x.delay"], 2000)

        def receive(connection: Connection = connection) -> None:
            for at in range(0, len(data), READ_BYTES):
                connection._on_data_available(data[at : at + READ_BYTES])

        watch.timed("cut frames", receive)
        held = watch.timed("read", intake._read, channel.take_messages(count), channel)
        watch.store([each.entry for each in held])
        watch.timed(
            "acknowledge", lambda c=channel, h=held: (c.done(h), c._tags.take_tags(None, 2000))
        )
    return watch.found


def measure_kafka(count: int) -> dict[str, float]:
    """Microseconds of CPU per record of a delay topic, by the name of the stage."""
    watch = Stopwatch(count)
    headers = [("delaybridge-delay", str(HOUR_MS).encode())]
    records = [RawRecord(n // 250, n, b"key-%d" % n, BODY, headers, HOUR_MS) for n in range(count)]
    route = Route("kafka", "kafka", "x.delay", "x")
    reader = RecordReader(
        route, "topic-id", KINDS, Limits(), AllowList(()), keep_partition=False, reach="[]"
    )
    for _ in range(RUNS):
        entries = watch.timed("read", reader.read_all, records)
        watch.store(entries)
    return watch.found


def main(count: int = 1000) -> None:
    """Print the tables."""
    for title, found in (
        ("RabbitMQ", asyncio.run(measure_rabbitmq(count))),
        ("Kafka, without librdkafka", measure_kafka(count)),
    ):
        out = Table(f"Stages of an ingested message, {title}, 100 bytes: CPU of ingest")
        for name, took_us in found.items():
            out.line(name, f"{took_us:.2f} us")
        out.line("all", f"{sum(found.values()):.2f} us")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Delay exchanges of a real RabbitMQ: declared, read, added and removed; what arrives."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import time
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge import AsyncClient
from delaybridge.ingest.rabbitmq import topology
from delaybridge.ingest.routes import Route
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.fleet import Process
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, AsBytes, Exchanges, described, reading, source
from tests.rigs.rabbitmq_site import Raw, entries
from tests.rigs.waiting import DEADLINE_S, until_async

# declarations


@pytest.mark.parametrize("type", ["topic", "direct"])
async def test_the_target_may_be_of_any_type(
    type: str, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    await rabbit.target(namespace, type)
    await rabbit.do(lambda channel: channel.queue_bind(namespace, namespace, "k"))
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, f"{namespace}.delay")
    sent = [("k", b"1", described(1)), ("k", b"2", described()), ("k", b"3", described(0))]
    await rabbit.send(f"{namespace}.delay", sent)
    found = await rabbit.take_raw(namespace, 3)
    assert {(raw.routing_key, raw.body) for raw in found} == {(key, body) for key, body, _ in sent}
    # a second process finds everything declared
    entrance.ingest("rabbitmq")
    await entrance.until(
        lambda: all_read(entrance, 2), "two processes that read what one of them declared"
    )


async def all_read(entrance: Entrance, count: int) -> bool:
    ingests = (await entrance.client.stats()).ingests
    return len(ingests) == count and all(s.state == "reading" for i in ingests for s in i.sources)


async def test_a_broker_that_does_not_know_the_binding_is_too_old(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RabbitMQ before 3.10 answers."""
    unknown = {"x-match": "any-with-y", "x-delay": None}
    monkeypatch.setattr(topology, "binding_arguments", lambda *_: unknown)
    entrance = make_entrance()
    entrance.ingest("rabbitmq")

    async def is_refused() -> bool:
        found = await source(entrance, f"{namespace}.delay")
        return found is not None and "RabbitMQ 3.10 or later is needed" in found.state

    await entrance.until(is_refused, "refused")


async def test_the_intake_queue_is_a_quorum_queue_without_delivery_limit(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    queue = f"{namespace}.delay"
    route = Route("rabbitmq", "rabbitmq", queue, namespace)
    assert await rabbit.is_durable_quorum(queue, **topology.queue_arguments(route))
    await open_entrance.stop_all()

    def return_often(channel: BlockingChannel) -> None:
        # RabbitMQ's own limit is 20.
        channel.basic_qos(prefetch_count=1)
        given = channel.consume(queue, inactivity_timeout=DEADLINE_S)
        for count, (method, _, body) in enumerate(given):
            assert body == b"again"
            if count == 30:
                break
            channel.basic_nack(method.delivery_tag, requeue=True)

    await rabbit.publish(queue, "k", b"again", {"x-delay": HOUR_MS}, message_id="m")
    await rabbit.do(return_often)
    open_entrance.ingest("rabbitmq")
    (stored,) = await open_entrance.until(open_entrance.delayed, "stored")
    assert (stored.id, stored.headers) == ("m", [("x-delay", HOUR_MS)])


# deliveries


def odd_headers(delay: bytes) -> bytes:
    """A header of every type, including those that pika cannot send."""
    pack = struct.pack
    values = {
        "a-int8": b"b" + pack(">b", -5),
        "a-uint8": b"B" + pack(">B", 200),
        "b-int16": b"s" + pack(">h", -300),
        "b-uint16": b"u" + pack(">H", 60_000),
        "c-uint32": b"i" + pack(">I", 4_000_000_000),
        "d-int64": b"l" + pack(">q", 5),
        "e-float": b"f" + pack(">f", 1.5),
        "f-double": b"d" + pack(">d", 1.9),
        "g-decimal": b"D" + pack(">Bi", 2, 12345),
        "h-bool": b"t\x01",
        "i-void": b"V",
        "j-time": b"T" + pack(">Q", 1_700_000_000),
        "k-bytes": b"x" + pack(">I", 3) + b"\xff\x00a",
        "l-text": b"S" + pack(">I", 4) + b"\xff\xfe\xc3(",
        "m-list": b"A" + pack(">I", 10) + b"I\0\0\0\x05" + b"S\0\0\0\0",
        "n-table": b"F" + pack(">I", 4) + b"\x01at\x00",
        "o-\u20ac": b"I" + pack(">i", 1),
        "traceparent": b"S" + pack(">I", 2) + b"00",
        "x-delay": delay,
    }
    return b"".join(
        bytes([len(name.encode())]) + name.encode() + value for name, value in values.items()
    )


async def test_everything_arrives_as_it_was_sent(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    every = {
        "content_type": "application/x-python-serialize",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c" * 255,
        "reply_to": "somewhere",
        "expiration": "3600000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "\u20ac",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "cluster",
    }
    for number, delay in enumerate((b"I\0\0\0\x01", b"l" + bytes(8), b"V")):
        table, body = odd_headers(delay), bytes(range(256)) * (number * 500)  # more than a frame
        for exchange in (namespace, f"{namespace}.delay"):
            described = every | {"message_id": f"m{number}"}
            await rabbit.send(exchange, [("a.\u20ac", body, AsBytes(table, **described))])
            await entrance_is_empty(open_entrance)
        direct, delayed = await rabbit.take_raw(namespace, 2)
        check_same(direct, delayed, f"m{number}")


async def entrance_is_empty(entrance: Entrance) -> None:
    async def is_empty() -> bool:
        stats = await entrance.client.stats()
        return stats.delayed + stats.in_flight == 0

    await entrance.until(is_empty, "nothing under way")


def check_same(direct: Raw, delayed: Raw, id: str) -> None:
    """The delayed copy equals the sent message to the byte, plus three headers."""
    sent, came = entries(direct.content.table), entries(delayed.content.table)
    ours = {name: came.pop(name) for name in list(came) if name.startswith("delaybridge-")}
    assert came == sent
    assert set(ours) == {"delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt"}
    assert delayed.headers["delaybridge-id"] == id
    same = delayed._replace(
        content=delayed.content._replace(table=direct.content.table), at_ms=direct.at_ms
    )
    assert same == direct


async def test_delayed_messages_are_never_early_and_the_others_go_at_once_in_order(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    delays = [500, 100, 300, 200, 100, 400]
    key = {"delaybridge-key": "one"}  # only messages of one key come in due order after a stall
    sent_ms = time.time_ns() / 1e6
    await rabbit.send(
        f"{namespace}.delay",
        [("k", b"%d" % delay, described(delay, headers=key)) for delay in delays]
        + [("k", b"at once %d" % i, described(0 if i % 2 else -1)) for i in range(100)],
    )
    found = await rabbit.take_raw(namespace, 106)
    at_once = [raw.body for raw in found if raw.body.startswith(b"at once")]
    assert at_once == [b"at once %d" % i for i in range(100)]
    delayed = [raw for raw in found if not raw.body.startswith(b"at once")]
    assert sorted(int(raw.body) for raw in delayed) == sorted(delays)
    # A delay counts from the time at which ingest stores the message.
    due_ms = [raw.headers["delaybridge-due-ms"] for raw in delayed]
    assert due_ms == sorted(due_ms)
    for raw in delayed:
        assert raw.at_ms >= sent_ms + int(raw.body)
        assert raw.at_ms >= raw.headers["delaybridge-due-ms"]


# changed settings


async def test_delay_exchanges_are_added_and_removed_by_sighup(
    rabbit: Exchanges, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    first, second = f"{namespace}-1.delay", f"{namespace}-2.delay"
    config = tmp_path / "settings.toml"

    def write(*exchanges: str) -> None:
        broker = f"[brokers]\nrabbitmq = '{rabbit.url}'\n"
        config.write_text(f"{broker}[ingest]\nexchanges = {[*exchanges]}\n")

    async def delayed() -> bool:
        return (await client.stats()).delayed == 2

    write(first)
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--config", str(config), "scan", "--with-ingest"]
    process = Process("w", command, PATIENT_PROCESS | os.environ, tmp_path / "w.log")
    try:
        # Cheaper to ask than the broker is, while a process starts.
        await until_async(lambda: "ingest_started" in process.log, "the first is read")
        write(first, second)
        process.signal(signal.SIGHUP)
        await until_async(lambda: rabbit.is_read(second), "the second, too")
        async with AsyncClient(redis_url, namespace=namespace) as client:
            for exchange in (first, second):
                await rabbit.publish(exchange, "k", headers={"x-delay": HOUR_MS})
            await until_async(delayed, "both are stored")

        write(f"{first}={first}")
        process.signal(signal.SIGHUP)
        await until_async(lambda: "reload_refused" in process.log, "an exchange that feeds itself")
        assert await rabbit.is_read(first) and await rabbit.is_read(second)

        write(second)
        process.signal(signal.SIGHUP)

        async def is_left() -> bool:
            return not await rabbit.is_read(first)

        await until_async(is_left, "the first is read no more")
        await until_async(lambda: rabbit.is_read(second), "the second is")
        assert "lease_released" not in process.log
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.close()

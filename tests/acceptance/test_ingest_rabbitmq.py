"""A plain producer publishes to a delay exchange, a plain consumer reads its target."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from delaybridge.amqp.encoding import encode_properties
from tests.rigs.bridge import CALM_LEASE_MS, Bridge, MakeBridge, rabbitmq_channel
from tests.rigs.history import Delivery, firsts, percentile
from tests.rigs.ingest_rabbitmq import AsBytes, receive_raw
from tests.rigs.rabbitmq_site import Raw, entries
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.cluster import ClusterSite
from tests.servers.sentinel import SentinelSite

MESSAGES = 2000
OWN = {"delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt"}


class Sent(NamedTuple):
    """A message as it was published. least_ms: the earliest it may arrive, by this machine's clock.

    headers: those that must arrive, by name; rest: the flags, and the properties before and after
    the headers. id: as published; None if delaybridge generates one.
    """

    key: str
    body: bytes
    headers: dict[str, bytes]
    rest: tuple[int, bytes, bytes]
    least_ms: int
    id: str | None


AnySite = SentinelSite | ClusterSite


class Site:
    """A delay exchange, its target with a consumer and a queue of copies, and what was sent."""

    def __init__(self, bridge: Bridge, name: str) -> None:
        self.bridge = bridge
        self.url = bridge.brokers["rabbitmq"]
        self.target, self.delay, self.copy = name, f"{name}.delay", f"{name}-copy"
        bridge.rabbitmq_queue(name)
        with rabbitmq_channel(self.url) as channel:
            quorum = {"x-queue-type": "quorum"}
            channel.queue_declare(self.copy, durable=True, arguments=quorum)
            channel.queue_bind(self.copy, name, "#")
        self.sent: list[Sent] = []
        self._random = random.Random(13)

    def send(
        self, count: int, seconds: float = 0.0, midway: Callable[[], None] = lambda: None
    ) -> None:
        """Publish more messages of every kind, spread over these seconds; all are confirmed."""
        with rabbitmq_channel(self.url) as channel:
            channel.confirm_delivery()
            began_s = time.monotonic()
            for part in range(count):
                while time.monotonic() < began_s + seconds * part / count:
                    channel.connection.process_data_events(0.001)
                if part == count // 2:
                    midway()
                self._send(channel)

    def _send(self, channel: Any) -> None:
        draw, number = self._random, len(self.sent)
        delay_ms = draw.choice([0, 0, *[draw.randrange(200, 4000)] * 6])
        key = draw.choice(["", "a.b", f"key.{number}", "\u20ac"])
        body = draw.choice([b"", *[draw.randbytes(draw.randrange(1, 300))] * 20, bytes(150_000)])
        properties = {
            "delivery_mode": draw.choice([1, 2]),
            "content_type": draw.choice([None, "application/json"]),
            "correlation_id": draw.choice([None, "c" * 255, "\u20ac"]),
            "priority": draw.choice([None, 0, 9, 255]),
            "timestamp": draw.choice([None, 0, 1_700_000_000]),
            "app_id": draw.choice([None, b"\xff\xfe"]),
        }
        given = draw.choice(["message_id", "header", None])
        id = f"{self.target}-{number}" if given else None
        if given == "message_id":
            properties["message_id"] = id
        headers = {
            "a-number": b"l" + struct.pack(">q", number),
            "b-odd": draw.choice([b"V", b"d" + struct.pack(">d", 1.9), b"x\0\0\0\1\xff"]),
            "c-table": b"F\0\0\0\x04\x01at\x01",
        }
        now_ms = time.time_ns() // 1_000_000
        asked = self._asked(delay_ms, now_ms)
        if given == "header":
            asked["delaybridge-id"] = text(str(id))
        channel.basic_publish(
            self.delay, key, body, AsBytes(table(headers | asked), **properties), mandatory=True
        )
        kept = {n: value for n, value in asked.items() if not n.startswith("delaybridge-")}
        rest = encode_properties(properties)
        self.sent.append(Sent(key, body, headers | kept, rest, now_ms + delay_ms, id))

    def _asked(self, delay_ms: int, now_ms: int) -> dict[str, bytes]:
        draw, due_ms = self._random, struct.pack(">q", now_ms + delay_ms)
        if not delay_ms:
            return draw.choice([{"x-delay": b"I\0\0\0\0"}, {"x-delay": b"V"}])
        return draw.choice(
            [
                {"x-delay": b"I" + struct.pack(">i", delay_ms)},
                {"x-delay": text(str(delay_ms))},
                {"x-opt-delivery-delay": b"l" + struct.pack(">q", delay_ms)},
                {"x-opt-delivery-time": b"l" + due_ms},
                {"delaybridge-delay": text(f"{delay_ms}ms")},
                {"delaybridge-due": b"l" + due_ms},
            ]
        )

    def check(self, *, duplicates: bool = False) -> list[float]:
        """Check that all messages arrived unchanged, none early and, by default, none twice.

        Returns how late each was, in ms, sorted. A message without a delay is due when it is sent.
        """
        until(
            lambda: len({d.id for d in self.bridge.deliveries()}) >= len(self.sent),
            "everything received",
            interval_s=0.3,
        )
        until(self._is_idle, "nothing is in transit", interval_s=0.3)
        received = self.bridge.deliveries()
        assert not self.bridge.dead()
        assert not [d.id for d in received if d.at_us < d.due_ms * 1000]
        copies: dict[int, list[Raw]] = {}
        for raw in receive_raw(self.url, self.copy, self._waiting(self.copy)):
            copies.setdefault(raw.headers["a-number"], []).append(raw)
        assert sorted(copies) == list(range(len(self.sent)))
        if not duplicates:
            assert len(received) == sum(map(len, copies.values())) == len(self.sent)
        first = firsts(received)
        late_ms = sorted(
            self._check_one(one, raw, first)
            for number, one in enumerate(self.sent)
            for raw in copies[number]
        )
        p50, p99 = (percentile(late_ms, share) for share in (0.5, 0.99))
        print(f"\n{self.target}: {len(received)} received, {len(received) - len(self.sent)} twice")
        print(f"lateness p50 {p50:.1f} p99 {p99:.1f} max {late_ms[-1]:.1f} ms")
        return late_ms

    def _is_idle(self) -> bool:
        stats = self.bridge.client.stats()
        if stats.delayed + stats.in_flight + stats.parked:
            return False
        return self._waiting(self.delay) == self._waiting(self.target) == 0

    def _waiting(self, queue: str) -> int:
        with rabbitmq_channel(self.url) as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)

    def _check_one(self, one: Sent, raw: Raw, first: dict[str, Delivery]) -> float:
        came = entries(raw.content.table)
        assert came.keys() - one.headers.keys() == OWN
        assert {name: came[name] for name in one.headers} == one.headers
        content = raw.content
        assert (content.flags, content.before, content.after) == one.rest
        assert (raw.routing_key.encode(), raw.body) == (one.key.encode(), one.body)
        id = raw.headers["delaybridge-id"]
        assert one.id in (None, id)
        at_ms = first[id].at_us / 1000
        assert at_ms >= one.least_ms
        return at_ms - max(first[id].due_ms, one.least_ms)


def text(value: str) -> bytes:
    data = value.encode()
    return b"S" + struct.pack(">I", len(data)) + data


def table(headers: dict[str, bytes]) -> bytes:
    return b"".join(bytes([len(name)]) + name.encode() + value for name, value in headers.items())


@pytest.mark.slow
def test_two_thousand_messages_of_every_kind_arrive_once_unchanged_and_on_time(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str, stall: Stall
) -> None:
    exchanges = {"DELAYBRIDGE_INGEST__EXCHANGES": f"{namespace}.delay"}
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, settings=exchanges, lease_ttl_ms=CALM_LEASE_MS)
    site = Site(bridge, namespace)
    worker = bridge.start("scan", "--with-ingest")
    bridge.wait_reading(f"rabbitmq:{site.delay}")
    site.send(MESSAGES, seconds=3)
    late_ms = site.check()
    assert percentile(late_ms, 0.99) < 1000 + stall.worst_ms
    # and a worker that is terminated first acknowledges every message
    worker.terminate()
    assert worker.wait(DEADLINE_S) == 0
    with rabbitmq_channel(rabbitmq_url) as channel:
        assert channel.queue_declare(site.delay, passive=True).method.message_count == 0


@pytest.mark.slow
def test_nothing_is_lost_when_a_master_of_redis_dies(
    make_bridge: MakeBridge, own_site: AnySite, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, redis_url=own_site.url)
    site = Site(bridge, namespace)
    bridge.start_workers(2)
    bridge.start("ingest", "rabbitmq", "--exchange", site.delay)
    bridge.wait_reading(f"rabbitmq:{site.delay}")
    with ThreadPoolExecutor(1) as pool:
        died: list[Future[None]] = []
        site.send(
            MESSAGES // 2, seconds=6, midway=lambda: died.append(pool.submit(own_site.lose_master))
        )
        died[0].result(DEADLINE_S)
    site.check(duplicates=True)

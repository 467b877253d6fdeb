"""A plain producer publishes to a delay topic, a plain consumer reads its target."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.rigs.bridge import CALM_LEASE_MS, Bridge, MakeBridge, make_topic
from tests.rigs.history import firsts, percentile
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, quiet, until
from tests.servers.redis import RedisServer

MESSAGES = 2000
PARTITIONS = 4
MIB = 2**20
OWN = ("delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt")
Pairs = list[tuple[str, str | bytes | None]]


class Sent(NamedTuple):
    """A record as it was published. least_ms: the earliest it may arrive, by this machine's clock.

    id: as published; None if delaybridge generates one.
    """

    number: int
    key: bytes | None
    value: bytes | None
    headers: Pairs
    least_ms: int
    id: str | None


class Site:
    """A delay topic, its target, and the records that were sent."""

    def __init__(self, bridge: Bridge, name: str) -> None:
        self.bridge = bridge
        self.servers = bridge.brokers["kafka"].removeprefix("kafka://")
        self.target, self.delay = name, f"{name}.delay"
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        make_topic(self._admin, NewTopic(self.delay, PARTITIONS, 1))
        bridge.kafka_topic(name, partitions=PARTITIONS)
        self.producer = Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0}
        )
        self.sent: list[Sent] = []
        self._random = random.Random(11)

    def send(self, count: int) -> None:
        """Publish more records, of every kind, due within the next seconds."""
        for number in range(len(self.sent), len(self.sent) + count):
            draw = self._random
            delay_ms = draw.choice([0, 0, *[draw.randrange(200, 6000)] * 6])
            headers: Pairs = [("n", b"%d" % number), ("own", draw.choice([None, b"", b"\xff"]))]
            id = f"{self.target}-{number}" if draw.random() < 0.5 else None
            key = draw.choice([None, b"", b"key-%d" % draw.randrange(50)])
            value = draw.choice([None, b"", draw.randbytes(draw.randrange(1, 300))])
            now_ms = time.time_ns() // 1_000_000
            asked = self._asked(delay_ms, now_ms) + (
                [("delaybridge-id", id.encode())] if id else []
            )
            one = Sent(number, key, value, headers, now_ms + delay_ms, id)
            self.producer.produce(self.delay, value, key, headers=[*headers, *asked])
            self.sent.append(one)
        self.producer.poll(0)

    def _asked(self, delay_ms: int, now_ms: int) -> Pairs:
        if not delay_ms:
            return []
        asked: Pairs = [
            ("delaybridge-delay", b"%dms" % delay_ms),
            ("x-delay", b"%d" % delay_ms),
            ("delaybridge-due", b"%d" % (now_ms + delay_ms)),
        ]
        return [self._random.choice(asked)]

    def send_for(self, seconds: float) -> None:
        """Publish all `MESSAGES`, spread over these seconds."""
        began_s = time.monotonic()
        while len(self.sent) < MESSAGES:
            due = min(int((time.monotonic() - began_s) / seconds * MESSAGES) + 1, MESSAGES)
            if due > len(self.sent):
                self.send(due - len(self.sent))
            self.producer.poll(0.01)
        assert self.producer.flush(DEADLINE_S) == 0

    def check(self) -> list[float]:
        """Check that all records arrived unchanged, none early and none twice.

        Returns how late each was, in ms, sorted. A record without a delay is due when it is sent.
        """
        until(
            lambda: len({d.id for d in self.bridge.deliveries()}) >= len(self.sent),
            "everything received",
            interval_s=0.3,
        )
        received = self.bridge.deliveries()
        by_number = {int(dict(r.headers)["n"] or b""): r for r in self.read()}
        counts = Counter(delivery.id for delivery in received)
        assert len(by_number) == len(counts) == len(received) == len(self.sent)
        first = firsts(received)
        assert not [d.id for d in received if d.at_us < d.due_ms * 1000]
        late_ms = []
        for one in self.sent:
            record = by_number[one.number]
            given = [(n, v) for n, v in record.headers if n not in OWN and n != "x-delay"]
            assert (record.key, record.value, given) == (one.key, one.value, one.headers)
            id = (dict(record.headers)["delaybridge-id"] or b"").decode()
            assert one.id in (None, id)
            at_ms = first[id].at_us / 1000
            assert at_ms >= one.least_ms
            late_ms.append(at_ms - max(first[id].due_ms, one.least_ms))
        late_ms.sort()
        p50, p99 = (percentile(late_ms, share) for share in (0.5, 0.99))
        print(f"lateness p50 {p50:.1f} p99 {p99:.1f} max {late_ms[-1]:.1f} ms")
        assert not self.bridge.dead()
        return late_ms

    def read(self) -> list[Any]:
        return list(read_topic(self.servers, self.target))

    def committed(self) -> int:
        """How many records the group has read."""
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": self.bridge.namespace, "log_level": 0}
        )
        try:
            places = [TopicPartition(self.delay, number) for number in range(PARTITIONS)]
            return sum(max(p.offset, 0) for p in consumer.committed(places, timeout=DEADLINE_S))
        finally:
            consumer.close()


class Found(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Pairs


def read_topic(servers: str, topic: str) -> Iterator[Found]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"{topic}-end", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    try:
        while ended < PARTITIONS:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{topic}: no end of partition"
            error = message.error()
            if error is None:
                headers: Any = message.headers() or []
                yield Found(message.key(), message.value(), headers)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
    finally:
        consumer.close()


def settings(namespace: str) -> dict[str, str]:
    """An ingest process that reads only this test's topics, as a group of its own."""
    return {
        "DELAYBRIDGE_INGEST__GROUP": namespace,
        "DELAYBRIDGE_INGEST__TOPICS": f"{namespace}*.delay",
    }


@pytest.mark.slow
def test_two_thousand_records_of_every_kind_arrive_once_unchanged_and_on_time(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str, stall: Stall
) -> None:
    brokers = {"kafka": real_kafka_url}
    bridge = make_bridge(brokers, settings=settings(namespace), lease_ttl_ms=CALM_LEASE_MS)
    site = Site(bridge, namespace)
    worker = bridge.start("scan", "--with-ingest")
    bridge.wait_reading(f"kafka:{site.delay}")
    site.send_for(3)
    late_ms = site.check()
    assert percentile(late_ms, 0.99) < 1000 + stall.worst_ms
    # and a worker that is terminated first commits every record
    worker.terminate()
    assert worker.wait(DEADLINE_S) == 0
    assert site.committed() == MESSAGES


@pytest.mark.slow
def test_memory_is_bounded_while_redis_is_down(
    make_bridge: MakeBridge, own_redis: RedisServer, real_kafka_url: str, namespace: str
) -> None:
    window = {"DELAYBRIDGE_INGEST__WINDOW_BYTES": str(8 * MIB)}
    limits = {"DELAYBRIDGE_LIMITS__BODY_BYTES": str(MIB)}
    bridge = make_bridge(
        {"kafka": real_kafka_url},
        redis_url=own_redis.url,
        settings={**settings(namespace), **window, **limits},
    )
    site = Site(bridge, namespace)
    ingest = psutil.Process(bridge.start("ingest", "kafka").pid)
    hour: Pairs = [("delaybridge-delay", b"1h")]
    site.producer.produce(site.delay, b"first", headers=hour)
    until(lambda: bridge.client.stats().delayed == 1, "ingest reads", interval_s=0.1)
    before = ingest.memory_info().rss
    own_redis.pause()
    waiting = 400
    for number in range(waiting):
        value = number.to_bytes(4, "big") * (MIB // 5)
        site.producer.produce(site.delay, value, headers=hour)
    assert site.producer.flush(DEADLINE_S) == 0
    # when there was time enough to fetch all of them
    log = bridge.folder / "ingest-1.log"
    until(
        lambda: "store_silent" in log.read_text(), "the silence of Redis is noticed", interval_s=0.1
    )
    quiet(3)
    grown = ingest.memory_info().rss - before
    waiting_mib = waiting * (MIB // 5) * 4 / MIB
    print(f"\n{grown / MIB:.0f} MiB for a window of 8 and {waiting_mib:.0f} waiting")
    # 26 to 89 MiB were measured: the window, copies in transit, and free memory kept by malloc
    assert grown < waiting_mib / 2 * MIB
    own_redis.resume()
    until(lambda: bridge.client.stats().delayed == waiting + 1, "all stored", interval_s=0.2)

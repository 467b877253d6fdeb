"""A broker stops, blocks, or cannot route: nothing is lost, and other destinations are on time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rigs.bridge import OUTAGE_S, Bridge, MakeBridge, rabbitmq_channel
from tests.rigs.history import check
from tests.rigs.waiting import wait_s, wait_until
from tests.servers.kafka import KafkaNode
from tests.servers.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.timeout(180)

QUICK_RETRY = {
    "DELAYBRIDGE_RETRY__MAX_ATTEMPTS": "3",
    "DELAYBRIDGE_RETRY__BASE_MS": "100",
}


def lateness_p99_ms(bridge: Bridge, destination: str) -> float:
    """The p99 lateness of one destination's messages, in ms."""
    promises = {id: p for id, p in bridge.promises.items() if p.destination == destination}
    mine = [d for d in bridge.deliveries() if d.id in promises]
    return check(promises, mine, set()).late(0.99)


def check_nothing_lost(bridge: Bridge) -> None:
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.changed


@contextmanager
def outage(bridge: Bridge, down: str, up: str) -> Iterator[None]:
    """Messages fall due for two brokers; the block takes one of them away for a while."""
    bridge.start_workers(2)
    bridge.schedule(down, 3_000, seconds=16, first_s=1)
    bridge.schedule(up, 1_500, seconds=16, first_s=1)
    wait_s(3)
    yield
    bridge.wait_delivered(90)
    check_nothing_lost(bridge)
    assert not bridge.dead()
    assert lateness_p99_ms(bridge, up) < 1000, "they waited for the other broker"


def test_nothing_is_lost_while_rabbitmq_is_down_for_ten_seconds(
    make_bridge: MakeBridge, own_rabbitmq: RabbitMQNode, real_kafka_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": own_rabbitmq.url, "kafka": real_kafka_url})
    to_rabbitmq = bridge.rabbitmq_queue(namespace)
    with outage(bridge, to_rabbitmq, bridge.kafka_topic(namespace)):
        own_rabbitmq.ctl("stop_app")
        bridge.schedule(to_rabbitmq, 500, seconds=OUTAGE_S / 2)
        wait_s(OUTAGE_S)
        # messages that fall due meanwhile are parked, and no attempt is counted
        assert bridge.client.stats().parked > 0
        own_rabbitmq.ctl("start_app")


def test_nothing_is_lost_while_kafka_is_down_for_ten_seconds(
    make_bridge: MakeBridge, own_kafka: KafkaNode, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"kafka": own_kafka.url, "rabbitmq": rabbitmq_url})
    with outage(bridge, bridge.kafka_topic(namespace), bridge.rabbitmq_queue(namespace)):
        own_kafka.kill()
        wait_s(OUTAGE_S)
        own_kafka.start()


def test_nothing_is_lost_while_rabbitmq_has_a_memory_alarm_for_ten_seconds(
    make_bridge: MakeBridge, own_rabbitmq: RabbitMQNode, real_kafka_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": own_rabbitmq.url, "kafka": real_kafka_url})
    with outage(bridge, bridge.rabbitmq_queue(namespace), bridge.kafka_topic(namespace)):
        own_rabbitmq.ctl("set_vm_memory_high_watermark", "0.00000001")
        wait_s(OUTAGE_S)
        own_rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")


def test_messages_without_an_exchange_or_a_route_are_buried_and_others_are_on_time(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    # given three destinations: one works, one exchange will be deleted, one has no binding
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, settings=QUICK_RETRY)
    fine = bridge.rabbitmq_queue(f"{namespace}-fine")
    gone = bridge.rabbitmq_queue(f"{namespace}-gone", consume=False)
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.exchange_declare(f"{namespace}-unbound", "topic", durable=True)
    unbound = f"rabbitmq:{namespace}-unbound/key"
    bridge.start_workers(2)
    bridge.schedule(fine, 2_000, seconds=8, first_s=1)
    going = bridge.schedule(gone, 300, seconds=3, first_s=4)
    lost_ids = bridge.schedule(unbound, 300, seconds=6, first_s=1)
    # when the exchange is deleted under load
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.exchange_delete(f"{namespace}-gone")
    bridge.wait_delivered(90)
    # then nothing is lost: these messages are dead with a reason, and the others were on time
    check_nothing_lost(bridge)
    assert set(lost_ids) | set(going) == bridge.dead()
    assert "unroutable" in (bridge.client.get(lost_ids[0]).reason or "")
    assert "exchange" in (bridge.client.get(going[0]).reason or "")
    assert bridge.client.get(lost_ids[0]).attempts == 3
    assert lateness_p99_ms(bridge, fine) < 1000
    # and when the exchange is back, a kick delivers them
    bridge.rabbitmq_queue(f"{namespace}-gone")
    for id in going:
        assert bridge.client.kick(id) == "kicked"
    wait_until(lambda: {d.id for d in bridge.deliveries()} >= set(going), 60, interval_s=0.2)

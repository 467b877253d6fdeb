"""Destinations are paused, resumed and spread while workers are killed, by a consumer's clock."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from delaybridge.store import rules
from delaybridge.store.store import Store
from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.history import Delivery
from tests.rigs.waiting import quiet

LEASE_TTL_MS = 2000
WINDOW = 200
OBEYED_MS = 1000
SLACK_MS = 5000  # allowed in addition to one lease: processes start on two busy cores
KEYS = 20
SETTINGS = {"DELAYBRIDGE_PUBLISH__WINDOW_MESSAGES": str(WINDOW)}


def steer(bridge: Bridge, place: str, **change: Any) -> None:
    with closing(Store(bridge.redis_url)) as store:
        store.complete(rules.change(bridge.namespace, place, change))


def firsts(bridge: Bridge) -> dict[str, Delivery]:
    """The first delivery of each message, in the order of arrival."""
    found: dict[str, Delivery] = {}
    for delivery in bridge.deliveries():
        found.setdefault(delivery.id, delivery)
    return found


def check_order(bridge: Bridge, ids: set[str]) -> None:
    due_ms: dict[str, list[int]] = {}
    for id, delivery in firsts(bridge).items():
        if id in ids:
            due_ms.setdefault(bridge.keys[id], []).append(delivery.due_ms)
    assert len(due_ms) == KEYS
    assert all(of_key == sorted(of_key) for of_key in due_ms.values())


def test_an_exchange_a_single_destination_and_a_topic_wait_while_they_are_paused(
    make_bridge: MakeBridge, rabbitmq_url: str, real_kafka_url: str, namespace: str
) -> None:
    # given three workers, and messages with keys to destinations that will be paused
    brokers = {"rabbitmq": rabbitmq_url, "kafka": real_kafka_url}
    bridge = make_bridge(brokers, lease_ttl_ms=LEASE_TTL_MS, settings=SETTINGS)
    exchange, single = bridge.rabbitmq_queue(namespace), bridge.rabbitmq_queue(f"{namespace}-s")
    topic = bridge.kafka_topic(namespace)
    places = exchange.rpartition("/")[0], single, topic
    free = single.rpartition("/")[0] + "/another", bridge.kafka_topic(f"{namespace}-o")
    bridge.start_workers(3)
    held = [
        {*bridge.schedule(each, 1500, seconds=6, first_s=1, keys=KEYS)}
        for each in (exchange, single, topic)
    ]
    others = [bridge.schedule(each, 500, seconds=6, first_s=1) for each in free]
    quiet(2.5)
    # when they are paused, a worker is killed meanwhile, and another one starts
    for place in places:
        steer(bridge, place, paused=True)
    obeyed_us = time.time_ns() // 1000 + OBEYED_MS * 1000
    quiet(1.5)
    bridge.kill_worker(bridge.workers[0])
    bridge.start_worker()
    quiet(LEASE_TTL_MS / 1000 + 1)
    resumed_us = time.time_ns() // 1000
    for place in places:
        steer(bridge, place, paused=None)
    bridge.wait_delivered()
    # then nothing of them arrived meanwhile, and all of it afterwards, in the order of each key
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed or bridge.dead())
    assert len(verdict.duplicates) <= WINDOW
    arrived = firsts(bridge)
    for ids in held:
        at_us = [delivery.at_us for id, delivery in arrived.items() if id in ids]
        assert not [at for at in at_us if obeyed_us < at < resumed_us]
        assert sum(at < obeyed_us for at in at_us) > 150 < sum(at > resumed_us for at in at_us)
        check_order(bridge, ids)
    # and the other destinations were late only by the lease of the killed worker
    for ours in others:
        late_ms = [arrived[id].at_us / 1000 - arrived[id].due_ms for id in ours]
        assert max(late_ms) < LEASE_TTL_MS + SLACK_MS
        assert sorted(late_ms)[len(late_ms) // 2] < 500


def test_a_burst_leaves_over_its_window_while_a_worker_is_killed(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=LEASE_TTL_MS, settings=SETTINGS)
    destination = bridge.rabbitmq_queue(namespace)
    steer(bridge, destination.rpartition("/")[0], spread_ms=8000)
    bridge.start_workers(3)
    ids = bridge.schedule(destination, 2000, seconds=0, first_s=3, keys=KEYS)
    ids += bridge.schedule(destination, 2000, seconds=0, first_s=3)
    quiet(6)
    bridge.kill_worker(bridge.workers[0])
    bridge.start_worker()
    bridge.wait_delivered()
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed or bridge.dead())
    assert len(verdict.duplicates) <= WINDOW
    arrived = firsts(bridge)
    of_keys = {id for id in ids if id in bridge.keys}
    after_ms = [arrived[id].at_us / 1000 - arrived[id].due_ms for id in ids if id not in of_keys]
    assert max(after_ms) < 8000 + LEASE_TTL_MS + SLACK_MS
    for second in range(3):  # before the kill; 250 are expected in each
        assert 150 < sum(second * 1000 <= each < second * 1000 + 1000 for each in after_ms) < 350
    check_order(bridge, of_keys)


def test_messages_of_a_worker_that_starts_while_its_destination_is_paused_all_wait(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=LEASE_TTL_MS)
    destination = bridge.rabbitmq_queue(namespace)
    bridge.schedule(destination, 1000, seconds=0.5)
    steer(bridge, "rabbitmq", paused=True)
    quiet(0.6)
    for _ in range(2):
        bridge.start_workers(1)
        quiet(1)
        assert not bridge.deliveries()
        bridge.kill_worker(bridge.workers[0])
    bridge.start_workers(1)
    steer(bridge, "rabbitmq", paused=None)
    bridge.wait_delivered()
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.duplicates)
    assert {delivery.attempt for delivery in bridge.deliveries()} == {1}

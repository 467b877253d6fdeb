"""Destinations are paused, resumed and spread while workers are killed, by a consumer's clock."""

from __future__ import annotations

import time
from itertools import chain

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.history import firsts, late_ms, percentile
from tests.rigs.stall import Stall
from tests.rigs.waiting import until

LEASE_TTL_MS = 2000
WINDOW = 200
OBEYED_MS = 1000
SPREAD_MS, EVEN_MS = 6000, 600  # 1,000 drawn moments are at most so far from evenly spread
KEYS = 20
SETTINGS = {"DELAYBRIDGE_PUBLISH__WINDOW_MESSAGES": str(WINDOW)}


def check_order(bridge: Bridge, ids: set[str]) -> None:
    due_ms: dict[str, list[int]] = {}
    for id, delivery in firsts(bridge.deliveries()).items():
        if id in ids:
            due_ms.setdefault(bridge.keys[id], []).append(delivery.due_ms)
    assert len(due_ms) == KEYS
    assert all(of_key == sorted(of_key) for of_key in due_ms.values())


def check_all_arrived(bridge: Bridge) -> None:
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed or bridge.dead())
    assert len(verdict.duplicates) <= WINDOW


@pytest.mark.slow
def test_an_exchange_a_single_destination_and_a_topic_wait_while_they_are_paused(
    make_bridge: MakeBridge, rabbitmq_url: str, real_kafka_url: str, namespace: str, stall: Stall
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
        {*bridge.schedule(each, 300, seconds=2, first_s=0.5, keys=KEYS)}
        for each in (exchange, single, topic)
    ]
    others = {*chain(*(bridge.schedule(each, 500, seconds=4, first_s=0.5) for each in free))}

    def arrived(ids: set[str]) -> int:
        return len(ids & {each.id for each in bridge.deliveries()})

    until(lambda: min(map(arrived, held)) > 50, "some arrive before the pause", interval_s=0.05)
    # when they are paused, a worker is killed meanwhile, and another one starts
    for place in places:
        bridge.client.destinations.pause(place)
    paused_us = time.time_ns() // 1000
    for ids, each in zip(held, (exchange, single, topic), strict=True):
        ids |= {*bridge.schedule(each, 500, seconds=1.5, first_s=1.2, keys=KEYS)}
    bridge.kill_worker(bridge.workers[0])
    bridge.start_worker()
    until(lambda: bridge.client.stats().parked >= 3 * 500, "they wait", interval_s=0.1)
    until(lambda: arrived(others) == len(others), "the others arrive", interval_s=0.1)
    resumed_us = time.time_ns() // 1000
    for place in places:
        bridge.client.destinations.resume(place)
    bridge.wait_delivered()
    # then nothing of them arrived meanwhile, and all of it afterwards, in the order of each key
    check_all_arrived(bridge)
    came = firsts(bridge.deliveries())
    obeyed_us = paused_us + (OBEYED_MS + stall.worst_ms) * 1000
    for ids in held:
        assert not [id for id in ids if obeyed_us < came[id].at_us < resumed_us]
        check_order(bridge, ids)
    # and the others did not wait for them
    waited_ms = late_ms(
        (each for each in came.values() if each.at_us > resumed_us), {*chain(*held)}
    )
    assert percentile(late_ms(came.values(), others), 0.5) < percentile(waited_ms, 0.5) / 2


@pytest.mark.slow
def test_a_burst_leaves_over_its_window_while_a_worker_is_killed(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    # given a burst to spread, and for comparison messages that are due over the same window
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=LEASE_TTL_MS, settings=SETTINGS)
    destination, even = bridge.rabbitmq_queue(namespace), bridge.rabbitmq_queue(f"{namespace}-e")
    bridge.client.destinations.spread(destination.rpartition("/")[0], SPREAD_MS / 1000)
    bridge.start_workers(3)
    evenly = {*bridge.schedule(even, 1000, seconds=SPREAD_MS / 1000, first_s=2)}
    of_keys = {*bridge.schedule(destination, 1000, seconds=0, first_s=2, keys=KEYS)}
    burst = {*bridge.schedule(destination, 1000, seconds=0, first_s=2)}
    # when a worker is killed in the middle
    until(lambda: len(bridge.deliveries()) > 1500, "half has arrived", interval_s=0.1)
    bridge.kill_worker(bridge.workers[0])
    bridge.start_worker()
    bridge.wait_delivered()
    # then they arrive one after the other over the window, late only as those others are
    check_all_arrived(bridge)
    check_order(bridge, of_keys)
    most_ms = late_ms(bridge.deliveries(), evenly)[-1]
    for number, after_ms in enumerate(late_ms(bridge.deliveries(), burst)):
        even_ms = SPREAD_MS * number / len(burst)
        assert even_ms - EVEN_MS < after_ms < even_ms + EVEN_MS + most_ms

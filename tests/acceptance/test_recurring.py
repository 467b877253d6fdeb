"""Recurring messages through worker processes, one of them killed, by an independent consumer."""

from __future__ import annotations

import time
from collections import Counter

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.waiting import quiet, until

DEFINITIONS = 25
BEFORE_S, AFTER_S = 4, 5  # the kill
NEAR_MS = 2500  # a message that the killed worker had with the broker may arrive twice


def check(bridge: Bridge, destination: str) -> None:
    # given three workers, and definitions that run every one or two seconds
    bridge.start_workers(3)
    recurring = bridge.client.recurring
    names = {f"beat-{n}": 1000 + 1000 * (n % 2) for n in range(DEFINITIONS)}
    for name, every_ms in names.items():
        recurring.add(name, destination, "${due}", every=every_ms / 1000, missed="all")
    # when one worker is killed in the middle
    quiet(BEFORE_S)
    bridge.kill_worker(bridge.workers[0])
    killed_ms = time.time() * 1000
    quiet(AFTER_S)
    paused_ms = time.time() * 1000
    for name in names:
        assert recurring.pause(name)
    until(lambda: _left(bridge) == 0, "all is delivered")
    quiet(1)
    # then each run has arrived, none early and none that was not due when it was paused
    found = bridge.deliveries()
    arrived = Counter(each.id for each in found)
    assert all(each.at_us >= each.due_ms * 1000 for each in found)
    for name, every_ms in names.items():
        due_ms = sorted({each.due_ms for each in found if each.id.startswith(f"{name}@")})
        assert due_ms == [*range(due_ms[0], due_ms[-1] + 1, every_ms)], name
        assert due_ms[0] < killed_ms and due_ms[-1] > paused_ms - every_ms - 1000, name
    # and a run arrives twice only if the killed worker was just sending it
    of = {each.id: each.due_ms for each in found}
    assert [id for id, n in arrived.items() if n > 1 and abs(of[id] - killed_ms) > NEAR_MS] == []


def _left(bridge: Bridge) -> int:
    stats = bridge.client.stats()
    return stats.delayed + stats.in_flight + stats.parked


def test_runs_arrive_once_on_rabbitmq_while_a_worker_is_killed(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=2000)
    check(bridge, bridge.rabbitmq_queue(namespace))


def test_runs_arrive_once_on_kafka_while_a_worker_is_killed(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str
) -> None:
    bridge = make_bridge({"kafka": real_kafka_url}, lease_ttl_ms=2000)
    check(bridge, bridge.kafka_topic(namespace))

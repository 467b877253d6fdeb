"""Recurring messages through worker processes, one of them killed, by an independent consumer."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.stall import Stall
from tests.rigs.waiting import until

DEFINITIONS = 25
RUNS = 2  # of each definition, before the kill and after it
NEAR_MS = 2500  # a message that the killed worker had with the broker may arrive twice


def check(bridge: Bridge, destination: str, stall: Stall) -> None:
    # given three workers, and definitions that run every one or two seconds
    bridge.start_workers(3)
    recurring = bridge.client.recurring
    names = {f"beat-{n}": 1000 + 1000 * (n % 2) for n in range(DEFINITIONS)}
    for name, every_ms in names.items():
        recurring.add(name, destination, "${due}", every=every_ms / 1000, missed="all")

    def all_ran(since_ms: float = 0) -> bool:
        due = {each.id: each.due_ms for each in bridge.deliveries() if each.due_ms > since_ms}
        runs = Counter(id.partition("@")[0] for id in due)
        return all(runs[name] >= RUNS for name in names)

    # when one worker is killed in the middle
    until(all_ran, "some runs before the kill", interval_s=0.1)
    bridge.kill_worker(bridge.workers[0])
    killed_ms = time.time() * 1000
    until(lambda: all_ran(killed_ms), "some runs after the kill", interval_s=0.1)
    for name in names:
        assert recurring.pause(name)
    paused_ms = time.time() * 1000
    until(lambda: _left(bridge) == 0, "all is delivered")
    # and until later messages have arrived
    later = {*bridge.schedule(destination, 100, seconds=0.5, first_s=2)}
    until(lambda: later <= {each.id for each in bridge.deliveries()}, "later messages")
    # then each run has arrived, none early and none that was not due when it was paused
    found = [each for each in bridge.deliveries() if each.id not in later]
    arrived = Counter(each.id for each in found)
    assert all(each.at_us >= each.due_ms * 1000 for each in found)
    for name, every_ms in names.items():
        due_ms = sorted({each.due_ms for each in found if each.id.startswith(f"{name}@")})
        assert due_ms == [*range(due_ms[0], due_ms[-1] + 1, every_ms)], name
        assert due_ms[0] < killed_ms < due_ms[-1] <= paused_ms, name
    # and a run arrives twice only if the killed worker was just sending it
    of = {each.id: each.due_ms for each in found}
    near_ms = NEAR_MS + stall.worst_ms
    assert [id for id, n in arrived.items() if n > 1 and abs(of[id] - killed_ms) > near_ms] == []


def _left(bridge: Bridge) -> int:
    stats = bridge.client.stats()
    return stats.delayed + stats.in_flight + stats.parked


@pytest.mark.slow
def test_runs_arrive_once_on_rabbitmq_while_a_worker_is_killed(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str, stall: Stall
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=2000)
    check(bridge, bridge.rabbitmq_queue(namespace), stall)


@pytest.mark.slow
def test_runs_arrive_once_on_kafka_while_a_worker_is_killed(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str, stall: Stall
) -> None:
    bridge = make_bridge({"kafka": real_kafka_url}, lease_ttl_ms=2000)
    check(bridge, bridge.kafka_topic(namespace), stall)

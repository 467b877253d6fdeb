"""Workers are killed, one each second, and others take over: nothing is lost."""

from __future__ import annotations

import signal
import time

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.waiting import wait_s, wait_until

pytestmark = pytest.mark.timeout(150)

LEASE_TTL_MS = 2000
WINDOW = 200
KILLS = 8
SLACK_MS = 5000  # allowed in addition to one lease: five processes start on two busy cores


def check_kills(bridge: Bridge, destination: str) -> None:
    # given four workers with a small window, and load
    bridge.start_workers(4)
    bridge.schedule(destination, 8_000, seconds=12, first_s=1)
    # when one is killed each second and replaced at once
    for kill in range(KILLS):
        wait_s(1)
        bridge.kill_worker(bridge.workers[kill % 4])
        killed_ms = time.time() * 1000
        bridge.start_worker()
    bridge.wait_delivered()
    # then none is lost or early, and each kill repeats at most one window of messages
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.changed
    assert len(verdict.duplicates) <= KILLS * WINDOW
    # and a killed worker's buckets waited at most one lease. A bucket may wait again if the next
    # owner is killed too, so the wait is measured from the last kill
    first_ms: dict[str, float] = {}
    for delivery in bridge.deliveries():
        since_ms = max(delivery.due_ms, killed_ms)
        waited_ms = delivery.at_us / 1000 - since_ms
        first_ms[delivery.id] = min(first_ms.get(delivery.id, waited_ms), waited_ms)
    assert max(first_ms.values()) < LEASE_TTL_MS + SLACK_MS


def test_killed_workers_lose_nothing_on_rabbitmq(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    settings = {"DELAYBRIDGE_PUBLISH__WINDOW_MESSAGES": str(WINDOW)}
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=LEASE_TTL_MS, settings=settings)
    check_kills(bridge, bridge.rabbitmq_queue(namespace))


def test_killed_workers_lose_nothing_on_kafka(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str
) -> None:
    settings = {"DELAYBRIDGE_PUBLISH__WINDOW_MESSAGES": str(WINDOW)}
    bridge = make_bridge({"kafka": real_kafka_url}, lease_ttl_ms=LEASE_TTL_MS, settings=settings)
    check_kills(bridge, bridge.kafka_topic(namespace))


def test_a_rolling_restart_loses_and_repeats_nothing(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=10_000)
    destination = bridge.rabbitmq_queue(namespace)
    bridge.start_workers(3)
    bridge.schedule(destination, 4_000, seconds=8, first_s=1)
    # when each worker is replaced in turn, the new one first
    for name in bridge.workers:
        bridge.start_worker()
        bridge.signal_worker(name, signal.SIGTERM)
        wait_until(lambda name=name: bridge.has_ended(name), 20, f"{name} drained")
        assert bridge.exit_code(name) == 0
    bridge.wait_delivered()
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.duplicates


def test_a_worker_that_was_paused_publishes_nothing_that_was_cancelled_meanwhile(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=1000)
    destination = bridge.rabbitmq_queue(namespace)
    first, _ = bridge.start_workers(2)
    ids = bridge.schedule(destination, 2_000, seconds=6, first_s=2)
    # when a worker is paused for longer than its lease, and messages are cancelled meanwhile
    bridge.signal_worker(first, signal.SIGSTOP)
    wait_until(
        lambda: {b.owner for b in bridge.client.stats().buckets} == {bridge.workers[1]},
        20,
        "the other worker holds all buckets",
    )
    for id in ids[::10]:
        bridge.cancel(id)
    bridge.signal_worker(first, signal.SIGCONT)
    bridge.wait_delivered()
    # then no cancelled message arrives, and nothing is lost
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.after_cancel

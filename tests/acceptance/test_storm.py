"""Cancel and reschedule race with claim and fire: their answers must be true."""

from __future__ import annotations

import time

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.waiting import wait_s

pytestmark = pytest.mark.timeout(150)


def check_storm(bridge: Bridge, destination: str) -> None:
    # given workers, and messages that all fall due within a few seconds
    bridge.start_workers(2)
    ids = bridge.schedule(destination, 1_200, seconds=6, first_s=0.5)
    by_due = sorted(ids, key=lambda id: bridge.promises[id].due_ms)
    # when every second message is cancelled or rescheduled close to the moment of its fire
    answers: dict[str, int] = {}
    for i, id in enumerate(by_due[::2]):
        call_ms = bridge.promises[id].due_ms + bridge.random.randrange(-40, 3)
        wait_s(call_ms / 1000 - time.time())
        answer = bridge.cancel(id) if i % 2 else bridge.reschedule(id, bridge.random.random() * 2)
        answers[answer] = answers.get(answer, 0) + 1
    bridge.wait_delivered()
    # then nothing arrives after `cancelled`, nor between `rescheduled` and the new time
    verdict = bridge.verdict()
    print(answers)
    assert answers.get("cancelled")
    assert answers.get("rescheduled")
    assert not verdict.after_cancel
    assert not verdict.before_new_time
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.duplicates


def test_cancel_and_reschedule_just_before_the_due_time_answer_truly_on_rabbitmq(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=10_000)
    check_storm(bridge, bridge.rabbitmq_queue(namespace))


def test_cancel_and_reschedule_just_before_the_due_time_answer_truly_on_kafka(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str
) -> None:
    bridge = make_bridge({"kafka": real_kafka_url}, lease_ttl_ms=10_000)
    check_storm(bridge, bridge.kafka_topic(namespace))

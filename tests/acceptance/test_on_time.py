"""Ten thousand messages through four workers: all arrive, none twice, none early."""

from __future__ import annotations

import pytest

from tests.rigs.bridge import CALM_LEASE_MS, MakeBridge


def check_ten_thousand(bridge, destination: str) -> None:
    # given four workers and a plain consumer
    bridge.start_workers(4)
    # when 10,000 messages are scheduled with delays of 0 to 5 s
    bridge.schedule(destination, 10_000, seconds=5)
    bridge.wait_delivered()
    # then each arrives once, unchanged, never early
    verdict = bridge.verdict()
    assert verdict.delivered == verdict.accepted == 10_000
    assert not (verdict.lost or verdict.duplicates or verdict.early or verdict.changed)


@pytest.mark.slow
def test_ten_thousand_messages_arrive_once_and_never_early_on_rabbitmq(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=CALM_LEASE_MS)
    check_ten_thousand(bridge, bridge.rabbitmq_queue(namespace))


@pytest.mark.slow
def test_ten_thousand_messages_arrive_once_and_never_early_on_kafka(
    make_bridge: MakeBridge, real_kafka_url: str, namespace: str
) -> None:
    bridge = make_bridge({"kafka": real_kafka_url}, lease_ttl_ms=CALM_LEASE_MS)
    check_ten_thousand(bridge, bridge.kafka_topic(namespace))

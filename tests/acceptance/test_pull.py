"""A pull topic over HTTP: consumers are processes, one of which is killed with messages in hand."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.rigs.bridge import CALM_LEASE_MS, MakeBridge
from tests.rigs.serve import Server
from tests.rigs.waiting import until_async

MESSAGES, HELD = 600, 40  # as many as the consumer receives at once


@pytest.mark.slow
async def test_what_a_killed_consumer_held_comes_again_and_all_is_finished(
    make_bridge: MakeBridge, namespace: str
) -> None:
    # given a worker, a server, and messages that are due within three seconds
    bridge = make_bridge({}, lease_ttl_ms=CALM_LEASE_MS)
    bridge.start_worker()
    server = Server(bridge)
    await server.start()
    bridge.schedule("pull:orders", MESSAGES, seconds=3)
    # Received at once: what is held for 2 s must not come again before all of it is.
    await until_async(lambda: bridge.client.stats().parked >= HELD, "enough are due")
    # when a consumer is killed while it holds 40, and three others receive and finish
    killed = bridge.pull_topic(server.url, "orders", ttr="2s", hold=HELD)
    await until_async(lambda: len(bridge.deliveries()) == HELD, "40 are held")
    killed.kill()
    held = {each.id for each in bridge.deliveries()}
    for _ in range(3):
        bridge.pull_topic(server.url, "orders", ttr="30s")
    bridge.wait_delivered()
    # then nothing is lost, early or changed, and those 40, and no others, came twice
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed)
    assert sorted(verdict.duplicates) == sorted(held)
    assert verdict.delivered == MESSAGES
    attempts = Counter(each.attempt for each in bridge.deliveries())
    assert attempts == {1: MESSAGES, 2: HELD}
    # by a worker that says that it has no broker
    assert "WARNING: no_brokers" in (bridge.folder / "w1.log").read_text()

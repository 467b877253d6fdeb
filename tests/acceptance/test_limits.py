"""A fleet of real workers keeps to a rate, by an independent consumer's clock."""

from __future__ import annotations

import statistics

import pytest

from tests.rigs.bridge import Bridge, MakeBridge
from tests.rigs.history import firsts
from tests.rigs.waiting import until

LEASE_TTL_MS = 2000
SAVED_S = 0.2  # of the rate: what a destination may save up
EARLY_S = 0.01  # the first permits are asked for when the first message is fired


def check_rate(bridge: Bridge, name: str, rate: int, workers: int, seconds: int) -> None:
    """A backlog goes out at its rate, and messages for another destination meanwhile on time.

    Of several workers one is killed in the middle.
    """
    limited, other = bridge.rabbitmq_queue(f"{name}-l"), bridge.rabbitmq_queue(f"{name}-o")
    bridge.start_workers(workers)
    bridge.client.destinations.limit(limited, rate)
    # Others first: to schedule the backlog may take a loaded machine longer than to send it.
    others = set(bridge.schedule(other, 50 * seconds, seconds=seconds, first_s=0.5))
    backlog = set(bridge.schedule(limited, rate * seconds, seconds=0))
    if workers > 1:
        until(lambda: len(bridge.deliveries()) > len(backlog) / 2, "half of it", interval_s=0.1)
        bridge.kill_worker(bridge.workers[0])
    bridge.wait_delivered()
    # then nothing is lost or early; what the killed worker had in flight may come twice
    verdict = bridge.verdict()
    assert not (verdict.lost or verdict.early or verdict.changed)
    held = rate * SAVED_S + 20 if workers > 1 else 0
    assert len(verdict.duplicates) <= held
    # and at no time more has arrived than the rate allows, wherever consumer or broker stalled
    came = firsts(bridge.deliveries())
    begun_us = 1000 * min(bridge.promises[id].due_ms for id in backlog)
    since_s = sorted((came[id].at_us - begun_us) / 1e6 for id in backlog)
    print(f"{rate}/s: the last of {len(since_s)} after {since_s[-1]:.2f} s")
    for n, at_s in enumerate(since_s):
        assert n < rate * (at_s + SAVED_S + EARLY_S) + 1
    # and the others did not wait for it: if they did, each would have come after the backlog's last
    late_s, wait_for_all_s = [], []
    for each in bridge.deliveries():
        if each.id in others:
            late_s.append(each.at_us / 1e6 - each.due_ms / 1e3)
            wait_for_all_s.append(since_s[-1] + begun_us / 1e6 - each.due_ms / 1e3)
    assert statistics.median(late_s) < statistics.median(wait_for_all_s) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "workers", "seconds"), [(100, 3, 4), (2000, 2, 3)])
def test_a_fleet_keeps_to_a_rate_though_a_worker_is_killed(
    make_bridge: MakeBridge, rabbitmq_url: str, namespace: str,
    rate: int, workers: int, seconds: int,
) -> None:  # fmt: skip
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, lease_ttl_ms=LEASE_TTL_MS)
    check_rate(bridge, namespace, rate, workers, seconds)

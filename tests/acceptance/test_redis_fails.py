"""Redis is killed, or does not answer: nothing is lost, and workers resume by themselves."""

from __future__ import annotations

import asyncio

import pytest

from delaybridge.errors import StoreError
from tests.rigs.bridge import OUTAGE_S, MakeBridge
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.waiting import wait_s
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.timeout(150)


def test_nothing_is_lost_when_redis_is_killed_and_restarted_under_load(
    make_bridge: MakeBridge, own_redis: RedisServer, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, redis_url=own_redis.url)
    destination = bridge.rabbitmq_queue(namespace)
    bridge.start_workers(2)
    for _ in range(3):
        bridge.schedule(destination, 1_000, seconds=6, first_s=0.5)
        wait_s(1.5)
        own_redis.kill()
        own_redis.start()
    bridge.wait_delivered()
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.changed


async def test_nothing_is_lost_while_redis_does_not_answer_for_ten_seconds(
    make_bridge: MakeBridge, own_redis: RedisServer, rabbitmq_url: str, namespace: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, redis_url=own_redis.url)
    destination = bridge.rabbitmq_queue(namespace)
    async with FaultProxy(free_port(), own_redis.port) as proxy:
        through_proxy = f"redis://127.0.0.1:{proxy.port}/0"
        await asyncio.to_thread(bridge.start_workers, 2, redis_url=through_proxy)
        await asyncio.to_thread(bridge.schedule, destination, 3_000, seconds=14, first_s=1)
        await asyncio.to_thread(wait_s, 3)
        proxy.mode = "blackhole"
        await asyncio.to_thread(wait_s, OUTAGE_S)
        proxy.mode = "pass"
        await asyncio.to_thread(bridge.wait_delivered)
    verdict = bridge.verdict()
    assert not verdict.lost
    assert not verdict.early
    assert not verdict.changed


def test_without_redis_schedule_raises_a_store_error(
    make_bridge: MakeBridge, own_redis: RedisServer, rabbitmq_url: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, redis_url=own_redis.url)
    bridge.client.stats()
    own_redis.kill()
    with pytest.raises(StoreError):
        bridge.client.schedule("rabbitmq:/q", b"x", delay=1)

"""Redis is away: callers are told. What becomes of messages, the cells of tests/chaos show."""

from __future__ import annotations

import pytest

from delaybridge.errors import StoreError
from tests.rigs.bridge import MakeBridge
from tests.servers.redis import RedisServer


def test_without_redis_schedule_raises_a_store_error(
    make_bridge: MakeBridge, own_redis: RedisServer, rabbitmq_url: str
) -> None:
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, redis_url=own_redis.url)
    bridge.client.stats()
    own_redis.kill()
    with pytest.raises(StoreError):
        bridge.client.schedule("rabbitmq:/q", b"x", delay=1)

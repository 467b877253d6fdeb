"""Managed Redis: a life of a message and a worker where a vendor refuses commands and scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from delaybridge.operate.doctor import selftest
from delaybridge.store.redis.store import Store
from tests.rigs.crew import SELDOM, Arrived, Crew
from tests.rigs.managed_redis import PROFILES, ManagedRedis
from tests.servers.redis import RedisServer

FAST = "serverless"
EACH = [pytest.param(n, marks=() if n == FAST else pytest.mark.slow) for n in PROFILES]


@pytest.fixture(params=EACH)
def managed(request: pytest.FixtureRequest) -> Iterator[ManagedRedis]:
    with RedisServer() as server, ManagedRedis(server.port, PROFILES[request.param]) as proxy:
        yield proxy


async def test_a_worker_delivers_there_and_every_script_runs(
    managed: ManagedRedis, namespace: str, arrived: Arrived
) -> None:
    store = Store(managed.url)
    assert selftest.run_scripts(store, namespace) > 30
    store.close()
    async with Crew(managed.url, namespace) as crew:
        crew.start(lease=SELDOM)
        later = await crew.client.schedule("memory:q", b"x", delay=600)
        await arrived.all(await crew.schedule(40, seconds=0.3))
        assert await crew.client.cancel(later.id) == "cancelled"
        await crew.settled()
    assert arrived.twice == [] and min(arrived.late_ms) >= 0
    assert not managed.refused & {"script", "keys"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vendor", "source", "keys"),
    [
        ("tair", "local k = KEYS[1] return redis.call('GET', k)", ["k"]),
        ("upstash", "return redis.call('GET', KEYS[1])", ["k", "unused"]),
        ("upstash", "return redis.call('GET', KEYS[1])", [""]),
        ("serverless", "return redis.call('TIME')", []),
    ],
)
def test_the_proxy_refuses_what_the_vendor_refuses(
    vendor: str, source: str, keys: list[str]
) -> None:
    with (
        RedisServer() as server,
        ManagedRedis(server.port, PROFILES[vendor]) as proxy,
        redis.Redis(port=proxy.port) as client,
        pytest.raises(redis.ResponseError, match=r"literal|in vain|can't run"),
    ):
        client.evalsha(client.script_load(source), len(keys), *keys)

"""Managed Redis: a life of a message and a worker where a vendor refuses commands and scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from delaybridge import Client, Message
from delaybridge.errors import ConfigError
from delaybridge.operate import cli
from delaybridge.operate.doctor import selftest
from delaybridge.store.protocol.scripts import scripts
from delaybridge.store.redis.store import Store
from tests.rigs.crew import SELDOM, Arrived, Crew
from tests.rigs.managed_redis import PROFILES, ManagedRedis
from tests.servers.redis import RedisServer

FAST = "serverless"
REFUSED = "garnet"
EACH = [
    pytest.param(name, marks=() if name == FAST else pytest.mark.slow)
    for name in PROFILES
    if name != REFUSED
]


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


def test_a_server_without_what_the_scripts_need_is_refused_when_a_namespace_is_made(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer() as server, ManagedRedis(server.port, PROFILES[REFUSED]) as proxy:
        with Client(proxy.url, namespace=namespace) as client:
            for _ in range(2):
                with pytest.raises(
                    ConfigError, match="has no cmsgpack.unpack_limit: choose another"
                ):
                    client.schedule("kafka:t", b"x", delay=1)
        assert cli.main(["--redis", proxy.url, "doctor", "--engine"]) == 1
        shown = capsys.readouterr().out
        assert "FAIL  scripts: cmsgpack.unpack_limit: it is missing" in shown
        assert "no WAITAOF: durability = aof-fsync" in shown
        with redis.Redis(port=server.port) as raw:
            assert raw.keys() == []


@pytest.mark.slow
def test_each_server_of_a_cluster_is_asked_for_its_own_time(
    cluster_url: str, namespace: str
) -> None:
    url = f"{cluster_url}?time_in_scripts=no"
    with Client(url, namespace=namespace) as client:
        ids = [f"{number}" for number in range(40)]
        messages = [Message("kafka:t", b"x", delay=60, id=id) for id in ids]
        assert {each.answer for each in client.schedule_many(messages)} == {"created"}
        assert {client.cancel(id) for id in ids} == {"cancelled"}
    store = Store(url)
    assert selftest.run_scripts(store, namespace) == len(scripts())
    store.close()


def test_doctor_names_the_setting_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer() as server, ManagedRedis(server.port, PROFILES[FAST]) as proxy:
        bare = proxy.url.partition("?")[0]
        assert cli.main(["--redis", bare, "doctor", "--engine"]) == 1
        assert "Add to redis.url: ?time_in_scripts=no" in capsys.readouterr().out
        assert cli.main(["--redis", proxy.url, "doctor", "--engine"]) == 0
        assert f"{len(scripts())} of {len(scripts())} scripts run" in capsys.readouterr().out

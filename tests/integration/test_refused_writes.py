"""A Redis that answers and takes no writes: everyone who looks after a bridge is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any, NamedTuple

import httpx
import pytest
from redis import Redis

from delaybridge.operate.doctor.findings import findings
from delaybridge.operate.metrics.gauges import gauges_of
from delaybridge.operate.metrics.health import ready
from delaybridge.operate.metrics.reader import Reader
from delaybridge.settings.settings import Settings
from delaybridge.worker.service import ProcessReport
from tests.rigs.api import api
from tests.rigs.redis_troubles import refuse_writes
from tests.rigs.waiting import until_async
from tests.servers.process import LOOPBACK, free_port
from tests.servers.redis import RedisServer


class Site(NamedTuple):
    redis: RedisServer
    admin: Redis
    http: httpx.AsyncClient
    namespace: str


@pytest.fixture
async def site(namespace: str) -> AsyncIterator[Site]:
    with RedisServer() as redis, Redis(port=redis.port) as admin:
        async with api(redis.url, namespace) as http:
            assert (await http.get("/health/ready")).status_code == 200
            yield Site(redis, admin, http, namespace)


def cannot_save(redis: RedisServer, admin: Redis) -> None:
    refuse_writes(redis, admin)


def has_no_replica(redis: RedisServer, admin: Redis) -> None:
    admin.config_set("min-replicas-to-write", 1)


def is_full(redis: RedisServer, admin: Redis) -> None:
    admin.config_set("maxmemory", 1)


REFUSALS: dict[str, tuple[Callable[[RedisServer, Redis], None], dict[str, Any]]] = {
    "MISCONF": (cannot_save, {"save": "", "stop-writes-on-bgsave-error": "no"}),
    "NOREPLICAS": (has_no_replica, {"min-replicas-to-write": 0}),
    "OOM": (is_full, {"maxmemory": 0}),
}


def is_replica(redis: RedisServer, admin: Redis) -> None:
    admin.replicaof(LOOPBACK, free_port())


@pytest.mark.parametrize("why", [*REFUSALS, "READONLY"])
def test_doctor_says_it_once_and_not_that_redis_is_to_be_started(why: str) -> None:
    refuse, mended = REFUSALS.get(why, (is_replica, {}))
    with RedisServer() as redis, Redis(port=redis.port) as admin:
        settings = Settings.load(None, {"redis": {"url": redis.url, "timeout_s": 1.0}})
        assert "FAIL" not in [each.level for each in findings(settings)]
        refuse(redis, admin)
        failed = [each for each in findings(settings) if each.level == "FAIL"]
        assert [each.code for each in failed if each.code != "store_full"] == [
            "store_refuses_writes"
        ]
        said = "out of memory" if why == "OOM" else why
        assert said in failed[0].what
        for name, value in mended.items():  # else it does not end before it could save
            admin.config_set(name, value)


@pytest.mark.parametrize("why", REFUSALS)
async def test_probes_and_metrics_say_that_redis_takes_no_writes(site: Site, why: str) -> None:
    refuse, mended = REFUSALS[why]
    reports = {"w": ProcessReport()}

    async def answer() -> httpx.Response:
        return await site.http.get("/health/ready")

    async def turned(status: int) -> bool:  # it looks once a second
        return (await answer()).status_code == status

    with closing(Reader(site.redis.url, site.namespace)) as reader:
        refuse(site.redis, site.admin)
        found = reader.read(())
        assert f"redis takes no writes: {why}" in ready(reports, found, patience_s=60).reasons[0]
        assert gauges_of(reports, found)["store_refusing",] == 1
        await until_async(lambda: turned(503), "serve is not ready")
        assert f"redis takes no writes: {why}" in (await answer()).json()["reasons"][0]
        for name, value in mended.items():
            site.admin.config_set(name, value)
        found = reader.read(())
        assert ready(reports, found, patience_s=60).is_well
        assert gauges_of(reports, found)["store_refusing",] == 0
        await until_async(lambda: turned(200), "serve is ready again")

"""What the console and the API tell of Redis: how quick scripts are, which calls were slow."""

from __future__ import annotations

import httpx
import redis

from delaybridge.operate.views.facts import ScriptTimes, script_times
from tests.rigs.api import api
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

CANARY = "S3CR3T-CANARY"
MESSAGE = {"id": "a", "destination": "pull:x", "body": CANARY, "delay": "1h"}


async def test_slow_calls_are_told_without_content_and_those_of_others_are_not(
    namespace: str,
) -> None:
    with RedisServer() as redis_server:
        async with api(redis_server.url, namespace) as client:
            await _note_calls(redis_server.url, client)
            answer, page = await client.get("/v1/store"), await client.get("/store")
    (server,) = answer.json()["servers"]
    assert "schedule" in {each["what"] for each in server["slow"]}
    assert len(server["slow"]) <= 20
    assert all(each["key"].startswith(f"{{{namespace}") for each in server["slow"])
    assert all(each["took_us"] >= 0 and each["at_ms"] > 1.7e12 for each in server["slow"])
    assert server["slow_missing"] == ""
    assert '<td class="id">schedule</td>' in page.text
    for text in (answer.text, page.text):
        assert CANARY not in text and "foreign" not in text and "not-ours" not in text


async def _note_calls(url: str, client: httpx.AsyncClient) -> None:
    """Redis notes some calls as slow: one of this namespace, of another, and a command."""
    with redis.Redis.from_url(url) as connection:
        connection.config_set("slowlog-log-slower-than", 0)
        async with api(url, "foreign") as other:
            for one in (client, other):
                assert (await one.post("/v1/messages", json=MESSAGE)).status_code == 201
        connection.set("not-ours", CANARY)
        connection.config_set("slowlog-log-slower-than", 10_000_000)


@ON_EVERY_REDIS
async def test_every_server_tells_how_quick_its_scripts_are(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace) as client:
        many = [{**MESSAGE, "id": f"m{n}"} for n in range(200)]
        assert (await client.post("/v1/messages:batch", json={"messages": many})).status_code == 207
        servers = (await client.get("/v1/store")).json()["servers"]
        page = (await client.get("/store")).text
    assert len(servers) >= 1
    for server in servers:
        times = server["scripts"]
        assert times["calls"] > 0 and times["mean_us"] > 0
        assert times["p50_us"] <= times["p99_us"]
        assert int(server["info"]["instantaneous_ops_per_sec"]) >= 0
        assert server["slow"] is not None and "cmdstat_evalsha" not in server["info"]
    assert page.count("Script calls") == len(servers)


def test_a_redis_that_knows_no_percentiles_or_ran_no_script() -> None:
    stats = {"cmdstat_evalsha": "calls=4,usec=90,usec_per_call=22.50,rejected_calls=0"}
    assert script_times(stats) == ScriptTimes(4, 22.5, None, None)
    assert script_times({"cmdstat_get": "calls=4,usec=90,usec_per_call=22.50"}) is None

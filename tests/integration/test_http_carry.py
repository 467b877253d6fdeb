"""Export and import over HTTP: lines as a download, and a job that stores lines."""

from __future__ import annotations

import json

import httpx

from delaybridge import Client, Message
from tests.rigs.api import ended_job


async def test_lines_are_downloaded_and_imported_as_a_job(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers={"memory": "memory://"}) as client:
        client.schedule_many([Message("memory:q", b"x", id=f"m{n}", delay="1h") for n in range(3)])
        answer = await http.get("/v1/messages:lines", params={"id_prefix": "m"})
        assert answer.status_code == 200
        lines = answer.text
        assert {json.loads(line)["id"] for line in lines.splitlines()} == {"m0", "m1", "m2"}
        assert client.cancel_many(["m0", "m1"]) == ["cancelled"] * 2
        body = f"{lines}junk\n".encode()
        dry = await http.post("/v1/messages:import", content=body, params={"dry_run": True})
        job = await ended_job(http, dry.json()["id"])
        assert job["answers"] == {"created": 2, "duplicate": 1, "bad": 1}
        assert client.get("m0") is None
        started = await http.post("/v1/messages:import", content=body)
        assert started.status_code == 202
        job = await ended_job(http, started.json()["id"])
        assert (job["state"], job["answers"]) == ("done", {"created": 2, "duplicate": 1, "bad": 1})
        assert "line 4" in job["notes"][0]
        assert client.get("m0") is not None


async def test_lines_of_one_state_are_chosen(
    http: httpx.AsyncClient, redis_url: str, namespace: str
) -> None:
    with Client(redis_url, namespace=namespace, brokers={"memory": "memory://"}) as client:
        client.schedule("memory:q", b"x", id="a", delay="1h")
    assert (await http.get("/v1/messages:lines", params={"state": "dead"})).text == ""
    assert '"id":"a"' in (await http.get("/v1/messages:lines", params={"state": "delayed"})).text
    assert (await http.get("/v1/messages:lines", params={"state": "gone"})).status_code == 422

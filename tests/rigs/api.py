"""The HTTP API on a port of its own, in this process, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil

from delaybridge.serve.console import snapshot
from delaybridge.serve.server import serving
from delaybridge.settings.settings import Settings
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, ended, until_async

# As a busy machine.
PATIENT = {"redis_s": PATIENCE_S, "request_s": DEADLINE_S, "write_s": DEADLINE_S}
# Of the console: how long it waits for Redis, and after how long a page has older numbers instead.
WAITS = [(serving, "_PAGE_S"), (snapshot, "_PATIENCE_S"), (snapshot, "_OLD_S")]
USUAL = [getattr(module, name) for module, name in WAITS]


@contextlib.asynccontextmanager
async def api(redis_url: str, namespace: str, **serve: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API.

    serve: settings of the section [serve], and others by their section, those without one as `top`;
    transport: limits of connections. Whoever gives its `redis_s` wants to see a Redis that is
    slow; all others wait for it as long as a starved machine needs.
    """
    limits = serve.pop("transport", {})
    is_patient = "redis_s" not in limits
    top = serve.pop("top", {})
    others = {name: serve.pop(name) for name in list(serve) if isinstance(serve[name], dict)}
    given = {"redis": {"url": redis_url}, "namespace": namespace, "serve": serve, **others, **top}
    settings = Settings.load(overrides=given)
    if is_patient and "redis" not in others:
        redis = settings.redis.model_copy(update={"timeout_s": PATIENCE_S})
        settings = settings.model_copy(update={"redis": redis})
    for (module, name), usual_s in zip(WAITS, USUAL, strict=True):
        setattr(module, name, PATIENCE_S if is_patient else usual_s)
    with serving.listener("127.0.0.1", 0) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        answering = asyncio.create_task(serving.answer_on(sock, settings, **PATIENT | limits))
        try:
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=False) as client:
                yield client
        finally:
            await ended(answering)


def accepted(http: httpx.AsyncClient) -> list[Any]:
    """The connections that the API has accepted and not closed; `fd` is its own end."""
    return [
        each
        for each in psutil.Process().net_connections("tcp4")
        if each.laddr.port == http.base_url.port and each.status == psutil.CONN_ESTABLISHED
    ]


async def job_of(http: httpx.AsyncClient, path: str, asked: Any) -> dict[str, Any]:
    """Ask for a bulk verb; its job, once that has ended in whichever way."""
    started = await http.post(path, json=asked)
    assert started.status_code == 202, started.text
    return await ended_job(http, started.json()["id"])


async def ended_job(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """The job, once it has ended in whichever way."""

    async def ended() -> dict[str, Any]:
        answer = await http.get(f"/v1/jobs/{id}")
        job: dict[str, Any] = answer.json()
        # Its process is this one: if nobody heard of it for long, the machine stood still.
        goes_on = answer.status_code == 503 or job["state"] in ("running", "interrupted")
        return {} if goes_on else job

    return await until_async(ended, "the job ends")

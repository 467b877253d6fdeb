"""The HTTP API on a port of its own, in this process, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil

from delaybridge.settings.settings import Settings
from delaybridge.web.serving import answer_on, listener
from tests.rigs.waiting import DEADLINE_S, until_async

PATIENT = {"redis_s": 10.0, "request_s": DEADLINE_S, "write_s": DEADLINE_S}  # as a busy machine


@contextlib.asynccontextmanager
async def api(redis_url: str, namespace: str, **serve: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API.

    serve: settings of the section [serve], and others by their section, those without one as `top`;
    transport: limits of connections.
    """
    transport = {**PATIENT, **serve.pop("transport", {})}
    top = serve.pop("top", {})
    others = {name: serve.pop(name) for name in list(serve) if isinstance(serve[name], dict)}
    given = {"redis": {"url": redis_url}, "namespace": namespace, "serve": serve, **others, **top}
    settings = Settings.load(overrides=given)
    with listener("127.0.0.1", 0) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        serving = asyncio.create_task(answer_on(sock, settings, **transport))
        try:
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=False) as client:
                yield client
        finally:
            serving.cancel()
            await asyncio.wait([serving])


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

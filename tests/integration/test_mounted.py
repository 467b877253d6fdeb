"""The API and the console mounted in applications of FastAPI, Starlette and Django, on uvicorn."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from delaybridge import web
from delaybridge.errors import ConfigError
from delaybridge.serve.server import mounting, serving
from delaybridge.serve.server.mounting import MountedApp
from delaybridge.settings.settings import Settings
from tests.rigs.crew import CALM
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until_async

MESSAGE = {"destination": "pull:x", "body": "1", "delay": "1h"}


def fastapi(bridge: MountedApp) -> Any:
    app = FastAPI()
    app.mount("/in/delaybridge", bridge)
    return app


def starlette(bridge: MountedApp) -> Any:
    return Starlette(routes=[Mount("/in/delaybridge", app=bridge)])


def django(bridge: MountedApp) -> Any:
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.test import override_settings

    if not settings.configured:  # once per process, maybe by another test
        settings.configure()
    override_settings(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x").enable()
    others = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/in/delaybridge/"):
            await bridge({**scope, "root_path": "/in/delaybridge"}, receive, send)
        else:
            await others(scope, receive, send)

    return application


urlpatterns: list[Any] = []  # of Django


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=False) as client:
                await until_async(lambda: _is_up(server), "the server answers")
                yield client
        finally:
            server.should_exit = True
            await serving


async def _is_up(server: uvicorn.Server) -> bool:
    return server.started


@pytest.fixture
async def bridge(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MountedApp]:
    monkeypatch.setattr(mounting, "_REDIS_S", PATIENCE_S)
    monkeypatch.setattr(serving, "_PAGE_S", PATIENCE_S)
    patient = {"url": redis_url, "timeout_s": PATIENCE_S}
    given = {"redis": patient, "lease": CALM, "namespace": namespace}
    made = web.app(Settings.load(overrides=given), trusted=True)
    yield made
    await made.aclose()


@pytest.mark.parametrize("framework", [fastapi, starlette, django])
async def test_everything_works_below_the_path_of_the_host(
    bridge: MountedApp, framework: Any
) -> None:
    async with served(framework(bridge)) as client:
        at = "/in/delaybridge"
        answer = await client.post(f"{at}/v1/messages", json={**MESSAGE, "id": "a/b"})
        assert answer.status_code == 201, answer.text
        assert (await client.get(f"{at}/v1/messages/a%2Fb")).json()["state"] == "delayed"
        page = await client.get(f"{at}/")
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
        assert page.status_code == 200 and all(link.startswith(f"{at}/") for link in links)
        for link in links:
            if "/static/" in link:
                assert (await client.get(link)).status_code == 200
        horizon = await client.get(f"{at}/horizon?range=1d")
        assert f'hx-get="{at}/horizon?range=1d"' in horizon.text
        assert (await client.get(f"{at}/docs")).status_code == 200
        document = (await client.get(f"{at}/openapi.json")).json()
        assert document["servers"] == [{"url": at}]
        assert (await client.get("/elsewhere")).status_code == 404


@pytest.mark.parametrize("framework", [fastapi, django])
async def test_streams_end_with_their_clients(bridge: MountedApp, framework: Any) -> None:
    async with served(framework(bridge)) as client:
        for path in ("live", "v1/events"):
            async with client.stream("GET", f"/in/delaybridge/{path}") as answer:
                assert answer.status_code == 200
                await anext(answer.aiter_lines())
        site = bridge.site
        assert site is not None

        async def all_gone() -> bool:
            return site.seats.count == 0

        await until_async(all_gone, "both streams end")


async def test_it_can_be_closed_and_opens_again(bridge: MountedApp) -> None:
    async with served(fastapi(bridge)) as client:
        assert (await client.get("/in/delaybridge/v1/stats")).status_code == 200
        await bridge.aclose()
        assert (await client.get("/in/delaybridge/v1/stats")).status_code == 200


def test_without_tokens_somebody_must_check_who_asks(redis_url: str, tmp_path: Path) -> None:
    settings = Settings.load(overrides={"redis": {"url": redis_url}})
    with pytest.raises(ConfigError, match="trusted=True"):
        web.app(settings)
    (tmp_path / "tokens").write_text("Zr7qK2mVx9TbWc4P read\n")
    serve = {"token_file": str(tmp_path / "tokens")}
    web.app(Settings.load(overrides={"redis": {"url": redis_url}, "serve": serve}))

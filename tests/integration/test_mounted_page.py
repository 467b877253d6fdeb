"""The examples of docs/http.md for other ASGI applications, as they are there, on uvicorn."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.rigs.bridge import ROOT
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until

TOKEN = "a-token-of-the-host-0123456789"
PAGE = (ROOT / "docs" / "http.md").read_text().split("\n## In your own ASGI application\n")[1]
FASTAPI, DJANGO = re.findall(r"```python\n(.*?)```", PAGE.split("\n## ")[0], re.DOTALL)
STARLETTE = FASTAPI.replace("fastapi import FastAPI", "starlette.applications import Starlette")
STARLETTE = STARLETTE.replace("FastAPI(", "Starlette(")
OF_DJANGO = 'SECRET_KEY, ALLOWED_HOSTS, ROOT_URLCONF = "x", ["*"], "urls"\n'
URLS = """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("own", lambda request: HttpResponse("of the host"))]
"""


@contextlib.contextmanager
def running(
    folder: Path, code: str, redis_url: str, namespace: str
) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """A client of an application that is in the file `page.py`, and its process."""
    for name, text in (("page", code), ("settings", OF_DJANGO), ("urls", URLS)):
        (folder / f"{name}.py").write_text(text)
    (folder / "tokens").write_text(f"{TOKEN} admin host\n")
    given = {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "DJANGO_SETTINGS_MODULE": "settings",
        "DELAYBRIDGE_REDIS_URL": redis_url,
        **PATIENT_PROCESS,
        "DELAYBRIDGE_NAMESPACE": namespace,
        "DELAYBRIDGE_SERVE__TOKEN_FILE": str(folder / "tokens"),
        "DELAYBRIDGE_SERVE__CONNECTIONS": "1",  # one stream at a time
    }
    name = "application" if "async def application" in code else "app"
    command = [sys.executable, "-m", "uvicorn", f"page:{name}", "--port", "0"]
    command += ["--timeout-graceful-shutdown", "1"]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env={**os.environ, **given}, cwd=folder, stdout=file, stderr=file
        )
    try:
        found = until(lambda: re.search(r"on (http://\S+)", log.read_text()), log.read_text)
        assert found is not None
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(
            base_url=found[1], headers=headers, timeout=DEADLINE_S, verify=False
        ) as client:
            yield client, psutil.Process(process.pid)
        process.terminate()
        process.wait(DEADLINE_S)
        assert "never awaited" not in log.read_text() and "unclosed" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "code", [FASTAPI, STARLETTE, DJANGO], ids=["fastapi", "starlette", "django"]
)
@pytest.mark.slow_with("fastapi")
def test_the_examples_work(code: str, tmp_path: Path, redis_url: str, namespace: str) -> None:
    with running(tmp_path, code, redis_url, namespace) as (client, _):
        at = "/delaybridge"
        message = {"destination": "kafka:orders", "body": "x", "delay": "15m", "id": "a/b %2F"}
        made = client.post(f"{at}/v1/messages", json=message)
        assert made.status_code == 201, made.text
        there = f"{at}/v1/messages/a%2Fb%20%252F"
        assert client.get(there).json()["id"] == message["id"]
        moved = client.patch(there, json={"delay": "1h"})
        assert moved.status_code == 200, moved.text
        assert client.get(f"{at}/v1/messages", headers={"authorization": ""}).status_code == 401
        assert client.get(f"{at}/docs").status_code == 200
        with client.stream("GET", f"{at}/v1/events") as answer:
            lines = answer.iter_lines()  # dropped, it would end the connection
            assert next(lines) == "retry: 3000"
            refused = client.get(f"{at}/v1/events")
            assert refused.json()["code"] == "too_many_clients"
        assert client.get("/own").text == "of the host" or code != DJANGO


def test_a_place_with_parameters_and_other_letters(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    code = STARLETTE.replace('"/delaybridge"', '"/v1/é/{tenant:int}"')
    with running(tmp_path, code, redis_url, namespace) as (client, _):
        for at in ("/v1/%C3%A9/7", "/v1/%c3%a9/8"):
            message = {"destination": "kafka:orders", "body": "x", "delay": "15m", "id": at}
            made = client.post(f"{at}/v1/messages", json=message)
            assert made.status_code == 201, made.text
            found = client.get(f"{at}/v1/messages/{at.replace('%', '%25').replace('/', '%2F')}")
            assert found.json()["id"] == at
            assert f'href="{at.upper().replace("V1", "v1")}/messages' in client.get(f"{at}/").text


def test_bodies_that_nobody_reads_take_no_memory(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with running(tmp_path, FASTAPI, redis_url, namespace) as (client, process):
        assert client.get("/delaybridge/v1/messages").status_code == 200
        before, most, sent = process.memory_info().rss, 0, 0
        with socket.create_connection((client.base_url.host, client.base_url.port)) as endless:
            head = f"host: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 200000000\r\n\r\n"
            endless.sendall(f"GET /delaybridge/v1/events HTTP/1.1\r\n{head}".encode())
            endless.settimeout(DEADLINE_S)
            assert endless.recv(1000).startswith(b"HTTP/1.1 200")
            endless.setblocking(False)
            refusals = 0
            while sent < 200_000_000 and refusals < 3:
                try:
                    sent += endless.send(bytes(1_000_000))
                    refusals = 0
                except BlockingIOError:  # full: an answer later it still is, if nobody reads it
                    assert client.get("/delaybridge/v1/messages").status_code == 200
                    refusals += 1
                most = max(most, process.memory_info().rss)
        assert sent and most < before + 60_000_000
        json = {"content-type": "application/json"}
        large = client.post("/delaybridge/v1/messages", content=bytes(20_000_000), headers=json)
        assert large.status_code == 413, large.text

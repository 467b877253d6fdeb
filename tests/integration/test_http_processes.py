"""`delaybridge serve` as a command: its processes, signals and settings."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from delaybridge.operate.terminal.failure import Exit
from tests.rigs.api_process import ApiProcess
from tests.rigs.command_line import Run
from tests.rigs.sessions import token_file_in
from tests.rigs.waiting import DEADLINE_S, until


def is_alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/live", timeout=DEADLINE_S).status_code == 200
    except httpx.TransportError:
        return False


def test_a_process_that_dies_is_replaced(redis_url: str, namespace: str, tmp_path: Path) -> None:
    """Also if a line was added to the tokens that this server cannot take."""
    tokens = token_file_in(tmp_path)
    args = ("--port", "0", "--processes", "2", "--token-file", str(tokens))
    with ApiProcess(tmp_path, redis_url, namespace, *args) as serving:
        until(lambda: is_alive(serving.url), "it answers")
        first = until(lambda: len(serving.children) == 2 and serving.children, "two")
        with tokens.open("a") as file:
            file.write("Ab7qK2mVx9TbWc4PZr3s write w newtenant\n")
        for child in first:
            child.kill()
        until(lambda: len({*serving.children} - {*first}) == 2, serving.log.read_text)
        assert is_alive(serving.url)
        children = serving.children
        assert serving.stop() == 0
        assert not any(psutil.pid_exists(child.pid) for child in children)


def test_children_end_with_their_parent(redis_url: str, namespace: str, tmp_path: Path) -> None:
    with ApiProcess(tmp_path, redis_url, namespace, "--port", "0", "--processes", "2") as serving:
        until(lambda: is_alive(serving.url), "it answers")
        children = until(lambda: len(serving.children) == 2 and serving.children, "two")
        serving.kill()
        until(lambda: not any(c.is_running() for c in children), "they ended")


def test_idle_connections_shut_nobody_out_where_few_files_may_be_open(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    with (
        ApiProcess(tmp_path, redis_url, namespace, "--port", "0", open_files=160) as serving,
        contextlib.ExitStack() as held,
    ):
        address = httpx.URL(serving.url)
        for _ in range(30):  # no more at once than may wait to be accepted
            for _ in range(10):
                held.enter_context(socket.create_connection((address.host, address.port)))
            assert is_alive(serving.url)
        log = serving.log.read_text()
        assert log.count("few_connections connections=80 open_files=160") == 1
        assert log.count("connections_full connections=80") == 1
        assert "Traceback" not in log and "out of system resource" not in log


async def test_a_stream_ends_when_the_server_drains(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    with ApiProcess(tmp_path, redis_url, namespace, "--port", "0") as serving:
        async with httpx.AsyncClient(
            base_url=serving.url, timeout=DEADLINE_S, verify=False
        ) as http:
            async with http.stream("GET", "/v1/events") as answer:
                lines = answer.aiter_lines()
                assert await anext(lines) == "retry: 3000"
                stopping = asyncio.create_task(asyncio.to_thread(serving.stop))
                async with asyncio.timeout(DEADLINE_S):
                    async for _ in lines:
                        pass
            assert await stopping == 0


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--host", "0.0.0.0", "--port", "0"], Exit.REFUSED, "serve.token_file"),
        (["--host", "::", "--port", "0"], Exit.REFUSED, "serve.token_file"),
        (["--token-file", "missing"], Exit.REFUSED, "missing"),
        (["--port", "70000"], Exit.REFUSED, "--port"),
        (["--processes", "0"], Exit.REFUSED, "--processes"),
        (["--base-path", "no slash"], Exit.REFUSED, "base_path"),
        (["--compat", "other"], Exit.REFUSED, "serve.compat"),
        (["--host", "256.1.1.1", "--token-file", "tokens"], Exit.REFUSED, "serve.host"),
    ],
)
def test_settings_that_make_no_sense(
    run: Run, tmp_path: Path, args: list[str], code: int, said: str
) -> None:
    (tmp_path / "tokens").write_text("Zr7qK2mVx9TbWc4P\n")
    result = run("serve", *([] if "--port" in args else ["--port", "0"]), *args)
    assert (result.code, said in result.err) == (code, True), result.err


def test_a_port_in_use_is_said(run: Run, redis_url: str, namespace: str, tmp_path: Path) -> None:
    with ApiProcess(tmp_path, redis_url, namespace, "--port", "0") as serving:
        result = run("serve", "--port", serving.url.rpartition(":")[2])
        assert result.code == Exit.REFUSED
        assert "is in use" in result.err

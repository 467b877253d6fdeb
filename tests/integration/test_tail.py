"""`delaybridge tail` beside real workers: events, trouble with Redis, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from delaybridge.operate.parts.broadcast import Broadcast
from delaybridge.worker import pulse
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import RedisServer


class Tail:
    """A `delaybridge tail --json` process, and the lines that it has printed."""

    def __init__(self, url: str, namespace: str) -> None:
        command = [sys.executable, "-m", "delaybridge", "--redis", url, "--namespace", namespace]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, "tail", "--json"], stdout=pipe, stderr=pipe)
        self.lines: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == name]

    async def said(self, name: str) -> dict[str, Any]:
        await until_async(lambda: self.events(name), f"it says {name}")
        return self.events(name)[0]


@pytest.fixture
def tails() -> Iterator[list[Tail]]:
    started: list[Tail] = []
    yield started
    for tail in started:
        tail.process.kill()
        tail.process.communicate()


async def test_tail_shows_the_events_of_workers_and_ctrl_c_ends_it(
    crew: Crew,
    arrived: Arrived,
    redis_url: str,
    namespace: str,
    tails: list[Tail],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A worker that ends waits only a moment for Redis to take its last events.
    monkeypatch.setattr(pulse, "_LAST_BEAT_S", DEADLINE_S)
    crew.start("a", lease=CALM)
    crew.start("b", lease=CALM)
    await crew.shared("a", "b")
    tails.append(tail := Tail(redis_url, namespace))
    await tail.said("listening")
    parts = [part for name in "ab" for part in crew.workers[name].parts]
    heard = [part for part in parts if isinstance(part, Broadcast)]
    await until_async(lambda: all(each.is_heard for each in heard), "heard")
    for _ in range(40):
        await crew.client.schedule("memory:q", b"S3CR3T", delay=0)

    def count() -> int:
        return sum(line["fields"]["n"] for line in tail.events("published"))

    await until_async(lambda: count() == 40, "all are shown")
    assert {line["worker"] for line in tail.events("published")} == {"a", "b"}
    assert {line["fields"]["destination"] for line in tail.events("published")} == {"memory:q"}
    await crew.stop("a")  # its last events are told before it ends
    await until_async(lambda: tail.events("lease_released"), "a gave up")
    assert tail.events("events_missing") == []
    assert "S3CR3T" not in str(tail.lines)
    tail.process.send_signal(signal.SIGINT)
    assert tail.process.wait(DEADLINE_S) == 0
    assert tail.process.stderr is not None and tail.process.stderr.read() == b""
    await until_async(lambda: not heard[1].is_heard, "nobody listens")


async def test_tail_says_that_redis_is_away_and_comes_back(
    namespace: str, arrived: Arrived, tails: list[Tail]
) -> None:
    with RedisServer(["--appendonly", "yes"]) as server:
        crew = Crew(server.url, namespace)
        crew.start()
        await crew.shared("w")
        tails.append(tail := Tail(server.url, namespace))
        await tail.said("listening")
        server.stop()
        await tail.said("redis_lost")
        server.start()
        assert "missing" in (await tail.said("redis_back"))["fields"]["hint"]

        async def published() -> bool:
            """The worker may not know yet that somebody listens again."""
            await crew.client.schedule("memory:q", b"", delay=0)
            return bool(tail.events("published"))

        await until_async(published, "it says what is published")
        await crew.close()


async def test_a_reader_that_closes_stdout_ends_it_although_nothing_happens(
    redis_url: str, namespace: str
) -> None:
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    process = subprocess.Popen([*command, "tail"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"listening" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 0

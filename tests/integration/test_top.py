"""`delaybridge top` in a real terminal of 80 x 24, on a real Redis with real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
import redis

from delaybridge import Client
from tests.rigs.crew import Arrived, Crew
from tests.rigs.tmux import Tmux
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.redis import RedisServer


def command(url: str, namespace: str, *options: str) -> list[str]:
    flags = ["--redis", url, "--namespace", namespace, "--broker", "memory=memory://"]
    return [sys.executable, "-m", "delaybridge", *flags, "top", *options]


@pytest.fixture
def tmux() -> Iterator[Tmux]:
    with Tmux() as tmux:
        yield tmux


async def test_every_view_fits_80_by_24_and_p_pauses_the_selected_destination(
    crew: Crew, arrived: Arrived, tmux: Tmux, redis_url: str, namespace: str
) -> None:
    crew.start("a")
    crew.start("b")
    await crew.shared("a", "b")
    for place, count in (("memory:orders", 30), ("memory:mail", 20)):
        for n in range(count):
            await crew.client.schedule(place, b"x", delay=30 + n)

    def drive() -> None:
        tmux.start(command(redis_url, namespace, "-i", "200ms"))
        tmux.shows("delayed 50", "workers 2", "NEXT MINUTE  50 fall due", "█", "q quit")
        tmux.shows("memory:orders", "memory:mail")
        tmux.press("2")
        tmux.press("j", "j", "P")  # the second: fewer messages
        tmux.shows("memory:mail is paused", "! memory:mail is paused")
        with redis.Redis.from_url(redis_url) as connection:
            rules = connection.hgetall(f"{{{namespace}}}:destinations")
            assert b'"paused":true' in rules[b"memory:mail"]
        tmux.press("P")
        tmux.shows("memory:mail is resumed", "well: every bucket", without="is paused for")
        tmux.press("3")
        tmux.shows("PROCESS", "8 buckets")
        tmux.press("Tab")
        tmux.shows("BUCKET", "OWNER", "15 ")
        tmux.press("?")
        tmux.shows("P               pause or resume")
        for width, height in ((40, 10), (30, 8), (120, 40), (80, 24)):
            tmux.resize(width, height)
            tmux.shows("too small" if width < 40 else "delaybridge top")
            assert len(tmux.screen.rstrip("\n").splitlines()) <= height
        tmux.press("?", "q")
        tmux.shows("ended-0")
        tmux.is_usable()

    await asyncio.to_thread(drive)
    await crew.stop("a")
    await crew.stop("b")


def test_it_says_that_redis_is_away_and_heals_itself(tmux: Tmux, namespace: str) -> None:
    with RedisServer(["--appendonly", "yes"]) as server:
        with Client(server.url, namespace=namespace) as client:
            client.schedule("kafka:t", b"x", delay="1h")
        tmux.start(command(server.url, namespace, "-i", "200ms"))
        tmux.shows("delayed 1")
        server.stop()
        tmux.shows("Redis has not answered for", "seen last: 1 delayed", "doctor")
        server.start()
        tmux.shows("delayed 1   in flight", without="has not answered")
        tmux.press("C-c")
        tmux.shows("ended-0")
        tmux.is_usable()


def pid_of(tmux: Tmux) -> int:
    """The process of the top that runs in the terminal's shell."""
    shell = psutil.Process(int(tmux.run("display-message", "-p", "-t", "t", "#{pane_pid}")))
    (child,) = shell.children()
    return child.pid


def test_the_terminal_is_given_back_at_a_sigterm_and_after_a_bug(
    tmux: Tmux, redis_url: str, namespace: str
) -> None:
    tmux.start(command(redis_url, namespace))
    tmux.shows("q quit")
    os.kill(pid_of(tmux), signal.SIGTERM)
    tmux.shows("ended-143")
    tmux.is_usable()
    bug = "import sys; from delaybridge.operate import cli; "
    bug += "from delaybridge.operate.top import page; "
    bug += "page._tabs = None; sys.exit(cli.main(sys.argv[1:]))"
    tmux.start([sys.executable, "-c", bug, *command(redis_url, namespace)[3:]])
    tmux.shows("internal: TypeError", "a bug in delaybri", "ended-1")
    tmux.is_usable()


def test_it_ends_when_its_terminal_is_closed(tmux: Tmux, redis_url: str, namespace: str) -> None:
    tmux.start(command(redis_url, namespace))
    tmux.shows("q quit")
    process = psutil.Process(pid_of(tmux))
    tmux.run("kill-session", "-t", "t")
    until(lambda: not process.is_running(), "it ends")


def test_it_needs_a_terminal_and_names_what_does_not(redis_url: str, namespace: str) -> None:
    done = subprocess.run(command(redis_url, namespace), capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr and b"delaybridge stats -i 1s" in done.stderr
    often = command(redis_url, namespace, "-i", "1ms")
    done = subprocess.run(often, capture_output=True, timeout=DEADLINE_S)
    assert b"-i: 1ms is too often; at least 200ms" in done.stderr


def test_it_names_a_redis_that_does_not_answer_at_the_start(tmux: Tmux, namespace: str) -> None:
    tmux.start(command("redis://127.0.0.1:1/0", namespace))
    tmux.shows("error: redis: no answer", "--redis URL", "ended-5")

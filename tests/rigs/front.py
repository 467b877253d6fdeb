"""`delaybridge front` before a RabbitMQ, and programs that know nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from delaybridge.ingest.routes import fronted
from tests.rigs.bridge import CALM_LEASE_MS, Bridge, rabbitmq_channel
from tests.rigs.fleet import is_settled
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers import languages
from tests.servers.clients import PROGRAMS
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import speaks_amqp

Row = dict[str, Any]
OF_INTAKE = ("", ".expired", ".owner")  # the ends of names at the broker


class Place:
    """Where programs find delayed exchanges: at the front, or at a broker with the true plugin."""

    is_front = False

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def negates(self) -> bool:
        """Whether a delivered message has its delay negated, as the plugin does since 4.0."""
        with rabbitmq_channel(self.url) as channel:
            version = channel.connection._impl.server_properties["version"]
            return self.is_front or not version.startswith("3.")


class Front(Place):
    """A front with its ingest, a worker, and the broker behind them; ends with `close`.

    settings: as environment variables, without their prefix. arguments: of `delaybridge front`.
    """

    is_front = True

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        namespace: str,
        broker_url: str,
        *arguments: str,
        **settings: str,
    ) -> None:
        self.broker_url, self.port = broker_url, free_port()
        parts = urlsplit(broker_url)
        login = parts.netloc.rpartition("@")[0]
        super().__init__(f"amqp://{login}@{LOOPBACK}:{self.port}{parts.path}")
        self.bridge = Bridge(
            folder,
            redis_url,
            namespace,
            {"rabbitmq": broker_url},
            lease_ttl_ms=CALM_LEASE_MS,
            settings={f"DELAYBRIDGE_{name}": value for name, value in settings.items()},
        )
        self._arguments = ["front", "--listen", f"{LOOPBACK}:{self.port}", *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the worker and the front; returns when the front answers."""
        self.start_front()
        self.bridge.start_worker()
        until(self._answers, self._said)

    def start_front(self) -> None:
        """Start the front, also once more when it has ended."""
        self.process = self.bridge.start(*self._arguments)

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self._said()
        return speaks_amqp(self.port)

    def _said(self) -> str:
        logs = [log.read_text()[-2000:] for log in self.bridge.folder.glob("front-*.log")]
        return f"the front answers; its log: {logs}"

    def settle(self) -> None:
        """Wait until no message is left; none may be dead."""
        until(lambda: is_settled(self.bridge.client), "no message is left")

    def remove(self, exchange: str) -> None:
        """Remove what fronts have made for an exchange whose name no test can choose."""
        route = fronted("rabbitmq", exchange, ".due")
        with rabbitmq_channel(self.broker_url) as channel:
            for name in (exchange, route.target, *(f"{route.queue}{of}" for of in OF_INTAKE)):
                channel.exchange_delete(name)
                channel.queue_delete(name)

    def close(self) -> None:
        self.bridge.close()


@contextlib.contextmanager
def place_of(request: pytest.FixtureRequest, kind: str) -> Iterator[Place]:
    """The place of one module: kind `plugin`, or `front` with a namespace of its own."""
    if kind == "plugin":
        yield Place(request.getfixturevalue("plugin_rabbitmq_url"))
        return
    folder = request.getfixturevalue("tmp_path_factory").mktemp("front")
    urls = [request.getfixturevalue(name) for name in ("redis_url", "rabbitmq_url")]
    front = Front(folder, urls[0], f"t-{os.urandom(8).hex()}", urls[1])
    try:
        front.start()
        yield front
    finally:
        front.close()


# programs


def command_of(program: str) -> list[str]:
    """How a program of `tests/clients` is run; raises NoServer where its language is missing."""
    language, _, rest = program.partition(" ")
    if language == "python":
        return [sys.executable, str(PROGRAMS / f"delayed_{rest}.py")]
    if language == "node":
        return ["node", str(PROGRAMS / f"delayed_{rest}.js")]
    return languages.command(language) + ([rest] if language == "java" else [])


class Run:
    """A program that runs with an exchange and a queue of a name of its own."""

    def __init__(self, program: str, url: str, delays: Sequence[str], node_modules: str) -> None:
        self.program, self.delays = program, delays
        self.name = f"{program.replace(' ', '-').lower()}-{os.urandom(4).hex()}"
        self._process = subprocess.Popen(
            [*command_of(program), url, self.name, *delays],
            env={**os.environ, "NODE_PATH": node_modules},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rows(self) -> list[Row]:
        """Wait until it has received all; what it printed."""
        printed, failed = self._process.communicate(timeout=DEADLINE_S)
        assert self._process.returncode == 0, f"{self.program}: {failed[-2000:]}{printed}"
        return [json.loads(line) for line in printed.splitlines()]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def running(
    programs: Sequence[str], url: str, delays: Sequence[str], node_modules: str
) -> Iterator[list[Run]]:
    """These programs, all at once."""
    with contextlib.ExitStack() as stack:
        runs = []
        for program in programs:
            run = Run(program, url, delays, node_modules)
            stack.callback(run.close)
            runs.append(run)
        yield runs


def left_in(url: str, queue: str) -> int:
    """The number of messages in a queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        return int(declared.method.message_count)

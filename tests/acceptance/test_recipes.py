"""Runs every block of docs/recipes.md as a reader does: on real servers, with the page's consumers.

Only the name differs: `orders` on the page becomes a unique name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from delaybridge import Client
from tests.rigs.bridge import ROOT
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import speaks_amqp

DELAY_MS = 3000
PAGE = ROOT / "docs" / "recipes.md"
DELIVERED = re.compile(r"(\S+) (.*) \{.*'delaybridge-due-ms': (?:b')?(\d+)")

REMINDED = re.compile(r"\[(\S+ \S+): WARNING/MainProcess\] Celery reminds Ada")


class Arrival(NamedTuple):
    """A line that a consumer of the page printed; the times are epoch ms."""

    text: str
    at_ms: float  # when the consumer printed it
    due_ms: int  # from the header


class Reader:
    """A reader: a folder, servers, and this page."""

    def __init__(self, folder: Path, redis_url: str, brokers: dict[str, str]) -> None:
        self.folder, self.name = folder, f"t-{uuid.uuid4().hex[:12]}"
        self.redis_url = redis_url
        self.client = Client(redis_url, namespace=self.name, brokers=brokers)
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "DELAYBRIDGE_REDIS_URL": redis_url,
            "DELAYBRIDGE_NAMESPACE": self.name,
            "DELAYBRIDGE_INGEST__GROUP": f"{self.name}.ingest",
            **{f"DELAYBRIDGE_BROKERS__{kind.upper()}": url for kind, url in brokers.items()},
            **PATIENT_PROCESS,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def block(self, title: str, language: str = "python", number: int = 0) -> str:
        """The code of a section: its block `number` in this language."""
        section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        found = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
        return str(found[number]).replace("orders", self.name)

    def start(self, log: str, code: str, language: str = "python") -> None:
        """Start it; its output goes to a log, and it is ended with the test."""
        with (self.folder / log).open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    _command(code, language),
                    stdout=out,
                    stderr=out,
                    env=self._environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def run(self, code: str, language: str = "python") -> str:
        """Run it; returns what it prints. It must exit with 0."""
        ended = subprocess.run(
            _command(code, language),
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert not ended.stderr
        return ended.stdout

    def printed(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")

    def wait_printed(self, log: str, text: str) -> None:
        until(lambda: text in self.printed(log), f"{text!r} in {log}", interval_s=0.05)

    def is_read(self) -> bool:
        """Whether the worker of the page reads the delay exchange and the delay topic."""
        ingests = self.client.stats().ingests
        states = {each.source: each.state for ingest in ingests for each in ingest.sources}
        return states == {f"{kind}:{self.name}.delay": "reading" for kind in ("rabbitmq", "kafka")}

    def arrivals(self, log: str) -> list[Arrival]:
        return [
            Arrival(text, datetime.fromisoformat(at).timestamp() * 1000, int(due_ms))
            for at, text, due_ms in DELIVERED.findall(self.printed(log))
        ]

    def check_arrives(self, log: str, text: str, began_ms: float) -> None:
        """Check that the message arrives once, after the page's delay, and nothing else waits."""
        arrived = until(
            lambda: [a for a in self.arrivals(log) if a.text == text],
            f"{text!r} at the consumer",
            interval_s=0.05,
        )
        assert len(arrived) == 1
        assert arrived[0].at_ms >= arrived[0].due_ms >= began_ms + DELAY_MS
        self.check_nothing_waits()
        assert "in an hour" not in self.printed(log)

    def check_nothing_waits(self) -> None:
        """Check that no message is pending or dead: cancelled ones are gone, none was refused."""

        def left() -> tuple[int, ...]:
            found = self.client.stats()
            return found.delayed, found.in_flight, found.parked, found.dead

        until(lambda: not any(left()), f"nothing waits: {left()}", interval_s=0.05)

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.client.close()


def _command(code: str, language: str) -> list[str]:
    python = [sys.executable, "-W", "error", "-c"]
    return [*(python if language == "python" else ["bash", "-euc"]), code]


@pytest.fixture(scope="module")
def reader(
    tmp_path_factory: pytest.TempPathFactory, redis_url: str, rabbitmq_url: str, real_kafka_url: str
) -> Iterator[Reader]:
    """A reader who has followed the section "First"."""
    brokers = {"rabbitmq": rabbitmq_url, "kafka": real_kafka_url}
    reader = Reader(tmp_path_factory.mktemp("reader"), redis_url, brokers)
    try:
        reader.start("rabbitmq", reader.block("First", number=0))
        reader.run(reader.block("First", number=1))
        reader.start("kafka", reader.block("First", number=2))
        reader.start("worker", reader.block("First", "sh"), "sh")
        until(reader.is_read, "the worker reads both sources", interval_s=0.1)
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("title", "log"),
    [
        ("Delay exchange", "rabbitmq"),
        ("Delay topic", "kafka"),
        ("pika", "rabbitmq"),
        ("kombu", "rabbitmq"),
        ("aio-pika", "rabbitmq"),
        ("confluent-kafka", "kafka"),
        ("aiokafka", "kafka"),
    ],
)
@pytest.mark.slow_with("kombu-*", "aio-pika-*", "confluent-*", "aiokafka-*")
def test_each_producer_of_the_page_delays_its_message(reader: Reader, title: str, log: str) -> None:
    began_ms = time.time() * 1000
    reader.run(reader.block(title))
    reader.check_arrives(log, title.lower(), began_ms)


@pytest.mark.slow
def test_the_celery_recipe_delays_its_task(reader: Reader) -> None:
    (reader.folder / "tasks.py").write_text(reader.block("Celery"))
    reader.start("celery", reader.block("Celery", "sh"), "sh")
    reader.wait_printed("celery", "ready.")
    reader.client.destinations.pause("rabbitmq")  # a slow machine is to find the task stored
    began_ms = time.time() * 1000
    id = reader.run(reader.block("Celery", "sh", 1), "sh").strip()
    stored = reader.client.get(id)
    reader.client.destinations.resume("rabbitmq")
    assert stored is not None
    assert stored.due_ms >= began_ms + DELAY_MS
    reader.wait_printed("celery", "Celery reminds Ada")
    (at,) = REMINDED.findall(reader.printed("celery"))
    assert datetime.fromisoformat(at.replace(",", ".")).timestamp() * 1000 >= stored.due_ms
    reader.check_nothing_waits()


def test_the_shell_recipe_schedules_and_cancels(reader: Reader) -> None:
    began_ms = time.time() * 1000
    lines = reader.run(reader.block("Shell", "sh"), "sh").splitlines()
    assert [line.split()[0] for line in lines] == ["order-44", "order-45", "order-46", "order-46"]
    assert lines[-1].split()[1] == "cancelled"
    for log in ("rabbitmq", "kafka"):
        reader.check_arrives(log, "shell", began_ms)


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_first_example_of_the_readme_delivers_its_message(reader: Reader) -> None:
    consumer, schedule = (
        code.replace("orders", f"{reader.name}-readme") for code in blocks_of("README.md")[:2]
    )
    reader.start("readme", consumer)
    began_ms = time.time() * 1000
    # A message that is due before its queue exists is tried again.
    reader.run(schedule)
    reader.wait_printed("readme", "order 42 is due")
    assert time.time() * 1000 >= began_ms + DELAY_MS


@pytest.mark.slow
@pytest.mark.parametrize("way", ["front", "changed"])
def test_a_producer_delays_its_message_unchanged_through_the_front_or_changed_as_the_page_says(
    way: str, reader: Reader
) -> None:
    before, after = blocks_of("docs/leaving-the-plugin.md")
    port = free_port()
    if way == "front":
        command = f"delaybridge front --listen {LOOPBACK}:{port} --broker rabbitmq"
        reader.start("front", command, "sh")
        until(lambda: speaks_amqp(port), "the front answers")
    connect = (
        "import os, pika\n"
        "url = pika.URLParameters(os.environ['DELAYBRIDGE_BROKERS__RABBITMQ'])\n"
        f"url.port = {port} if {way == 'front'} else url.port\n"
        "channel = pika.BlockingConnection(url).channel()\n"
        "channel.queue_declare('timeouts', durable=True)\n"
    )
    receive = (
        "for method, _, body in channel.consume('timeouts', auto_ack=True):\n"
        "    print(body.decode(), 'of', method.exchange, flush=True)\n"
    )
    code = connect + (before if way == "front" else after) + receive
    code = code.replace("timeouts", f"{reader.name}.{way}")
    name = f"{reader.name}-{way}" if way == "front" else reader.name
    began_s = time.time()
    reader.start(way, code.replace("orders", name))
    reader.wait_printed(way, f"order 42 of {name}")
    assert time.time() >= began_s + 5


def test_the_example_of_the_celery_page_runs_after_the_recipe(reader: Reader) -> None:
    *_, code = blocks_of("docs/celery.md")
    code = code.replace("orders", reader.name)
    printed = reader.run(f"python -c {shlex.quote(code)}", "sh").split()  # warnings are Celery's
    assert printed[1] == "REVOKED"
    reader.check_nothing_waits()


def test_every_block_of_the_python_page_runs(reader: Reader) -> None:
    local = "redis://localhost:6379/0"
    printed = [
        reader.run(code.replace("orders", reader.name).replace(local, reader.redis_url))
        for code in blocks_of("docs/python.md")
    ]
    assert printed[0].startswith("created")
    assert printed[-1] == "cancelled\n"
    reader.check_nothing_waits()


def test_every_block_of_the_page_is_run() -> None:
    """A section that is added to the page fails here until a test runs it."""
    page = PAGE.read_text()
    counts = {
        title: len(re.findall(r"```(?:python|sh)\n", section))
        for title, section in (part.split("\n", 1) for part in page.split("\n## ")[1:])
    }
    titles = ("Delay exchange", "Delay topic", "pika", "kombu", "aio-pika")
    titles += ("confluent-kafka", "aiokafka")
    assert counts == {"First": 4, **dict.fromkeys(titles, 1), "Celery": 3, "Shell": 1}

"""Runs every block of docs/recipes.md as a reader does: on real servers, with the page's consumers.

Only the name differs: `orders` on the page becomes a unique name.
"""

from __future__ import annotations

import re
import shlex
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
from tests.rigs.pages import blocks
from tests.rigs.terminals import Terminals
from tests.rigs.waiting import until
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


class Reader(Terminals):
    """A reader: a folder, servers, and this page."""

    def __init__(self, folder: Path, redis_url: str, brokers: dict[str, str]) -> None:
        self.name, self.redis_url = f"t-{uuid.uuid4().hex[:12]}", redis_url
        self.client = Client(redis_url, namespace=self.name, brokers=brokers)
        named = {
            "DELAYBRIDGE_REDIS_URL": redis_url,
            "DELAYBRIDGE_NAMESPACE": self.name,
            "DELAYBRIDGE_INGEST__GROUP": f"{self.name}.ingest",
            **{f"DELAYBRIDGE_BROKERS__{kind.upper()}": url for kind, url in brokers.items()},
        }
        super().__init__(folder, {**named, **PATIENT_PROCESS})

    def block(self, title: str, language: str = "python", number: int = 0) -> str:
        """The code of a section: its block `number` in this language."""
        found = blocks("docs/recipes.md", language, title)[number]
        return found.replace("orders", self.name)

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
        super().close()
        self.client.close()


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["front", "changed"])
def test_a_producer_delays_its_message_unchanged_through_the_front_or_changed_as_the_page_says(
    way: str, reader: Reader
) -> None:
    before, after = blocks("docs/leaving-the-plugin.md")
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
    *_, code = blocks("docs/celery.md")
    code = code.replace("orders", reader.name)
    printed = reader.run(f"python -c {shlex.quote(code)}", "sh").split()  # warnings are Celery's
    assert printed[1] == "REVOKED"
    reader.check_nothing_waits()


def test_every_block_of_the_python_page_runs(reader: Reader) -> None:
    local = "redis://localhost:6379/0"
    printed = [
        reader.run(code.replace("orders", reader.name).replace(local, reader.redis_url))
        for code in blocks("docs/python.md")
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

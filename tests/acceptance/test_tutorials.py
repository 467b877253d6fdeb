"""Does the tutorials as a reader does: each block in a shell of its own, on real servers.

Only the servers' addresses and names differ: `orders` on a page becomes a unique name.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.rigs.pages import blocks
from tests.rigs.terminals import WatchedUser
from tests.rigs.waiting import until
from tests.servers.process import LOOPBACK, free_port
from tests.servers.rabbitmq import speaks_amqp

RABBITMQ, KAFKA = "docs/tutorial-rabbitmq.md", "docs/tutorial-kafka.md"
CELERY, LEAVING = "docs/celery.md", "docs/leaving-the-plugin.md"
START_AGAIN = "delaybridge scan --with-ingest"


class Reader(WatchedUser):
    """A reader of the tutorials."""

    def __init__(self, folder: Path, redis_url: str, brokers: dict[str, str]) -> None:
        super().__init__(folder, redis_url, brokers)
        self.environment["DELAYBRIDGE_INGEST__GROUP"] = f"{self.name}.ingest"

    def blocks(self, page: str) -> list[str]:
        """The page's commands, but for the installation."""
        found = [self.here(block) for block in blocks(page, "sh")]
        assert "pip install delaybridge" in found[0]
        return found[1:]

    def do_without_a_worker(self, number: int, last: str, consumer: str) -> None:
        """End the worker, do the last step, and start it again: its message was kept."""
        worker = self.processes[number]
        os.killpg(worker.pid, signal.SIGINT)
        assert worker.wait(20) in (0, -signal.SIGINT, 128 + signal.SIGINT)
        self.start("health", last, "sh")
        until(lambda: "no worker" in self.printed("health"), "health says what is wrong")
        until(lambda: self.processes[-1].poll() is not None, "it is scheduled")
        self.start("again", START_AGAIN, "sh")
        self.wait_printed(consumer, "late, not lost")


@pytest.fixture
def reader(tmp_path: Path, redis_url: str, rabbitmq_url: str, request: Any) -> Iterator[Reader]:
    brokers = {"rabbitmq": rabbitmq_url}
    if request.function.__name__.endswith("kafka"):
        brokers["kafka"] = request.getfixturevalue("real_kafka_url")
    reader = Reader(tmp_path, redis_url, brokers)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.slow
def test_the_tutorial_of_rabbitmq(reader: Reader) -> None:
    worker, consumer, shell, python, change, program, last = reader.blocks(RABBITMQ)
    reader.start("worker", worker, "sh")
    until(reader.is_read, "the worker reads the exchange", interval_s=0.1)
    reader.start("consumer", consumer, "sh")
    reader.run(shell, "sh")
    reader.run(python, "sh")
    assert reader.run(change, "sh").splitlines()[-1].split() == ["order-44", "cancelled"]
    reader.run(program, "sh")
    for text in ("order 42 is due {", '{"order":43} {', "delayed by a header {"):
        reader.wait_printed("consumer", text)
    assert "'delaybridge-id': 'order-42'" in reader.printed("consumer")
    reader.do_without_a_worker(0, last, "consumer")
    reader.check_nothing_waits()
    assert "never seen" not in reader.printed("consumer")


@pytest.mark.slow
def test_the_tutorial_of_kafka(reader: Reader) -> None:
    topics, worker, consumer, shell, program, last = reader.blocks(KAFKA)
    reader.run(topics, "sh")
    reader.start("worker", worker, "sh")
    until(reader.is_read, "the worker reads the topic", interval_s=0.1)
    reader.start("consumer", consumer, "sh")
    assert reader.run(shell, "sh").splitlines()[-1].split() == ["order-43", "cancelled"]
    reader.run(program, "sh")
    for text in ("b'order 42 is due' {", "b'delayed by a header' {"):
        reader.wait_printed("consumer", text)
    reader.do_without_a_worker(0, last, "consumer")
    reader.check_nothing_waits()
    assert "never seen" not in reader.printed("consumer")


@pytest.mark.slow
def test_the_tutorial_of_celery(reader: Reader) -> None:
    worker, celery, call = reader.blocks(CELERY)
    (reader.folder / "tasks.py").write_text(reader.here(*blocks(CELERY)))
    reader.start("worker", worker, "sh")
    until(lambda: reader.client.stats().workers, "the worker runs", interval_s=0.1)
    reader.start("celery", celery, "sh")
    reader.wait_printed("celery", "ready.")
    began_s = time.time()
    id, state = reader.run(call, "sh").split()
    assert (len(id), state) == (36, "REVOKED")
    reader.wait_printed("celery", "Celery reminds Ada")
    assert time.time() >= began_s + 3
    reader.check_nothing_waits()
    assert "Bob" not in reader.printed("celery")


@pytest.mark.slow
def test_a_program_for_the_plugin_delays_its_message_through_the_front(reader: Reader) -> None:
    worker, program, *_ = map(reader.here, blocks(LEAVING, "sh"))
    port = free_port()
    reader.start("worker", worker.replace("5673", str(port)), "sh")
    until(lambda: speaks_amqp(port), "the front answers")
    front = urlsplit(reader.rabbitmq_url)
    host = f"{front.username}:{front.password}@{LOOPBACK}:{port}"
    program = program.replace("guest:guest@localhost:5673", host)
    began_s = time.time()
    assert reader.run(program, "sh") == f"order 42 of {reader.name}-1\n"
    assert time.time() >= began_s + 5


@pytest.mark.slow
def test_the_program_that_was_changed_delays_its_message_through_a_delay_exchange(
    reader: Reader,
) -> None:
    *_, worker, program = map(reader.here, blocks(LEAVING, "sh"))
    reader.start("worker", worker, "sh")
    until(reader.is_read, "the worker reads the exchange", interval_s=0.1)
    began_s = time.time()
    assert reader.run(program, "sh") == f"order 42 of {reader.name}-2\n"
    assert time.time() >= began_s + 5
    reader.check_nothing_waits()


def test_every_block_of_the_python_page_runs(reader: Reader) -> None:
    settings = 'cat > delaybridge.toml <<END\nredis.url = "redis://localhost:6379/0"\nEND\n'
    reader.run(reader.here(f"{settings}chmod 600 delaybridge.toml"), "sh")
    printed = [
        reader.run(reader.here(code).replace(
            f'Client("{reader.redis_url}")', "Client.from_settings()"))
        for code in blocks("docs/python.md")
    ]  # fmt: skip
    assert printed[0].startswith("created")
    assert printed[-1] == "cancelled\n"
    reader.check_nothing_waits()

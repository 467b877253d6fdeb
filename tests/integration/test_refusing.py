"""What an operator is told of destinations that refuse their messages, with a real worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from delaybridge import Client, Message
from delaybridge.message import State
from tests.rigs.bridge import make_topic, rabbitmq_channel
from tests.rigs.command_line import Run
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import until

Start = Callable[[str], None]


@pytest.fixture
def full(rabbitmq_url: str, namespace: str) -> Iterator[str]:
    """A queue that has its one message, and refuses all others."""
    with rabbitmq_channel(rabbitmq_url) as channel:
        limit = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(namespace, durable=True, arguments=limit)
        channel.confirm_delivery()
        channel.basic_publish("", namespace, b"the one", mandatory=True)
        yield f"rabbitmq:/{namespace}"
        channel.queue_delete(namespace)


@pytest.fixture
def compacted(real_kafka_url: str, namespace: str) -> str:
    """A topic that takes no record without a key."""
    config = {"cleanup.policy": "compact"}
    topic = NewTopic(namespace, 1, 1, config=config)
    make_topic(AdminClient({"bootstrap.servers": urlsplit(real_kafka_url).netloc}), topic)
    return f"kafka:{namespace}"


@pytest.fixture
def start(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Starts a worker for the broker of this URL, whose retries wait for an hour."""
    patient = {**PATIENT_PROCESS, "DELAYBRIDGE_LEASE__RENEW_MS": "200"}
    for name in ("BASE_MS", "MAX_MS"):
        patient[f"DELAYBRIDGE_RETRY__{name}"] = "3600000"
    for name, value in patient.items():
        monkeypatch.setenv(name, value)
    program = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    with ExitStack() as stack:

        def start(url: str) -> None:
            command = [*program, "--broker", url, "scan", "--name", "w"]
            log = stack.enter_context((tmp_path / "log").open("wb"))
            process = stack.enter_context(subprocess.Popen(command, stderr=log))
            stack.callback(process.kill)

        yield start


def trouble_of(client: Client, destination: str) -> str:
    return client.destinations(destination).places[0].trouble or ""


def test_a_full_queue_is_trouble_until_it_takes_messages_again(
    caller: Client, run: Run, start: Start, full: str, rabbitmq_url: str, namespace: str
) -> None:
    start(rabbitmq_url)
    caller.schedule_many(Message(full, b"x", delay=0, retry={"max_attempts": 1}) for _ in range(3))
    until(lambda: "refuses" in trouble_of(caller, full), "it is known to refuse messages")
    why = "refuses: nacked: a queue did not take it, another one may have (w)"
    assert trouble_of(caller, full) == why
    assert len(caller.pending(state=State.DEAD).items) == 3
    told = [each["text"] for each in run("--json", "doctor").objects if full in each["text"]]
    assert [text for text in told if text.startswith(f"{full} refuses messages: nacked")]
    assert "destination_refuses" in run("stats").out

    caller.schedule_many(Message(full, b"x", delay=0) for _ in range(3))
    until(lambda: sum(each.messages for each in caller.stats().retrying) == 3, "all are retried")
    (row,) = run("--json", "destination", "ls").objects
    assert row["state"] == "trouble" and row["retrying"][0]["reason"] == "nacked"
    assert f"  3 to {full} for " in run("horizon", "--for", "2h", "--destination", full).out
    assert [each.messages for each in caller.horizon("2h").retrying] == [3]

    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.queue_purge(namespace)
        caller.schedule(full, b"y", delay=0)
        until(lambda: not trouble_of(caller, full), "it took a message")
    (row,) = run("--json", "destination", "ls").objects
    assert row["state"] == "retrying" and row["trouble"] is None
    assert "retrying 3" in run("destination", "ls").out


@pytest.mark.slow
def test_a_topic_that_rejects_is_trouble(
    caller: Client, run: Run, start: Start, compacted: str, real_kafka_url: str
) -> None:
    start(real_kafka_url)
    caller.schedule_many(Message(compacted, b"x", delay=0) for _ in range(3))
    until(lambda: "refuses" in trouble_of(caller, compacted), "it is known to refuse messages")
    (row,) = run("--json", "destination", "ls").objects
    assert row["state"] == "trouble" and "refuses: " in row["trouble"]

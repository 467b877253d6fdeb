"""Programs that declare a delayed exchange themselves, through the front; and with the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import pytest

from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.front import (
    Front,
    Place,
    Row,
    Run,
    command_of,
    left_in,
    place_of,
    running,
)
from tests.rigs.waiting import DEADLINE_S
from tests.servers.clients import PROGRAMS
from tests.servers.sources import NoServer

DELAYS = ["300", "-", "100", "0"]  # milliseconds; -: without the header
# Of aio-pika and amqplib 100 is a signed byte, which the plugin's last versions do not read.
PLUGIN_DELAYS = ["300", "-", "200", "0"]
ONE_OF_EACH_LANGUAGE = [
    "python pika",
    "node amqplib",
    "go",
    "java Delayed",
    "php",
    "ruby",
]
OTHERS = [
    "python aio_pika",
    "python kombu",
    "python taskiq",
    "node amqplib_callback",
    "node golevelup",
    "java DelayedJms",
]


@pytest.fixture(scope="module", params=["front", "plugin"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The front; and to compare with it, a broker with the plugin, where one is given."""
    with place_of(request, request.param) as place:
        yield place


@pytest.mark.slow_with("plugin*")
def test_each_language_receives_its_messages_when_they_are_due(
    place: Place, node_modules: str
) -> None:
    check(place, ONE_OF_EACH_LANGUAGE, node_modules)


@pytest.mark.slow
def test_so_does_each_other_library(place: Place, node_modules: str) -> None:
    try:
        check(place, OTHERS, node_modules)
    finally:
        if isinstance(place, Front):
            place.remove("x-delayed-jms-message")  # of the JMS client, the same everywhere


@pytest.mark.slow
@pytest.mark.parametrize("place", ["front"], indirect=True)
def test_what_is_published_past_the_front_is_delayed_too(
    place: Front, node_modules: str, namespace: str
) -> None:
    """Over AMQP 1.0, at RabbitMQ itself: the exchange is RabbitMQ's own."""
    parts = urlsplit(place.broker_url)
    with rabbitmq_channel(place.url) as channel:
        arguments = {"x-delayed-type": "topic"}
        channel.exchange_declare(namespace, "x-delayed-message", arguments=arguments)
        channel.queue_declare(namespace)
        channel.queue_bind(namespace, namespace, "a.*")
        rows = [{"message_id": "now", "body": ""}, {"message_id": "later", "body": ""}]
        rows[1]["application_properties"] = {"x-delay": 300}  # type: ignore[assignment]
        sent_ms = time.time() * 1000
        address = [str(parts.hostname), str(parts.port), f"/exchanges/{namespace}/a.b"]
        subprocess.run(
            ["node", str(PROGRAMS / "rhea_publish.js"), *address],
            input="".join(json.dumps(row) + "\n" for row in rows),
            env={**os.environ, "NODE_PATH": node_modules},
            timeout=DEADLINE_S, text=True, check=True,
        )  # fmt: skip
        came = []
        for method, properties, _ in channel.consume(namespace, inactivity_timeout=DEADLINE_S):
            assert method is not None, came
            came.append((properties.message_id, method.exchange))
            if len(came) == 2:
                break
    assert came == [("now", namespace), ("later", namespace)]
    assert time.time() * 1000 >= sent_ms + 300


def check(place: Place, programs: Sequence[str], node_modules: str) -> None:
    delays = DELAYS if place.is_front else PLUGIN_DELAYS
    here = [program for program in programs if can_run(program)]
    with running(here, place.url, delays, node_modules) as runs:
        for run in runs:
            check_run(place, run, run.rows())
            assert left_in(place.url, run.name) == 0, f"{run.program}: more came"
    if isinstance(place, Front):
        place.settle()
    if here != programs:  # the others were checked nevertheless
        pytest.skip(f"cannot run here: {sorted({*programs} - {*here})}")


def can_run(program: str) -> bool:
    """Whether its language and its library are installed."""
    try:
        return bool(command_of(program))
    except NoServer:
        return False


def check_run(place: Place, run: Run, rows: list[Row]) -> None:
    sent = {row["sent"]: row["atMs"] for row in rows if "sent" in row}
    received = [row for row in rows if "received" in row]
    said = f"{run.program}: {rows}"
    assert sorted(row["received"] for row in received) == sorted(sent), said
    assert len(sent) == len(run.delays), said
    # Spring shows it without its sign.
    sign = -1 if place.negates and run.program != "java Delayed" else 1
    for row in received:
        id = row["received"]
        delay = run.delays[int(id[1:])]
        expected = {
            "exchange": run.name,
            "key": "a.b",
            "delay": None if delay == "-" else sign * int(delay),
            "own": "kept",
            "type": "text/plain",
            "body": f"body {id}",
        }
        # a program tells what its library shows
        assert {name: row.get(name, value) for name, value in expected.items()} == expected, said
        assert row["atMs"] >= sent[id] + (0 if delay == "-" else int(delay)), said
    # the plugin says so of each delayed message that is mandatory, though it has stored it
    assert not (place.is_front and [row for row in rows if "returned" in row]), said

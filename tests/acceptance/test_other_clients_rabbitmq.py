"""Clients in JavaScript, which know nothing of delaybridge: amqplib, and rhea (AMQP 1.0)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from tests.rigs.bridge import CALM_LEASE_MS, Bridge, MakeBridge, rabbitmq_channel
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S
from tests.servers.clients import PROGRAMS

SLACK_MS = 2000
Row = dict[str, Any]


class Node:
    """Runs the programs of `tests/clients`; kills those that still run at the end."""

    def __init__(self, modules: str, url: str) -> None:
        self._environment = {"PATH": os.environ["PATH"], "NODE_PATH": modules}
        self._url, parts = url, urlsplit(url)
        self._place = [str(parts.hostname), str(parts.port)]
        self._running: list[subprocess.Popen[str]] = []

    def amqplib(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return self._start(f"amqplib_{program}.js", self._url, *arguments)

    def rhea(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return self._start(f"rhea_{program}.js", *self._place, *arguments)

    def _start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["node", str(PROGRAMS / script), *arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def end(self, process: subprocess.Popen[str], lines: Sequence[Row] = ()) -> list[Row]:
        """Send it these lines and wait for exit code 0; returns the lines that it printed."""
        given = "".join(json.dumps(line) + "\n" for line in lines)
        printed, failed = process.communicate(given, timeout=DEADLINE_S)
        assert (process.returncode, failed) == (0, "")
        return [json.loads(line) for line in printed.splitlines()]

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def node(node_modules: str, rabbitmq_url: str) -> Iterator[Node]:
    node = Node(node_modules, rabbitmq_url)
    yield node
    node.close()


@pytest.fixture
def bridge(make_bridge: MakeBridge, rabbitmq_url: str, namespace: str) -> Bridge:
    """A worker that ingests NAMESPACE.delay, whose target has queues NAMESPACE and NAMESPACE-2."""
    exchanges = {"DELAYBRIDGE_INGEST__EXCHANGES": f"{namespace}.delay"}
    bridge = make_bridge({"rabbitmq": rabbitmq_url}, settings=exchanges, lease_ttl_ms=CALM_LEASE_MS)
    bridge.rabbitmq_queue(namespace, consume=False)
    with rabbitmq_channel(rabbitmq_url) as channel:
        second = f"{namespace}-2"
        channel.queue_declare(second, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(second, namespace, "#")
    bridge.start("scan", "--with-ingest")
    bridge.wait_reading(f"rabbitmq:{namespace}.delay")
    return bridge


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def split_own(headers: Row) -> tuple[Row, Row]:
    """delaybridge's three headers, and the others, without those addressed to delaybridge."""
    own = {n: v for n, v in headers.items() if n.startswith("delaybridge-")}
    return own, {n: v for n, v in headers.items() if n not in own}


def check_time(row: Row, own: Row, sent_ms: int, wait_ms: int, stall: Stall) -> None:
    due_ms = own["delaybridge-due-ms"]
    assert sent_ms + wait_ms <= due_ms <= row["atMs"]
    assert row["atMs"] <= due_ms + SLACK_MS + stall.worst_ms


def test_amqplib_receives_the_same_message_later(
    bridge: Bridge, node: Node, namespace: str, stall: Stall
) -> None:
    asked: list[tuple[Row, int]] = [
        ({"x-delay": 700}, 700),
        ({"x-delay": 200}, 200),  # sent as an AMQP short
        ({"x-delay": 90}, 90),  # sent as a byte
        ({"x-delay": {"!": "int64", "value": 600}}, 600),
        ({"x-delay": {"!": "double", "value": 500}}, 500),
        ({"x-delay": "400"}, 400),
        ({"delaybridge-delay": "300ms"}, 300),
        ({"x-delay": 0}, 0),
        ({}, 0),
    ]
    mine = {
        "whole": 5,
        "half": 0.5,
        "long": 2**40,
        "flag": True,
        "nothing": None,
        "nested": {"a": [1, "b", {"c": False}]},
        "when": {"!": "timestamp", "value": 1_700_000_000},
    }
    lines = [
        {
            "key": "a.\u20ac",
            "body": encoded(bytes(range(256)) * number),
            "options": {
                "headers": {**mine, **headers},
                "messageId": f"m{number}",
                "contentType": "application/json",
                "contentEncoding": "gzip",
                "correlationId": "c",
                "replyTo": "somewhere",
                "expiration": "60000",
                "priority": 7,
                "timestamp": 1_700_000_000,
                "type": "t",
                "appId": "app",
                "persistent": True,
            },
        }
        for number, (headers, _) in enumerate(asked)
    ]
    # given what a consumer receives of a direct publish
    direct = node.amqplib("consume", namespace, str(len(lines)))
    node.end(node.amqplib("publish", namespace), lines)
    expected = {row["properties"]["messageId"]: row for row in node.end(direct)}
    # when the same messages go to the delay exchange
    delayed = node.amqplib("consume", namespace, str(len(lines)))
    sent_ms = time.time_ns() // 1_000_000
    node.end(node.amqplib("publish", f"{namespace}.delay"), lines)
    found = {row["properties"]["messageId"]: row for row in node.end(delayed)}
    # then a consumer receives the same, later
    assert found.keys() == expected.keys()
    for id, row in found.items():
        own, row["properties"]["headers"] = split_own(row["properties"]["headers"])
        _, expected[id]["properties"]["headers"] = split_own(expected[id]["properties"]["headers"])
        given, wait_ms = asked[int(id[1:])]
        if given:
            assert own.keys() == {"delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt"}
            assert own["delaybridge-id"] == id
            check_time(row, own, sent_ms, wait_ms, stall)
        else:  # the broker alone passed it on
            assert not own
        assert {**row, "atMs": 0} == {**expected[id], "atMs": 0}


@pytest.mark.slow
def test_rhea_receives_the_same_message_later(
    bridge: Bridge, node: Node, namespace: str, rabbitmq_url: str, stall: Stall
) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        if connection._impl.server_properties["version"].startswith("3."):
            pytest.skip("RabbitMQ 3 speaks AMQP 1.0 only with a plugin")

    def lines(now_ms: int) -> list[Row]:
        asked: list[Row] = [
            {"delayMs": 700},
            {"dueMs": now_ms + 1500},
            {"application_properties": {"x-delay": 500}},
            {"application_properties": {"delaybridge-delay": "300ms"}},
            {"message_annotations": {"x-delay": 200}},
            {},
        ]
        return [
            {
                "message_id": f"m{number}",
                "correlation_id": "c",
                "content_type": "application/json",
                "reply_to": "/queues/somewhere",
                "durable": True,
                "priority": 7,
                "ttl": 60_000,
                **one,
                "application_properties": {
                    "n": 5,
                    "half": 0.5,
                    "flag": True,
                    "text": "\u20ac",
                    **one.get("application_properties", {}),
                },
                "message_annotations": {"x-own": "y", **one.get("message_annotations", {})},
                # two kinds of body: bytes, and a value of an AMQP type
                **({"text": {"a": [1, "b"]}} if number % 2 else {"body": encoded(b"\xff\0")}),
            }
            for number, one in enumerate(asked)
        ]

    waits = [700, 1500, 500, 300, 200, 0]
    queue, count = f"/queues/{namespace}", str(len(waits))
    direct = node.rhea("consume", queue, count)
    node.end(node.rhea("publish", f"/exchanges/{namespace}/a.b"), lines(0))
    expected = {row["message_id"]: row for row in node.end(direct)}
    plain = node.amqplib("consume", f"{namespace}-2", str(2 * len(waits)))
    delayed = node.rhea("consume", queue, count)
    sent_ms = time.time_ns() // 1_000_000
    node.end(node.rhea("publish", f"/exchanges/{namespace}.delay/a.b"), lines(sent_ms))
    found = {row["message_id"]: row for row in node.end(delayed)}
    assert found.keys() == expected.keys()
    for id, row in found.items():
        own, row["application_properties"] = split_own(row["application_properties"])
        sent = expected[id]
        _, sent["application_properties"] = split_own(sent["application_properties"])
        if wait_ms := waits[int(id[1:])]:
            assert own["delaybridge-id"] == id
            check_time(row, own, sent_ms, wait_ms, stall)
        for each in (row, sent):
            # The broker makes an annotation of each x-... property, whatever it was before.
            annotations = each.pop("message_annotations") | each.pop("application_properties")
            each["headers"] = annotations
            exchange = annotations.pop("x-exchange")
            passed_on = each is row and not own  # then it is the one that was published to
            assert exchange == (f"{namespace}.delay" if passed_on else namespace)
            annotations.pop("x-opt-delivery-time", None)  # the time differs
            annotations.pop("x-basic-type", None)  # added when the body goes through AMQP 0.9.1
        assert {**row, "atMs": 0} == {**sent, "atMs": 0}
    # and a consumer with AMQP 0.9.1 receives them too
    rows = [r for r in node.end(plain) if "delaybridge-id" in r["properties"]["headers"]]
    later = {id for id in found if waits[int(id[1:])]}
    assert {row["properties"]["messageId"] for row in rows} == later


def test_the_programs_are_next_to_their_lock_file() -> None:
    wanted = json.loads(Path(PROGRAMS / "package.json").read_text())["dependencies"]
    locked = json.loads(Path(PROGRAMS / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    assert not [name for name, package in locked.items() if "resolved" in package]

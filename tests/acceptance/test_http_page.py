"""Runs docs/http.md as a reader does: its commands with curl, and its programs in each language."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from delaybridge.operate.troubles.listed import listed
from tests.rigs.api_process import ApiProcess
from tests.rigs.bridge import ROOT
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S

PAGE = (ROOT / "docs" / "http.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def api(
    redis_url: str, rabbitmq_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProcess]:
    folder, namespace = tmp_path_factory.mktemp("api"), f"t-{uuid.uuid4().hex[:16]}"
    with ApiProcess(folder, redis_url, namespace, "--port", "0", broker=rabbitmq_url) as serving:
        yield serving


@pytest.fixture
def site(redis_url: str, rabbitmq_url: str, namespace: str, tmp_path: Path) -> Iterator[ApiProcess]:
    """A server and a worker, as the page starts them."""
    flags = ["--redis", redis_url, "--namespace", namespace, "--broker", rabbitmq_url]
    command = [sys.executable, "-m", "delaybridge", *flags, "scan"]
    env = {**os.environ, **PATIENT_PROCESS}
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env)
    try:
        with ApiProcess(
            tmp_path, redis_url, namespace, "--port", "0", broker=rabbitmq_url
        ) as serving:
            yield serving
    finally:
        worker.terminate()
        worker.wait(DEADLINE_S)


def run(command: list[str], folder: Path, api: ApiProcess) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DELAYBRIDGE_API": api.url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page(site: ApiProcess, tmp_path: Path) -> None:
    script = "\n".join(blocks("sh")).replace("http://127.0.0.1:8645", site.url)
    out = run(["bash", "-euo", "pipefail", "-c", script], tmp_path, site)
    words = re.findall(r'"(?:result|state|code)":"(\w+)"', out)
    words = [word for word in words if word not in listed()]  # of the checks
    assert words == [
        *("created", "delayed", "delayed", "rescheduled", "replaced", "cancelled"),
        *("created", "dead", "kicked"),
        *("created", "created"),
        *("created", "created"),
        *("created", "time_required", "created", "unknown_destination"),
        *("cancelled", "unknown"),
        "running",
        words[-4],
        "running",
        *("created", "finished"),
    ]
    assert words[-4] in ("running", "done")


PROGRAMS = {
    "js": ("node", "schedule.mjs", ["node", "schedule.mjs"]),
    "go": ("go", "schedule.go", ["go", "run", "schedule.go"]),
    "java": ("java", "Schedule.java", ["java", "Schedule.java"]),
    "python": (sys.executable, "schedule.py", [sys.executable, "schedule.py"]),
}


@pytest.mark.parametrize("language", PROGRAMS)
@pytest.mark.slow_with("java", "go")
def test_a_program_schedules_a_message(language: str, api: ApiProcess, tmp_path: Path) -> None:
    program, file, command = PROGRAMS[language]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    code = blocks(language)[-1]  # of "In other languages"
    (tmp_path / file).write_text(code)
    assert "created" in run(command, tmp_path, api)

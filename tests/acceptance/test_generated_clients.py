"""Clients that generators make of the API's description schedule, show, list, cancel, are refused.

Each generator takes other liberties: one refuses `items: false`, one has every request give each
field with a default, one knows no union of text and CSV.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.rigs.api_process import ApiProcess
from tests.rigs.waiting import DEADLINE_S
from tests.servers.clients import PROGRAMS

COMPILED = {
    "strict": True,
    "target": "es2022",
    "module": "nodenext",
    "skipLibCheck": True,
    "types": [],
}


@pytest.fixture(scope="module")
def api(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, namespace = tmp_path_factory.mktemp("api"), f"t-{uuid.uuid4().hex[:16]}"
    with ApiProcess(
        folder, redis_url, namespace, "--port", "0", broker="memory=memory://"
    ) as serving:
        yield serving.url


@pytest.fixture
def folder(api: str, tmp_path: Path) -> Path:
    """A folder with the server's description."""
    (tmp_path / "openapi.json").write_bytes(httpx.get(f"{api}/openapi.json").content)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_one_in_python(api: str, folder: Path) -> None:
    (folder / "config.yml").write_text("post_hooks: []\n")
    making = ["generate", "--path", "openapi.json", "--config", "config.yml"]
    making += ["--meta", "none", "--output-path", "made", "--fail-on-warning"]
    run(folder, sys.executable, "-m", "openapi_python_client", *making)
    shutil.copy(PROGRAMS / "generated_python.py", folder)
    assert run(folder, sys.executable, "generated_python.py", api) == "well\n"


@pytest.mark.slow
def test_one_in_typescript(api: str, folder: Path, node_modules: str) -> None:
    (folder / "node_modules").symlink_to(node_modules)
    shutil.copy(PROGRAMS / "generated.ts", folder)
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    settings = {"compilerOptions": COMPILED, "files": ["generated.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    tools = folder / "node_modules" / ".bin"
    run(folder, str(tools / "openapi-typescript"), "openapi.json", "-o", "delaybridge.d.ts")
    run(folder, str(tools / "tsc"), "-p", ".")
    assert run(folder, "node", "generated.js", api) == "well\n"


@pytest.mark.slow
def test_one_in_go(api: str, folder: Path) -> None:
    if not shutil.which("go"):
        pytest.skip("go is not installed")
    for each in (PROGRAMS / "generated_go").iterdir():
        shutil.copy(each, folder)
    (folder / "delaybridge").mkdir()
    making = ["-generate", "types,client", "-package", "delaybridge"]
    making += ["-o", "delaybridge/client.go", "openapi.json"]
    run(folder, "go", "mod", "download")
    run(folder, "go", "tool", "oapi-codegen", *making)
    assert run(folder, "go", "run", ".", api) == "well\n"

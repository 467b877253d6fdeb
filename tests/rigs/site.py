"""Shared by the rigs of drop-in producers: a worker, a client, and settings that name them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from delaybridge import Client
from delaybridge.intercept import client_of_settings
from tests.rigs.bridge import CALM_LEASE_MS, ROOT, Bridge
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.waiting import DEADLINE_S, until

GUIDE = ROOT / "docs" / "intercept.md"


class ProducerSite:
    """One worker, and the settings of an application, in a namespace of their own."""

    def __init__(
        self, folder: Path, redis_url: str, brokers: dict[str, str], **settings: str
    ) -> None:
        """settings: the worker's, as environment variables."""
        self.redis_url = redis_url
        self.namespace = f"t-{uuid.uuid4().hex[:16]}"
        self._bridge = Bridge(
            folder, redis_url, self.namespace, brokers, settings=settings,
            lease_ttl_ms=CALM_LEASE_MS,
        )  # fmt: skip
        self.client: Client = self._bridge.client
        kind, url = next(iter(brokers.items()))
        self.environment = {
            "DELAYBRIDGE_REDIS_URL": redis_url,
            **PATIENT_PROCESS,
            "DELAYBRIDGE_NAMESPACE": self.namespace,
            f"DELAYBRIDGE_BROKERS__{kind.upper()}": url,
        }

    def __enter__(self) -> Self:
        self._bridge.start_workers(1)
        return self

    def __exit__(self, *exc: object) -> None:
        self._bridge.close()

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """The settings of this process name this site; a client that is made of them is closed."""
        client_of_settings.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment.items():
                patch.setenv(name, value)
            yield
        if client_of_settings.cache_info().currsize:
            client_of_settings().close()
        client_of_settings.cache_clear()

    def await_settled(self, id: str) -> None:
        """Wait until the worker has settled a message: it does so some ms after its delivery."""
        until(lambda: self.client.get(id) is None, f"{id} to be settled")

    def run_recipe(self, title: str, to: str) -> str:
        """The output of the code in a section of the guide, which must print no warning.

        to: the queue or topic that stands for the guide's "orders". Tests share the broker.
        """
        section = GUIDE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
        code = "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
        assert '"orders"' in code
        run = self.run(code.replace('"orders"', f'"{to}"'))
        assert run.stderr == "", run.stderr
        return run.stdout

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run code in its own process, with this site's settings; it must succeed."""
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )

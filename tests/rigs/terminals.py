"""A person's terminals: blocks of a page, each pasted into a shell of its own in one folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from delaybridge import Client
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.fleet import ROOT
from tests.rigs.waiting import DEADLINE_S, until

LOCAL_REDIS, LOCAL_RABBITMQ = "redis://localhost:6379/0", "amqp://guest:guest@localhost/"
LOCAL_KAFKA = "localhost:9092"
_PATIENT = "".join(
    f"{name.removeprefix('DELAYBRIDGE_').lower().replace('__', '.')} = {value}\n"
    for name, value in PATIENT_PROCESS.items()
)


class Terminals:
    """Shells that know nothing but what `environment` says and the files of the folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, code: str, language: str = "python") -> None:
        """Start it; its output goes to a log, and it is ended with the test."""
        with (self.folder / log).open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    self.command(code, language),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=self.environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def run(self, code: str, language: str = "python") -> str:
        """Run it; returns what it prints. It must exit with 0, and print no warning."""
        ended = subprocess.run(
            self.command(code, language),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert not ended.stderr, ended.stderr
        return ended.stdout

    def command(self, code: str, language: str) -> Sequence[str]:
        """What runs it."""
        python = [sys.executable, "-W", "error", "-c"]
        return [*(python if language == "python" else ["bash", "-euc"]), code]

    def printed(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")

    def wait_printed(self, log: str, text: str) -> None:
        until(lambda: text in self.printed(log), f"{text!r} in {log}", interval_s=0.05)

    def close(self) -> None:
        """End what was started, with all that it started."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class NewUser(Terminals):
    """Knows pages that write a `delaybridge.toml`, and has no variable of delaybridge."""

    def __init__(
        self, folder: Path, redis_url: str, rabbitmq_url: str, kafka_url: str = ""
    ) -> None:
        super().__init__(folder, {})
        self.name = f"t_{uuid.uuid4().hex[:12]}"
        self.redis_url, self.rabbitmq_url = redis_url, rabbitmq_url
        self._kafka = kafka_url.removeprefix("kafka://") or LOCAL_KAFKA

    def here(self, text: str) -> str:
        """What a page says, for the servers of this test, and with a name for `orders`."""
        settings = f'namespace = "{self.name}"\n{_PATIENT}redis.url = "'
        text = text.replace('redis.url = "', settings).replace(LOCAL_REDIS, self.redis_url)
        text = text.replace(LOCAL_KAFKA, self._kafka)
        return text.replace(LOCAL_RABBITMQ, self.rabbitmq_url).replace("orders", self.name)


class WatchedUser(NewUser):
    """A new user, and a client that sees what waits."""

    def __init__(self, folder: Path, redis_url: str, brokers: dict[str, str]) -> None:
        super().__init__(folder, redis_url, brokers["rabbitmq"], brokers.get("kafka", ""))
        self.client = Client(redis_url, namespace=self.name, brokers=brokers)

    def is_read(self) -> bool:
        """Whether the worker reads the delay exchange or topic."""
        ingests = self.client.stats().ingests
        return [each.state for one in ingests for each in one.sources] == ["reading"]

    def check_nothing_waits(self) -> None:
        """Check that no message is pending or dead: cancelled ones are gone, none was refused."""

        def left() -> tuple[int, ...]:
            found = self.client.stats()
            return found.delayed, found.in_flight, found.parked, found.dead

        until(lambda: not any(left()), lambda: f"nothing waits: {left()}", interval_s=0.05)

    def close(self) -> None:
        super().close()
        self.client.close()

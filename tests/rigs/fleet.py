"""Real `delaybridge scan` processes whose broker is a file (`recorder.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from delaybridge import Client, Message
from delaybridge.message import new_id
from delaybridge.operate.terminal.failure import Exit
from tests.rigs import recorder
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, until

ROOT = Path(__file__).parent.parent.parent
POLL_S = 0.02
LONGEST_RENEW_MS = 1000  # a worker that begins too early looks again soon


class Process:
    """One `delaybridge scan`, alone or a parent of several."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        log: Path,
        stderr: IO[bytes] | None = None,
        folder: Path = ROOT,
    ):
        self.name, self.log_path = name, log
        self._how = command, environment, stderr, folder
        self.begin()

    def begin(self) -> None:
        """Start it, also once more when it has ended."""
        command, environment, stderr, folder = self._how
        with self.log_path.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=stderr or file, env=environment, cwd=folder
            )
        self.pid = self._process.pid

    def revive(self) -> None:
        """Start it again, as a supervisor does, if Redis was silent at its start."""
        if not self.running and self.wait() == Exit.UNREACHABLE:
            self.begin()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def wait(self) -> int:
        return self._process.wait(DEADLINE_S)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self) -> list[int]:
        """The worker processes of a parent, without those that multiprocessing itself starts."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            for pid in map(int, task.read_text().split()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # just ended
                    if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return sorted(found)

    def close(self) -> None:
        if self.running:
            self.signal(signal.SIGCONT)
            self.kill()


class Fleet(contextlib.AbstractContextManager):
    """Workers of one namespace, the file they publish to, and a client."""

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        namespace: str,
        *,
        ttl_ms: int = 1000,
        confirm_ms: int = 5,
        busy_us: int = 0,
        **settings: str,
    ) -> None:
        """settings: as environment variables, without their prefix. busy_us: see `recorder`."""
        self.path = folder / "published.jsonl"
        self._folder, self._redis_url, self._namespace = folder, redis_url, namespace
        self.client = Client(redis_url, namespace=namespace, brokers={"file": "memory://"})
        self._broker = f"recorder://{self.path}?confirm_ms={confirm_ms}&busy_us={busy_us}"
        path = [recorder.register(folder / "site"), str(ROOT)]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "DELAYBRIDGE_LEASE__TTL_MS": str(ttl_ms),
            "DELAYBRIDGE_LEASE__RENEW_MS": str(min(ttl_ms // 3, LONGEST_RENEW_MS)),
            "DELAYBRIDGE_REDIS__TIMEOUT_S": str(min(ttl_ms / 2000, PATIENCE_S)),
            **_variables(settings),
        }
        self._processes: list[Process] = []

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.close()
        self.client.close()

    def start(
        self,
        name: str,
        *options: str,
        settled: bool = True,
        stderr: IO[bytes] | None = None,
        instead: Path | None = None,
        **settings: str,
    ) -> Process:
        """Start a worker; `settled`: wait until it holds a bucket. stderr: instead of its log.

        One that ends because Redis is silent at its start is started again, as by a supervisor.
        instead: a folder whose modules are imported before any other. settings: of this one.
        """
        command = [sys.executable, "-m", "delaybridge", "--redis", self._redis_url]
        command += ["--namespace", self._namespace, "--broker", f"file={self._broker}"]
        log = self._folder / f"{name}-{len(self._processes)}.log"
        command += ["scan", "--name", name, *options]
        environment = self._environment | _variables(settings)
        if instead is not None:
            path = os.pathsep.join([str(instead), environment["PYTHONPATH"]])
            environment = {**environment, "PYTHONPATH": path}
        process = Process(name, command, environment, log, stderr, instead or ROOT)
        self._processes.append(process)

        def is_settled() -> bool:
            process.revive()
            return any(owner.startswith(name) for owner in self.owners().values())

        if settled:
            said = lambda: f"{name} holds a bucket; its log: {process.log[-2000:]}"  # noqa: E731
            until(is_settled, said, interval_s=POLL_S)
        return process

    def owners(self) -> dict[int, str]:
        buckets = self.client.stats().buckets
        return {each.bucket: each.owner for each in buckets if each.owner is not None}

    def shares(self) -> Counter[str]:
        return Counter(self.owners().values())

    def wait_shared(self, *names: str) -> None:
        """Wait until these workers and no others hold all buckets, evenly."""

        def shared() -> bool:
            for process in self._processes:
                process.revive()
            shares = self.shares()
            even = max(shares.values(), default=0) - min(shares.values(), default=0) <= 1
            return shares.keys() == set(names) and shares.total() == 16 and even

        until(shared, f"{names} share all buckets", interval_s=POLL_S)

    # messages

    def schedule(self, count: int, *, seconds: float, first_s: float = 0.0) -> list[str]:
        """Schedule messages, due evenly within `seconds`, over all buckets; ids in due order."""
        now = datetime.now(UTC) + timedelta(seconds=first_s)
        step = timedelta(seconds=seconds / count)
        receipts = self.client.schedule_many(
            [Message("file:q", b"x", at=now + i * step, id=new_id()) for i in range(count)]
        )
        return [receipt.id for receipt in receipts]

    def published(self) -> list[recorder.Record]:
        return recorder.read(self.path)

    def wait_published(self, ids: list[str]) -> None:
        until(
            lambda: set(ids) <= {record.id for record in self.published()},
            f"all {len(ids)} published",
            interval_s=POLL_S,
        )

    def wait_settled(self) -> None:
        def settled() -> bool:
            stats = self.client.stats()
            return stats.delayed + stats.in_flight + stats.parked == 0

        until(settled, "everything settled", interval_s=POLL_S)

    def twice(self) -> list[str]:
        counts = Counter(record.id for record in self.published())
        return [id for id, count in counts.items() if count > 1]

    def early(self) -> list[recorder.Record]:
        return [record for record in self.published() if record.at_ms < record.due_ms]

    def hold(self) -> None:
        """No confirms until `let_go`."""
        self.path.with_suffix(".hold").touch()

    def let_go(self) -> None:
        self.path.with_suffix(".hold").unlink()


FleetFactory = Callable[..., Fleet]


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"DELAYBRIDGE_{name}": value for name, value in settings.items()}


@contextlib.contextmanager
def running_worker(
    redis_url: str, namespace: str, broker_url: str, folder: Path, name: str = "w1"
) -> Iterator[Process]:
    """A real `delaybridge scan` process with one broker."""
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url]
    command += ["--namespace", namespace, "--broker", broker_url, "scan", "--name", name]
    process = Process(name, command, {**os.environ}, folder / f"{name}.log")
    try:
        yield process
    finally:
        process.close()


def is_settled(client: Client) -> bool:
    """Whether no message is left, and none is dead."""
    stats = client.stats()
    assert stats.dead == 0
    return stats.delayed + stats.in_flight + stats.parked == 0

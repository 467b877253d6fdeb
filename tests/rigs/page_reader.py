"""A reader of a page, who does what its blocks say, from top to bottom, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pika

from delaybridge import Client
from tests.rigs.crew import PATIENT_PROCESS
from tests.rigs.pages import COMMENT, Block
from tests.rigs.terminals import Terminals
from tests.rigs.waiting import DEADLINE_S, until
from tests.servers.process import free_port

# Programs that change the machine, or ask servers which no test has: they do nothing here.
ABSENT = ("docker", "helm", "kubectl", "pip", "rabbitmqctl", "systemctl", "timedatectl")
FOR_EVER = re.compile(
    r"(?:^|&& )(?:\w+=\S+ )*(?:celery .*\bworker\b|uvicorn |delaybridge (?:--?[\w-]+ \S+ )*"
    r"(?:scan|ingest|front|serve|tail|outbox run)(?: (?!.*--help)[a-z]*(?: *-.*?)?)?[ &]*$)"
)
_KEPT = "if [ -f .env ]; then . ./.env; fi"
# `rabbitmqctl export_definitions FILE` writes one.
_ABSENT = """#!/bin/sh
echo "${0##*/}" "$@"
if [ "$1" = export_definitions ]; then echo '{"exchanges": [], "bindings": []}' > "$2"; fi
"""
_WORDS = re.compile(r"[^\W\d_]+")
_PORTS = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=localhost:)(?:8000|8080)|(?<=port )\d{4}")


class PageReader(Terminals):
    """Settings name real servers; a worker runs, a queue is there, and messages wait."""

    def __init__(self, folder: Path, redis_url: str, rabbitmq_url: str, kafka_url: str) -> None:
        self.name = f"t-{uuid.uuid4().hex[:12]}"
        self._urls = {"amqp": rabbitmq_url, "kafka": kafka_url, "redis": redis_url}
        self._names = {"orders": self.name, "mails": f"{self.name}.mails"}
        self._ports: dict[str, str] = {}
        brokers = {"rabbitmq": rabbitmq_url, "kafka": kafka_url}
        self.client = Client(redis_url, namespace=self.name, brokers=brokers)
        programs = folder / "bin"
        programs.mkdir()
        for name in ABSENT:
            (programs / name).write_text(_ABSENT)
            (programs / name).chmod(0o755)
        named = {
            "DELAYBRIDGE_REDIS_URL": redis_url,
            "DELAYBRIDGE_NAMESPACE": self.name,
            "RABBITMQ_URL": rabbitmq_url,
            "REDIS_URL": redis_url,
            "USER": "reader",
            "DELAYBRIDGE_SERVE__PORT": self._port_of("8645"),
            **{f"DELAYBRIDGE_BROKERS__{kind.upper()}": url for kind, url in brokers.items()},
        }
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.running: dict[str, str] = {}
        super().__init__(folder, {**named, **PATIENT_PROCESS, "PATH": path, "COLUMNS": "80"})

    def begin(self) -> None:
        """A worker runs, a queue gets what is for `orders`, messages wait, and one is dead."""
        with pika.BlockingConnection(pika.URLParameters(self._urls["amqp"])) as connection:
            channel = connection.channel()
            channel.exchange_declare(self.name, "topic", durable=True)
            for queue in self._names.values():
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(self.name, self.name, "#")
        self._serve("delaybridge scan")
        for place in (f"rabbitmq:{self.name}/close", f"kafka:{self.name}"):
            self.client.schedule(place, b"waits", delay="1h")
        gone = f"rabbitmq:{self.name}.gone/close"
        self.client.schedule(gone, b"dead", delay=0, id="dead", retry={"max_attempts": 1})
        until(lambda: self.client.stats().dead, "a message is dead", interval_s=0.1)

    def here(self, text: str) -> str:
        """What a page says, for the servers of this test, and with a name for `orders`."""
        text = _PORTS.sub(lambda found: self._port_of(found[0]), text)
        for kind, url in self._urls.items():
            text = re.sub(rf"\b{kind}://[^\s\"'?,)]*(?<![.])", url, text)
        text = text.replace("localhost:9092", self._urls["kafka"].partition("://")[2])
        text = re.sub(r"postgresql\S*?://[^\s\"']+", f"sqlite:///{self.folder}/shop.db", text)
        text = text.replace("/etc/delaybridge", str(self.folder))
        return re.sub(r"\b(orders|mails)\b", lambda found: self._names[found[0]], text)

    def _port_of(self, told: str) -> str:
        """A free port that stands for one of the page."""
        return self._ports.setdefault(told, str(free_port()))

    def follow(self, block: Block) -> None:
        """Do what the block says; a program must end well, a server must run."""
        code = self.here(block.code)
        if block.file:
            (self.folder / block.file).write_text(code)
        elif block.language == "python":
            self.run(code)
        elif block.language == "console":
            self._compare(code)
        else:
            self._paste(code)

    def _paste(self, code: str) -> None:
        """Each command that runs for ever goes into a terminal of its own, the rest into one."""
        lines: list[str] = []
        for line in COMMENT.sub("", code.replace("\\\n", " ")).splitlines():
            if not FOR_EVER.search(line):
                lines.append(line)
                continue
            self._type("\n".join(lines))
            self._serve(line.rstrip(" &"))
            lines = []
        self._type("\n".join(lines))

    def _type(self, code: str) -> str:
        """Type it into the terminal, which keeps what was exported; returns what it shows."""
        if not code.strip():
            return ""
        answers, terminal = os.openpty()
        os.write(answers, b"y\n" * 8)  # a reader says yes to what is asked
        try:
            ended = subprocess.run(
                ["bash", "-euc", f"{_KEPT}\n{code}\nexport -p > .env"],
                env=self.environment,
                cwd=self.folder,
                stdin=terminal,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        finally:
            os.close(answers)
            os.close(terminal)
        assert ended.returncode == 0, f"{code}\n{ended.returncode}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def _serve(self, line: str) -> None:
        """Start it, and wait until it says something."""
        log = f"{len(self.running)}.log"
        self.running[log] = line
        self.start(log, f"{_KEPT}\n{line}", "sh")
        until(lambda: self.printed(log), f"{line} says something", interval_s=0.05)

    def _compare(self, transcript: str) -> None:
        """Run the commands of a transcript; the first line of each begins as on the page."""
        for part in re.split(r"^\$ ", transcript.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if FOR_EVER.search(command):
                self._serve(command)
                continue
            wanted = _WORDS.findall(shown.partition("\n")[0])[:2]
            found = [_WORDS.findall(line)[:2] for line in self._type(command).splitlines()]
            assert not wanted or wanted in found, f"{command}: {wanted} is not in {found}"

    def check(self) -> None:
        """Check that what was started runs: it is ended only with the test."""
        for (log, line), process in zip(self.running.items(), self.processes, strict=True):
            said = self.printed(log)
            assert process.poll() is None and not said.startswith("error:"), f"{line}: {said}"

    def close(self) -> None:
        """End what was started."""
        super().close()
        self.client.close()

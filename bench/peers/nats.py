"""NATS: a stream holds messages with a schedule; when one is due, the server puts a copy in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.peers.driver import DrivenPeer
from bench.peers.fetched import DRIVERS, nats_server, node_modules
from bench.peers.peer import disk_bytes
from bench.rig import resident_bytes
from tests.servers.process import LOOPBACK, ServerProcess, accepts


class NatsServer(ServerProcess):
    """A private nats-server with JetStream; its streams are in files."""

    name = "nats"

    def __init__(self, program: Path) -> None:
        super().__init__()
        self._program = program

    def command(self) -> Sequence[str]:
        address = ("--addr", LOOPBACK, "--port", str(self.port))
        return [str(self._program), *address, "--jetstream", "--store_dir", str(self.folder)]

    def is_ready(self) -> bool:
        return accepts(self.port)


class Nats(DrivenPeer):
    """One server, one stream, with a subject for each message, as schedules require."""

    name = "NATS, scheduled messages"
    stored = "a file, written to disk within 2 minutes"
    cannot = "reach another broker; be on time to 250 ms: it looks four times a second"

    def open(self) -> None:
        """Start the server and the program."""
        self.server = self.stack.enter_context(NatsServer(nats_server()))
        script = str(DRIVERS / "nats.mjs")
        self.drive(["node", script, str(node_modules()), str(self.server.port)])

    def memory_bytes(self) -> Mapping[str, int]:
        """The server's resident set, and its files."""
        resident = resident_bytes(self.server.pid)
        return {"resident in the server": resident, "on disk": disk_bytes(self.server.folder)}

    def versions(self) -> Mapping[str, str]:
        """The server's version."""
        return {"NATS": self.version}

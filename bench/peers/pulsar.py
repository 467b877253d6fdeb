"""Pulsar: the broker holds an index of delayed messages in memory, and the messages in a ledger."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers.driver import DrivenPeer
from bench.peers.fetched import jars
from bench.peers.java_server import JavaServer, java
from bench.peers.peer import disk_bytes
from tests.servers.process import LOOPBACK, free_port

TICK_MS = 10  # the default, 1,000, is as coarse as it sounds
STANDALONE = (
    *("org.apache.pulsar.PulsarStandaloneStarter", "--no-functions-worker", "--no-stream-storage"),
    *("--advertised-address", LOOPBACK),
)


class Pulsar(DrivenPeer):
    """One standalone server and a Java client, with one topic and a shared subscription."""

    name = "Pulsar, delayed delivery"
    warmed = 10_000
    stored = "memory, then a file: a standalone server writes no journal"
    cannot = "cancel; reach another broker; other subscriptions than shared ones"

    def open(self) -> None:
        """Start the server and the program."""
        path = jars("Pulsar")
        options = ("--bookkeeper-port", str(free_port()), "--config")
        self.server = JavaServer("pulsar", path, *STANDALONE, *options)
        self.server.configure(
            {
                "brokerServicePort": self.server.port,
                "webServicePort": free_port(),
                "bindAddress": LOOPBACK,
                "advertisedAddress": LOOPBACK,
                "clusterName": "standalone",
                "delayedDeliveryTickTimeMillis": TICK_MS,
                "isDelayedDeliveryDeliverAtTimeStrict": "true",  # else early, by a tick
                "managedLedgerDefaultEnsembleSize": 1,
                "managedLedgerDefaultWriteQuorum": 1,
                "managedLedgerDefaultAckQuorum": 1,
            }
        )
        self.stack.enter_context(self.server)
        url = f"pulsar://{LOOPBACK}:{self.server.port}"
        self.drive(java(path, "Pulsar", url, "persistent://public/default/bench"))
        self.note = f"a tick of {TICK_MS} ms, and strict; by default 1,000, and early by a tick"

    def memory_bytes(self) -> Mapping[str, int]:
        """The server's heap, and its files."""
        return {"on the heap": self.server.heap_bytes(), "on disk": disk_bytes(self.server.folder)}

    def versions(self) -> Mapping[str, str]:
        """The server's version."""
        return {"Pulsar": self.version}

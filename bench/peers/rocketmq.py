"""RocketMQ 5: timer messages wait in a log of the broker, and its wheel of slots says when."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers.driver import DrivenPeer
from bench.peers.fetched import jars
from bench.peers.java_server import JavaServer, java
from bench.peers.peer import disk_bytes
from tests.servers.process import LOOPBACK

PRECISION_MS = 100  # the finest there is; the default is 1,000
NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"


class RocketMQ(DrivenPeer):
    """A name server, a broker and a Java client, with one topic."""

    name = "RocketMQ 5, timer messages"
    warmed = 10_000
    stored = "a file, written to disk within 10 s"
    cannot = "reach another broker; delays above 3 days, unless set otherwise"

    def open(self) -> None:
        """Start the servers and the program."""
        path = jars("RocketMQ")
        names = JavaServer("rocketmq-names", path, NAME_SERVER, "-c")
        names.configure({"listenPort": names.port, "bindAddress": LOOPBACK})
        self.stack.enter_context(names)
        self.broker = JavaServer("rocketmq", path, BROKER, "-c")
        address = f"{LOOPBACK}:{names.port}"
        self.broker.configure(
            {
                "brokerClusterName": "bench",
                "brokerName": "bench",
                "namesrvAddr": address,
                "brokerIP1": LOOPBACK,
                "bindAddress": LOOPBACK,
                "listenPort": self.broker.port,
                "storePathRootDir": self.broker.folder / "store",
                "storePathCommitLog": self.broker.folder / "store/commitlog",
                "timerPrecisionMs": PRECISION_MS,
                "autoCreateTopicEnable": "true",
                "waitTimeMillsInSendQueue": 60_000,  # else it refuses what waits for 200 ms
            }
        )
        self.stack.enter_context(self.broker)
        self.drive(java(path, "RocketMQ", address, "bench"))
        self.note = f"precision {PRECISION_MS} ms, the finest; by default 1,000"

    def memory_bytes(self) -> Mapping[str, int]:
        """The broker's heap, and its files."""
        return {"on the heap": self.broker.heap_bytes(), "on disk": disk_bytes(self.broker.folder)}

    def versions(self) -> Mapping[str, str]:
        """The broker's version."""
        return {"RocketMQ": self.version.strip("V").replace("_", ".")}

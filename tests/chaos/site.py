"""The site of a cell: servers, proxies, workers, consumers and the load, and how to break them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from delaybridge import Client
from tests.chaos import databases
from tests.chaos.cell import Cell
from tests.chaos.load import Load
from tests.chaos.proxies import Proxies
from tests.rigs.bridge import ROOT, Bridge
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.stall import Stall
from tests.rigs.waiting import DEADLINE_S, PATIENCE_S, quiet, until
from tests.servers.clock import ClockedRedis
from tests.servers.cluster import ClusterSite
from tests.servers.disk import SmallDisk
from tests.servers.kafka import KafkaNode
from tests.servers.network import Network
from tests.servers.postgres import PostgresServer
from tests.servers.power import PoweredRedis
from tests.servers.process import free_port
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelSite

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
WINDOW = 200  # messages in flight, of each worker
Shared = Callable[[str], str]  # "redis", "rabbitmq" or "kafka" -> URL of a server for all cells


class Site:
    """Everything of one run of a cell. main, other: destinations.

    redis, broker, database: the private servers, if the cell has such; redis_proxy, broker_proxy,
    ledger_proxy: likewise.
    """

    redis: RedisServer
    broker: Any
    servers: Any  # Redis with Sentinels, or a Cluster
    network: Network  # between those
    redis_proxy: FaultProxy
    broker_proxy: FaultProxy
    database: PostgresServer  # of the ledger
    disk: SmallDisk  # that it is on
    ledger: LedgerProbe
    ledger_proxy: FaultProxy

    def __init__(
        self,
        cell: Cell,
        folder: Path,
        namespace: str,
        shared: Shared,
        environment: Mapping[str, str],
        stall: Stall,
    ) -> None:
        """environment: added to that of every process, such as a mutation."""
        self._stall, self._started_s = stall, 0.0
        self.cell, self.folder, self.namespace, self._shared = cell, folder, namespace, shared
        self.faults: list[tuple[int, int]] = []  # from, to; epoch ms
        self.notes: list[str] = []  # what the cell saw that breaks no invariant
        self.wrong: dict[str, list[str]] = {}  # invariant -> what a cell itself found
        self.clock: list[tuple[int, int]] = []  # epoch us, by how many ms Redis' clock was ahead
        self.seconds = 8.0
        self.environment = dict(environment)
        self._stack = ExitStack()
        self._loads: list[subprocess.Popen[bytes]] = []
        self.proxies = Proxies()
        self._stack.callback(self.proxies.close)

    def __enter__(self) -> Site:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        setup = self.cell.setup
        url = self._redis_url()
        if setup.redis not in ("sentinel", "cluster"):
            self.direct = redis.Redis.from_url(url)
            self._stack.callback(self.direct.close)
        main = setup.broker.removeprefix("own-")
        brokers = {main: self._broker_url(setup.broker)}
        if setup.other:
            brokers["second"] = self._shared("rabbitmq")
        settings = {f"DELAYBRIDGE_{name}": value for name, value in setup.settings.items()}
        settings.setdefault("DELAYBRIDGE_PUBLISH__WINDOW_MESSAGES", str(WINDOW))
        changes = ";".join(filter(None, [setup.change, self.environment.get("CHAOS_CHANGE", "")]))
        self.environment["CHAOS_CHANGE"] = changes
        path = {"PYTHONPATH": os.pathsep.join([*self._python_path(), str(ROOT)])}
        self.bridge = Bridge(
            self.folder, url, self.namespace, brokers,
            lease_ttl_ms=setup.lease_ms, settings={**settings, **self.environment, **path},
            ledger=self._ledger_url(), buckets=setup.buckets,
        )  # fmt: skip
        self._stack.callback(self.bridge.close)
        self._through_proxies(url, main)
        make = self.bridge.kafka_topic if main == "kafka" else self.bridge.rabbitmq_queue
        self.main = make(self.namespace, broker=main)
        self.destinations = [self.main]
        if setup.other:
            self.other = self.bridge.rabbitmq_queue(f"{self.namespace}-other", broker="second")
            self.destinations.append(self.other)

    def _python_path(self) -> list[str]:
        """The folder whose sitecustomize changes the product, if it is to be changed."""
        return [str(Path(__file__).parent / "patches")]

    def _redis_url(self) -> str:
        setup = self.cell.setup
        if setup.redis == "shared":
            return self._shared("redis")
        if setup.redis in ("sentinel", "cluster"):
            self.network = self._stack.enter_context(Network())
            kind = SentinelSite if setup.redis == "sentinel" else ClusterSite
            made = kind(setup.redis_args, network=self.network)
            self.servers = self._stack.enter_context(made)
            url: str = self.servers.url
            return url
        servers: dict[str, Callable[[], RedisServer]] = {
            "own": lambda: RedisServer(setup.redis_args or AOF),
            "clocked": ClockedRedis,
            "powered": lambda: PoweredRedis(setup.redis_args),
        }
        server = servers[setup.redis]()
        self.redis = self._stack.enter_context(server)
        return self.redis.url

    def _ledger_url(self) -> str | None:
        """The URL for everyone but `ledger`, which looks at the database beside the product."""
        if not self.cell.setup.ledger:
            return None
        url = databases.start(self, self.cell.setup.ledger)
        self.ledger = LedgerProbe(url)
        self._stack.callback(self.ledger.close)
        if "ledger" not in self.cell.setup.through:
            return url
        self.ledger_proxy = self.proxies.start(self.database.port)
        return with_port(self.database.url, self.ledger_proxy.port)

    def _broker_url(self, kind: str) -> str:
        if not kind.startswith("own-"):
            return self._shared(kind)
        self.broker = (
            self._new_kafka()
            if kind == "own-kafka"
            else RabbitMQNode(self.cell.setup.broker_config)
        )
        url: str = self._stack.enter_context(self.broker).url
        return url

    def _new_kafka(self) -> KafkaNode:
        """With a listener for the proxy, if there is one: clients follow what it advertises."""
        both = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT"
        node, port = KafkaNode({"listener.security.protocol.map": both}), free_port()
        if "broker" in self.cell.setup.through:
            self.broker_proxy = self.proxies.start(port)
            advertised = f"PROXIED://127.0.0.1:{self.broker_proxy.port}"
            node.add_listener(f"PROXIED://127.0.0.1:{port}", advertised=advertised)
        return node

    def _through_proxies(self, redis_url: str, main: str) -> None:
        self.workers_redis = redis_url
        if "redis" in self.cell.setup.through:
            self.redis_proxy = self.proxies.start(urlsplit(redis_url).port or 0)
            self.workers_redis = with_port(redis_url, self.redis_proxy.port)
        if "broker" in self.cell.setup.through:
            url = self.bridge.brokers[main]
            if main != "kafka":
                self.broker_proxy = self.proxies.start(urlsplit(url).port or 0)
            self.bridge.workers_brokers[main] = with_port(url, self.broker_proxy.port)

    # phases

    def start(self) -> None:
        """Start the workers, then the load."""
        setup, began_s = self.cell.setup, time.monotonic()
        self.bridge.start_workers(setup.workers, self.workers_redis)
        self._started_s = time.monotonic() - began_s
        self.start_load()

    @property
    def slack_s(self) -> float:
        """What this machine may add to a time: its worst stall, and the start of the fleet."""
        return self._stall.worst_s + self._started_s

    def start_load(self, environment: Mapping[str, str] | None = None, **changes: Any) -> None:
        """One more producer. environment: added to its own. changes: of the cell's load."""
        options: dict[str, Any] = {
            "redis_url": self.workers_redis,
            "namespace": self.namespace,
            "brokers": self.bridge.brokers,
            "destinations": self.destinations,
            "history": str(self.history),
            "seconds": self.seconds,
            "wall_s": time.time() - time.monotonic(),
            **self._recorded(),
            **self.cell.setup.load,
            **changes,
        }
        own = {**os.environ, **self.bridge.environment, **(environment or {})}
        with (self.folder / "load.log").open("ab") as log:
            process = subprocess.Popen(
                Load(**options).command(), env=own, cwd=ROOT, stdout=log, stderr=log
            )
        self._loads.append(process)
        self._stack.callback(process.kill)

    def _recorded(self) -> dict[str, Any]:
        """Settings of the client of a producer."""
        url = self.bridge.environment.get("DELAYBRIDGE_LEDGER__URL")
        return {"settings": {"durability": "ledger", "ledger": url}} if url else {}

    def load_until(self, predicate: Callable[[], bool], what: str) -> None:
        """Wait until something is so, and send more if the load is over before."""

        def is_so() -> bool:
            if not self.is_loading:
                self.start_load()
            return predicate()

        until(is_so, what)

    def finish_load(self) -> None:
        for each in self._loads:
            each.wait(self.seconds + DEADLINE_S)
        if any(each.returncode for each in self._loads):
            raise RuntimeError(f"the load ended: {(self.folder / 'load.log').read_text()[-2000:]}")

    @property
    def history(self) -> Path:
        return self.folder / "load.jsonl"

    @property
    def is_loading(self) -> bool:
        return any(each.poll() is None for each in self._loads)

    def start_victim(self, failpoints: str = "", change: str = "", **environment: str) -> str:
        """One more worker, which will come to harm; its name. change: see `changes.py`."""
        changes = ";".join(filter(None, [change, self.environment["CHAOS_CHANGE"]]))
        environment |= {"DELAYBRIDGE_FAILPOINTS": failpoints, "CHAOS_CHANGE": changes}
        return self.bridge.start_worker(self.workers_redis, environment)

    def burst(
        self, count: int, *, first_s: float, seconds: float = 0.001, to: str = ""
    ) -> list[str]:
        """Schedule this many messages, due within `seconds`; to: if not the main destination."""
        ids = self.bridge.schedule(to or self.main, count, seconds=seconds, first_s=first_s)
        for promise in map(self.bridge.promises.__getitem__, ids):
            self.accepted(promise.id, promise.sha, promise.due_ms, to)
        return ids

    def accepted(self, id: str, sha: str, due_ms: int, to: str = "") -> None:
        """Write down a message that the cell itself scheduled; to: as in `burst`."""
        common = {"id": id, "f": "schedule", "at_us": time.time_ns() // 1000}
        about = {"sha": sha, "mark": None, "once": False, "least": due_ms}
        about["to"] = to or self.main
        with (self.folder / "own.jsonl").open("a") as file:
            file.write(json.dumps({**common, "phase": "invoke", **about}) + "\n")
            file.write(json.dumps({**common, "phase": "ok", "due": due_ms}) + "\n")

    def set_clock(self, step_ms: int) -> None:
        """Set the clock of Redis ahead of this machine's; negative: behind."""
        assert isinstance(self.redis, ClockedRedis)
        self.redis.set_clock(step_ms)
        self.clock.append((time.time_ns() // 1000, step_ms))

    def is_stopped(self, name: str) -> bool:
        stat = Path(f"/proc/{self.bridge.pid(name)}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def enter(self, server: Any) -> Any:
        """A further server, which ends with the site."""
        return self._stack.enter_context(server)

    def lead_to(self, server: RedisServer) -> None:
        """The messages are in this Redis now."""
        self.direct.close()
        self.direct = redis.Redis.from_url(server.url)
        self.bridge.client.close()
        self.bridge.client = Client(server.url, namespace=self.namespace, timeout_s=PATIENCE_S)

    # faults

    @contextmanager
    def fault(self, after_s: float = 0.0) -> Iterator[None]:
        """The fault lasts as long as this block; after_s: how long its effects may."""
        began_ms = time.time_ns() // 1_000_000
        try:
            yield
        finally:
            self.faults.append((began_ms, time.time_ns() // 1_000_000 + int(after_s * 1000)))

    def wait(self, seconds: float) -> None:
        quiet(seconds)

    def silence(self, proxy: FaultProxy, seconds: float, mode: str = "blackhole") -> None:
        """For this time nothing passes, or nothing in one direction; then connections are cut."""
        proxy.mode = mode
        self.wait(seconds)
        self.proxies.reset(proxy)
        proxy.mode = "pass"

    def kill_worker(self, name: str) -> None:
        """SIGKILL; another one takes its place."""
        with self.fault(after_s=self.lease_s):
            self.bridge.kill_worker(name)
            self.bridge.start_worker(self.workers_redis)

    @property
    def lease_s(self) -> float:
        return self.cell.setup.lease_ms / 1000

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """A worker is stopped (SIGSTOP) as long as this block."""
        with self.fault(after_s=self.lease_s):
            self.bridge.signal_worker(name, signal.SIGSTOP)
            try:
                yield
            finally:
                self.bridge.signal_worker(name, signal.SIGCONT)

    def expect(self, invariant: str, what: str, is_so: object) -> None:
        """A check of the cell's own."""
        broken = self.wrong.setdefault(invariant, [])
        if not is_so:
            broken.append(what)

    # what is seen

    def wait_drained(self) -> bool:
        """Wait until nothing is delayed, in flight or parked; False if that does not happen."""

        def is_empty() -> bool:
            try:
                stats = self.bridge.client.stats()
            except Exception:
                return False
            return stats.delayed + stats.in_flight + stats.parked == 0

        try:
            until(is_empty, interval_s=0.1)
        except AssertionError:
            return False
        return True

    def misplaced(self) -> list[str]:
        """I8: buckets whose stored messages are not each in exactly one place."""
        places: dict[str, dict[str, list[bytes]]] = {}
        for client in self._masters():
            for key in client.scan_iter(f"{{{self.namespace}:*}}:*"):
                tag, _, name = key.decode().rpartition(":")
                if client.type(key) == b"string":  # what was there has moved away
                    continue
                if name == "messages":
                    places.setdefault(tag, {})[name] = client.hkeys(key)
                elif name in ("due", "mirror", "parked", "dead"):
                    places.setdefault(tag, {})[name] = client.zrange(key, 0, -1)
        found = []
        for tag, at in places.items():
            stored = at.pop("messages", [])
            known = set(stored)  # a dead message may have lost its record
            placed = [id for name, ids in at.items() for id in ids if name != "dead" or id in known]
            if sorted(stored) != sorted(placed):
                found.append(f"{tag}: {len(stored)} messages, {len(placed)} in places")
        return found

    def _masters(self) -> list[redis.Redis]:
        if self.cell.setup.redis == "sentinel":
            return [self.servers.master.client]
        if self.cell.setup.redis == "cluster":
            return [master.client for master in self.servers.masters]
        return [self.direct]

    def logs(self) -> dict[str, str]:
        return {p.stem: p.read_text(errors="replace") for p in self.folder.glob("*.log")}


def with_port(url: str, port: int) -> str:
    """The same URL with another port on this machine."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()

"""A Redis Cluster of private processes on loopback, and what an administrator does to its slots."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.crc import key_slot

from tests.rigs.certificates import Certificates
from tests.rigs.waiting import quiet, until
from tests.servers.network import Network
from tests.servers.process import FIRST_PORT, LOOPBACK, ServerFailed, free_port, take_port
from tests.servers.redis import default_binary
from tests.servers.redis_node import FOLLOWED_S, NOBODY, QUIET, Login, RedisNode, wait_in_sync

SLOTS = 16_384
NODE_TIMEOUT_MS = 1_500
BUS_DISTANCE = 10_000  # Redis 6.2 cannot choose another
PORT_ATTEMPTS = 200
MIGRATE_TIMEOUT_MS = 30_000
KEYS_AT_ONCE = 100
SLOTS_AT_ONCE = 256


class ClusterNode(RedisNode):
    """One node; `id` is its name in the Cluster."""

    name = "cluster"

    def __init__(self, lines: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.port = self.seen_port = _port_with_bus()
        self.bus = self.port + BUS_DISTANCE
        self.id = secrets.token_hex(20)
        tls = ["tls-cluster yes"] if self.tls else []
        self.lines += ["cluster-enabled yes", *tls, *lines]

    def join(self, network: Network) -> None:
        own_bus = self.bus
        super().join(network)
        self.bus = network.lead_to(own_bus, self.place)
        self.lines.append(f"cluster-announce-bus-port {self.bus}")

    def announced(self) -> list[str]:
        port = "cluster-announce-tls-port" if self.tls else "cluster-announce-port"
        return [f"cluster-announce-ip {LOOPBACK}", f"{port} {self.seen_port}"]

    @property
    def address(self) -> str:
        """host:port, as the Cluster names it."""
        return f"{LOOPBACK}:{self.seen_port}"

    def known(self) -> dict[str, Any]:
        """CLUSTER NODES: the others as it sees them, by address."""
        answer: dict[str, Any] = self.client.cluster("NODES")
        return answer


class ClusterSite:
    """Masters with an equal share of the slots, and replicas of each; starts healthy.

    lines: more configuration of the nodes. Where a node without a replica is away, the other
    slots are served, unless lines say ``cluster-require-full-coverage yes``. network: all that
    connect, connect through it.
    """

    def __init__(
        self,
        lines: Sequence[str] = (),
        *,
        masters: int = 3,
        replicas: int = 1,
        login: Login = NOBODY,
        tls: Certificates | None = None,
        binary: Path | str | None = None,
        network: Network | None = None,
    ) -> None:
        self.login, self.tls = login, tls
        common = [f"cluster-node-timeout {NODE_TIMEOUT_MS}", "cluster-require-full-coverage no"]
        all_lines = [*QUIET, *common, *login.given("masterauth", "masteruser"), *lines]
        self.nodes = [
            ClusterNode(all_lines, login=login, tls=tls, binary=binary)
            for _ in range(masters * (1 + replicas))
        ]
        self._first_masters = masters
        for node in self.nodes:
            if network is not None:
                node.join(network)

    @property
    def url(self) -> str:
        seeds = ",".join(node.address for node in self.nodes[: self._first_masters])
        scheme = "rediss+cluster" if self.tls else "redis+cluster"
        options = f"?ssl_ca_certs={self.tls.authority}" if self.tls else ""
        return f"{scheme}://{self.login.in_url}{seeds}{options}"

    @property
    def masters(self) -> list[ClusterNode]:
        """The nodes that own slots, in the order of their first slot."""
        return self.masters_seen_by(None)

    def masters_seen_by(self, node: ClusterNode | None) -> list[ClusterNode]:
        """`masters`, as the node sees it, or any running one."""
        owners = self._owners() if node is None else self._owners_in(node.known())
        first = {owner: slot for slot, owner in reversed(list(enumerate(owners)))}
        return sorted((owner for owner in first if owner is not None), key=lambda own: first[own])

    def replicas_of(self, master: ClusterNode) -> list[ClusterNode]:
        known = self._any_view()
        return [
            node
            for node in self.nodes
            if node.running and known[node.address]["master_id"] == master.id
        ]

    def owner_of(self, slot: int) -> ClusterNode:
        """The node that owns the slot now, dead or alive."""
        owner = self._owners()[slot]
        if owner is None:
            raise ServerFailed(f"no node owns slot {slot}")
        return owner

    def master_of(self, key: str | bytes) -> ClusterNode:
        return self.owner_of(slot_of(key))

    def slots_of(self, node: ClusterNode) -> list[int]:
        return [slot for slot, owner in enumerate(self._owners()) if owner is node]

    def wait_for_other_master(self, old: ClusterNode, slot: int) -> ClusterNode:
        """Return the slot's next owner as soon as all running nodes agree on it."""

        def taken_over() -> ClusterNode | None:
            owner = self.owner_of(slot)
            return owner if owner is not old and self._agree() else None

        return until(taken_over, "another node owns the slot")

    def lose_master(self) -> None:
        """Kill a master whose replica is in sync; return when the next one and it are up.

        It comes back a second after the next one was announced: so long clients may take to follow.
        """
        old = self.masters[0]
        slot = self.slots_of(old)[0]
        self.wait_in_sync()
        old.kill()
        self.wait_for_other_master(old, slot)
        quiet(FOLLOWED_S)
        old.start()

    def wait_until_healthy(self) -> None:
        """Return when all nodes agree, every slot is served, and all replicas are in sync."""
        until(lambda: self._agree() and self._is_up(), "the Cluster is up")
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Return when every running replica has all that its master has written until now."""
        for master in self.masters:
            wait_in_sync(master, self.replicas_of(master))

    def fail_over(self, replica: ClusterNode) -> None:
        """Promote the replica while its master lives, without loss: CLUSTER FAILOVER."""
        replica.client.execute_command("CLUSTER", "FAILOVER")
        until(lambda: replica.is_master and self._agree(), "it is promoted")

    def reshard(self, slots: Sequence[int], target: ClusterNode) -> None:
        """Move the slots with their keys while the Cluster serves, as ``redis-cli --cluster``.

        One slot after the other, but those without a key together.
        """
        for source, owned in self._by_owner(slots, target):
            full = self._with_keys(source, owned)
            empty = sorted({*owned}.difference(full))
            parts = [empty[i : i + SLOTS_AT_ONCE] for i in range(0, len(empty), SLOTS_AT_ONCE)]
            for part in [*parts, *([slot] for slot in full)]:
                self.begin_move(part, source, target)
                for slot in self._with_keys(source, part):
                    self.move_keys(slot, source, target)
                self.end_move(part, source, target)

    def begin_move(self, slots: Iterable[int], source: ClusterNode, target: ClusterNode) -> None:
        """Open the slots: from now on the source answers ASK for keys that it does not have."""
        _set_slots(target, slots, "IMPORTING", source.id)
        _set_slots(source, slots, "MIGRATING", target.id)

    def move_keys(
        self, slot: int, source: ClusterNode, target: ClusterNode, most: int | None = None
    ) -> int:
        """Move the keys of an open slot, or at most so many; how many were moved."""
        moved = 0
        ask = ("CLUSTER", "GETKEYSINSLOT", slot)
        while most is None or moved < most:
            count = KEYS_AT_ONCE if most is None else min(most - moved, KEYS_AT_ONCE)
            keys = source.client.execute_command(*ask, count)
            if not keys:
                break
            self._migrate(source, target, keys)
            moved += len(keys)
        return moved

    def end_move(self, slots: Iterable[int], source: ClusterNode, target: ClusterNode) -> None:
        """Give the slots to the target; the target hears it first, as the documentation says."""
        others = (node for node in self.masters if node not in (source, target) and node.running)
        for node in (target, source, *others):
            # A master that has given away its last slot is a replica, and refuses.
            with contextlib.suppress(redis.ResponseError) if node is source else nullcontext():
                _set_slots(node, slots, "NODE", target.id)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.close)
            for node in self.nodes:
                (node.folder / "nodes.conf").write_text(self._first_view(node))
                node.start()
            self.wait_until_healthy()
            stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.close()

    def _first_view(self, own: ClusterNode) -> str:
        """nodes.conf as a node would write it after all have met: they start as a Cluster."""
        masters = self.nodes[: self._first_masters]
        ends = [SLOTS * number // len(masters) for number in range(len(masters) + 1)]
        lines = []
        for number, node in enumerate(self.nodes):
            part = number % len(masters)
            me = "myself," if node is own else ""
            role, of, slots = "slave", masters[part].id, ""
            if node is masters[part]:
                role, of, slots = "master", "-", f" {ends[part]}-{ends[part + 1] - 1}"
            address = f"{node.address}@{node.bus}"
            lines.append(f"{node.id} {address} {me}{role} {of} 0 0 {part + 1} connected{slots}")
        return "\n".join([*lines, f"vars currentEpoch {len(masters)} lastVoteEpoch 0", ""])

    def _any_view(self) -> dict[str, Any]:
        running = [node for node in self.nodes if node.running]
        return random.choice(running).known()

    def _owners(self) -> list[ClusterNode | None]:
        return self._owners_in(self._any_view())

    def _owners_in(self, view: dict[str, Any]) -> list[ClusterNode | None]:
        owners: list[ClusterNode | None] = [None] * SLOTS
        for node in self.nodes:
            for span in view.get(node.address, {"slots": []})["slots"]:
                first, last = int(span[0]), int(span[-1])
                owners[first : last + 1] = [node] * (last + 1 - first)
        return owners

    def _agree(self) -> bool:
        views = [self._owners_in(node.known()) for node in self.nodes if node.running]
        return all(view == views[0] for view in views)

    def _is_up(self) -> bool:
        infos = [node.client.cluster("INFO") for node in self.nodes if node.running]
        return all(info["cluster_state"] == "ok" for info in infos)

    def _by_owner(
        self, slots: Sequence[int], target: ClusterNode
    ) -> list[tuple[ClusterNode, list[int]]]:
        parts: dict[ClusterNode, list[int]] = {}
        owners = self._owners()
        for slot in slots:
            owner = owners[slot]
            if owner is not None and owner is not target:
                parts.setdefault(owner, []).append(slot)
        return list(parts.items())

    def _with_keys(self, source: ClusterNode, slots: Sequence[int]) -> list[int]:
        counts = _pipelined(source, (("COUNTKEYSINSLOT", slot) for slot in slots))
        return [slot for slot, count in zip(slots, counts, strict=True) if count]

    def _migrate(self, source: ClusterNode, target: ClusterNode, keys: Sequence[bytes]) -> None:
        login: list[str] = []
        if self.login.username:
            login = ["AUTH2", self.login.username, self.login.password]
        elif self.login.password:
            login = ["AUTH", self.login.password]
        to = (LOOPBACK, target.port, "", 0, MIGRATE_TIMEOUT_MS)
        source.client.execute_command("MIGRATE", *to, *login, "KEYS", *keys)


def slot_of(key: str | bytes) -> int:
    """The slot of a key, by its tag if it has one."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))


def _set_slots(node: ClusterNode, slots: Iterable[int], state: str, node_id: str) -> None:
    _pipelined(node, (("SETSLOT", slot, state, node_id) for slot in slots))


def _pipelined(node: ClusterNode, calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    pipeline = node.client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command("CLUSTER", *call)
    answers: list[Any] = pipeline.execute()
    return answers


def _port_with_bus() -> int:
    """A free port whose port of the Cluster's bus is free too, and not one of outgoing use."""
    for _ in range(PORT_ATTEMPTS):
        bus = free_port()
        port = bus - BUS_DISTANCE
        if port >= FIRST_PORT and take_port(port):
            return port
    raise ServerFailed("no free pair of ports for a node of a Cluster")


@pytest.fixture(scope="session")
def cluster_site() -> Iterator[ClusterSite]:
    """A healthy Cluster that the whole session shares; who breaks one starts an own one."""
    if default_binary() is None:
        pytest.skip("no Redis to run a Cluster from")
    # Nobody breaks the shared one, and no stall of the machine may.
    with ClusterSite(["cluster-node-timeout 15000"]) as site:
        yield site


@pytest.fixture(scope="session")
def cluster_url(cluster_site: ClusterSite) -> str:
    """The URL of the shared Cluster; use a fresh `namespace`."""
    return cluster_site.url

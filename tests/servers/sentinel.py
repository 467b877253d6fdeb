"""Redis behind Sentinels: a master, its replicas, and the Sentinels that elect the next master."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
import redis

from tests.rigs.certificates import Certificates
from tests.rigs.waiting import quiet, until
from tests.servers.network import Network
from tests.servers.process import LOOPBACK
from tests.servers.redis import default_binary
from tests.servers.redis_node import FOLLOWED_S, NOBODY, QUIET, Login, RedisNode, wait_in_sync

SERVICE = "store"
QUORUM = 2
DOWN_AFTER_MS = 1_000
HEALTHY_MS = 300_000  # nobody breaks the shared site, and no stall of the machine may
FAILOVER_TIMEOUT_MS = 3_000


class SentinelNode(RedisNode):
    """One Sentinel: the same binary in another mode."""

    name = "sentinel"

    def command(self) -> Sequence[str]:
        return [*super().command(), "--sentinel"]

    def announced(self) -> list[str]:
        return [f"sentinel announce-ip {LOOPBACK}", f"sentinel announce-port {self.seen_port}"]

    def named_master(self) -> int:
        _, port = self.client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)


class SentinelSite:
    """A master, replicas and three Sentinels, all private, on loopback; starts healthy.

    lines: more configuration of the servers, such as ``["appendonly yes"]`` or
    ``["min-replicas-to-write 1"]``. login, sentinel_login: what the servers and the Sentinels ask
    for. network: all that connect, connect through it.
    """

    def __init__(
        self,
        lines: Sequence[str] = (),
        *,
        replicas: int = 2,
        login: Login = NOBODY,
        sentinel_login: Login = NOBODY,
        tls: Certificates | None = None,
        binary: Path | str | None = None,
        network: Network | None = None,
        down_after_ms: int = DOWN_AFTER_MS,
    ) -> None:
        self.down_after_ms = down_after_ms
        self.login, self.sentinel_login, self.tls = login, sentinel_login, tls
        lines = [*QUIET, *login.given("masterauth", "masteruser"), *lines]
        self.servers = [
            RedisNode(lines, login=login, tls=tls, binary=binary) for _ in range(1 + replicas)
        ]
        self.sentinels = [
            SentinelNode(login=sentinel_login, tls=tls, binary=binary) for _ in range(3)
        ]
        for node in (*self.servers, *self.sentinels):
            if network is not None:
                node.join(network)
        first, *others = self.servers
        for replica in others:
            replica.lines.append(f"replicaof {LOOPBACK} {first.seen_port}")
        ids = [secrets.token_hex(20) for _ in self.sentinels]
        for sentinel, own in zip(self.sentinels, ids, strict=True):
            sentinel.lines += self._watching(first, others)
            sentinel.lines += [f"sentinel myid {own}", *self._neighbours(sentinel, ids)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{sentinel.seen_port}" for sentinel in self.sentinels)
        asked = {
            "sentinel_username": self.sentinel_login.username,
            "sentinel_password": self.sentinel_login.password,
            "ssl_ca_certs": str(self.tls.authority) if self.tls else "",
        }
        options = "&".join(f"{name}={value}" for name, value in asked.items() if value)
        scheme = "rediss+sentinel" if self.tls else "redis+sentinel"
        base = f"{scheme}://{self.login.in_url}{hosts}/{SERVICE}/0"
        return f"{base}?{options}" if options else base

    @property
    def master(self) -> RedisNode:
        """The server that all living Sentinels name as the master."""
        return until(self._agreed, "the Sentinels agree on a master")

    @property
    def replicas(self) -> list[RedisNode]:
        master = self.master
        return [server for server in self.servers if server is not master and server.running]

    def wait_for_other_master(self, old: RedisNode) -> RedisNode:
        """Return the next master as soon as all Sentinels name it and it takes writes."""

        def elected() -> RedisNode | None:
            found = self._agreed()
            return found if found is not None and found is not old and found.is_master else None

        return until(elected, "another master is elected")

    def wait_in_sync(self) -> None:
        """Return when every running replica has all that the master has written until now."""
        wait_in_sync(self.master, self.replicas)

    def lose_master(self) -> None:
        """Kill the master, whose replicas are in sync; return when the next one and it are up.

        It comes back a second after the next one was announced: so long clients may take to follow.
        """
        old = self.master
        self.wait_in_sync()
        old.kill()
        self.wait_for_other_master(old)
        quiet(FOLLOWED_S)
        old.start()

    def fail_over(self) -> RedisNode:
        """Have the Sentinels promote another server while the master lives; the new master."""
        old = self.master
        self.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", SERVICE)
        return self.wait_for_other_master(old)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.close)
            for server in (*self.servers, *self.sentinels):
                server.start()
            wait_in_sync(self.servers[0], self.servers[1:])
            until(self._watched, "the Sentinels see all")
            stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop and remove all; the Sentinels first, who else would elect a master."""
        for server in (*self.sentinels, *self.servers):
            server.kill()
            server.close()

    def _watching(self, master: RedisNode, replicas: Sequence[RedisNode]) -> Iterator[str]:
        yield f"sentinel monitor {SERVICE} {LOOPBACK} {master.seen_port} {QUORUM}"
        yield f"sentinel down-after-milliseconds {SERVICE} {self.down_after_ms}"
        yield f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}"
        login = self.login.given(f"auth-pass {SERVICE}", f"auth-user {SERVICE}")
        yield from (f"sentinel {line}" for line in login)
        mutual = self.sentinel_login.given("sentinel-pass", "sentinel-user")
        yield from (f"sentinel {line}" for line in mutual)
        for replica in replicas:
            yield f"sentinel known-replica {SERVICE} {LOOPBACK} {replica.seen_port}"

    def _neighbours(self, own: SentinelNode, ids: Sequence[str]) -> Iterator[str]:
        # Without this they would find each other after some seconds.
        for sentinel, run_id in zip(self.sentinels, ids, strict=True):
            if sentinel is not own:
                yield f"sentinel known-sentinel {SERVICE} {LOOPBACK} {sentinel.seen_port} {run_id}"

    def _agreed(self) -> RedisNode | None:
        try:
            named = {each.named_master() for each in self.sentinels if each.running}
        except redis.RedisError:
            return None
        by_port = {server.seen_port: server for server in self.servers}
        return by_port.get(named.pop()) if len(named) == 1 else None

    def _watched(self) -> bool:
        """Whether every Sentinel is connected to all servers and to the other Sentinels."""
        asked = ("SENTINEL", "CKQUORUM", SERVICE)
        try:
            for each in self.sentinels:
                each.client.execute_command(*asked)
                replicas = each.client.sentinel_slaves(SERVICE)
                if sum(r["master-link-status"] == "ok" for r in replicas) < len(self.servers) - 1:
                    return False
        except redis.RedisError:
            return False
        return True


@pytest.fixture(scope="session")
def sentinel_site() -> Iterator[SentinelSite]:
    """A healthy site that the whole session shares; who breaks one starts an own one."""
    if default_binary() is None:
        pytest.skip("no Redis to run Sentinels from")
    with SentinelSite(down_after_ms=HEALTHY_MS) as site:
        yield site


@pytest.fixture(scope="session")
def sentinel_url(sentinel_site: SentinelSite) -> str:
    """The URL of the shared Sentinels; use a fresh `namespace`."""
    return sentinel_site.url

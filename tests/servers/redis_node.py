"""A Redis that belongs to a group: it has a configuration file, which it may itself rewrite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.rigs.certificates import Certificates
from tests.rigs.waiting import PATIENCE_S, until
from tests.servers.network import CLIENTS, Network
from tests.servers.process import LOOPBACK
from tests.servers.redis import RedisServer, tls_binary

FOLLOWED_S = 1.0
QUIET = ('save ""', "appendonly no", "repl-diskless-sync-delay 0", "repl-ping-replica-period 1")


@dataclass(frozen=True, slots=True)
class Login:
    """What a server asks for: nothing, a password, or a user with every right and a password."""

    password: str = ""
    username: str = ""

    @property
    def in_url(self) -> str:
        """The part before the host, with its @."""
        return f"{self.username}:{self.password}@" if self.password else ""

    def asked(self) -> list[str]:
        """The configuration of a server that asks for it."""
        if self.username:
            return ["user default off", f"user {self.username} on >{self.password} ~* &* +@all"]
        return [f"requirepass {self.password}"] if self.password else []

    def given(self, password: str, username: str) -> list[str]:
        """The configuration of a server that logs in with it, by its names of the two options."""
        asked = ((password, self.password), (username, self.username))
        return [f"{option} {value}" for option, value in asked if value]


NOBODY = Login()


class RedisNode(RedisServer):
    """One server of a group.

    lines: of its configuration file, more may be added until it starts; the last of two wins.
    tls: it takes only TLS, also from the other servers of the group.
    """

    def __init__(
        self,
        lines: Sequence[str] = (),
        *,
        login: Login = NOBODY,
        tls: Certificates | None = None,
        binary: Path | str | None = None,
    ) -> None:
        super().__init__(binary=tls_binary() if tls and binary is None else binary)
        self.login, self.tls = login, tls
        self.lines = [*login.asked(), *lines]
        self.place, self.seen_port = CLIENTS, self.port

    def join(self, network: Network) -> None:
        """Before its start: be known, and know the others, through the network alone."""
        self.place = network.place()
        self.seen_port = network.lead_to(self.port, self.place)
        self.lines += [f"bind-source-addr {self.place.source}", *self.announced()]

    def announced(self) -> list[str]:
        """The configuration that tells the others the port by which it is known."""
        return [f"replica-announce-ip {LOOPBACK}", f"replica-announce-port {self.seen_port}"]

    @property
    def config(self) -> Path:
        """Its configuration; written once, then its own."""
        return self.folder / "redis.conf"

    @cached_property
    def client(self) -> redis.Redis:
        """A connection with every right, to this server alone."""
        tls = {"ssl": True, "ssl_ca_certs": str(self.tls.authority)} if self.tls else {}
        return redis.Redis(
            host=LOOPBACK,
            port=self.port,
            username=self.login.username or None,
            password=self.login.password or None,
            socket_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 1),  # the connection that was open when it restarted
            **tls,
        )

    def command(self) -> Sequence[str]:
        return [str(self.binary), str(self.config)]

    def start(self) -> Self:
        if not self.config.exists():
            own = [f"bind {LOOPBACK}", f"dir {self.folder}", *self._ports()]
            self.config.write_text("\n".join([*own, *self.lines, ""]))
        return super().start()

    def is_ready(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def close(self) -> None:
        self.client.close()
        super().close()

    def info(self, section: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.info(section)
        return answer

    @property
    def is_master(self) -> bool:
        return self.info("replication")["role"] == "master"

    def has_all_of(self, master: RedisNode) -> bool:
        """Whether this replica has received all that the master had written when asked."""
        offset = master.info("replication")["master_repl_offset"]
        mine = self.info("replication")
        linked = mine["role"] == "slave" and mine["master_link_status"] == "up"
        return bool(linked and mine["slave_repl_offset"] >= offset)

    def _ports(self) -> Iterator[str]:
        if self.tls is None:
            yield f"port {self.port}"
            return
        yield from ("port 0", f"tls-port {self.port}", "tls-auth-clients no")
        yield from ("tls-replication yes", f"tls-ca-cert-file {self.tls.authority}")
        yield from (f"tls-cert-file {self.tls.certificate}", f"tls-key-file {self.tls.key}")


def wait_in_sync(master: RedisNode, replicas: Sequence[RedisNode]) -> None:
    """Return when these replicas have all that the master has written until now."""
    for replica in replicas:
        until(lambda r=replica: r.has_all_of(master), "the replica is in sync")

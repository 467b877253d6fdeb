"""What both stores have: their servers, and the clocks that scripts are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from delaybridge.settings import url_options
from delaybridge.settings.durability import MEMORY, Durability
from delaybridge.settings.redis_servers import Address, Mode, RedisServers
from delaybridge.store.protocol.recorder import Recorder
from delaybridge.store.protocol.verbs import Steps
from delaybridge.store.redis.async_wire import AsyncWire
from delaybridge.store.redis.clocks import Clocks, Commands
from delaybridge.store.redis.durability import assurance_of
from delaybridge.store.redis.pipeline import Servers, Single
from delaybridge.store.redis.redis_client import connect
from delaybridge.store.redis.wire import Wire

W = TypeVar("W", AsyncWire, Wire)
_HANDSHAKE = 0.2  # of the time-out: of a server that another one may replace


def _open(
    kind: type[W], from_url: Callable[..., Any], timeout_s: float,
    url: str, address: Address | None, replaceable: bool,
) -> W:  # fmt: skip
    client = connect(from_url, url, timeout_s * (_HANDSHAKE if replaceable else 0.5), address)
    return kind(client.connection_pool, timeout_s / 2)


def _servers_of(url: str, open_wire: Callable[[str, Address | None, bool], W]) -> Servers[W]:
    """The servers behind a checked URL.

    open_wire: makes a wire from redis-py's URL, an address that counts instead of the one in it,
    and whether the server may be replaced by another.
    """
    servers = RedisServers.parse(url)
    if servers.mode is Mode.SINGLE:
        return Single(open_wire(servers.url, None, False))
    # With one server, how several are followed need not be imported.
    from delaybridge.store.redis.servers import Clustered, Replicated

    if servers.mode is Mode.SENTINEL:
        return Replicated(servers, open_wire(servers.url, None, True))
    return Clustered(servers, lambda address: open_wire(servers.url, address, True))


class Follower(Protocol):
    """Finds messages that have gone to other buckets (`store/namespace/following.py`)."""

    is_resizing: bool
    """Whether messages move to other buckets."""

    def is_retired(self, number: int) -> bool:
        """Whether a bucket has no keys any more, as far as is known."""

    def is_outdated(self, answers: Sequence[Any]) -> bool:
        """Whether these answers may be those of buckets that have other keys by now."""

    def run(self, commands: Commands) -> Steps[list[Any]]:
        """The answers to commands, each where its messages are; errors among them."""


class BaseStore(Generic[W]):
    """What both stores have: the servers, and what is known of them.

    follower: finds messages that have gone to other buckets; None: not needed.
    """

    follower: Follower | None = None
    _kind: type[W]
    _from_url: Callable[..., Any]

    def __init__(
        self, url: str, *, timeout_s: float = 5.0,
        durability: Durability = MEMORY, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        """recorder: tells the ledger what is changed; closed with the store."""
        self.timeout_s, self.assurance = timeout_s, assurance_of(durability)
        self.recorder = recorder
        url, told = url_options.taken(url, url_options.TIME_IN_SCRIPTS)
        # No bound method: in a cycle a socket may be finalized before its connection, a warning.
        self._servers: Servers[W] = _servers_of(
            url, partial(_open, self._kind, self._from_url, timeout_s)
        )
        self._clocks = Clocks(self._servers.node_of) if told == "no" else None

    def node_of(self, key: str) -> str:
        """The server that has a key, as `host:port`; empty unless this is a Redis Cluster.

        It may change at any time: slots move, and masters fail over.
        """
        return self._servers.node_of(key)

    def nodes(self) -> list[str]:
        """Every master, as `node_of` names it. `near="@NODE"` sends a command to one of them."""
        return self._servers.nodes()

    def describe(self) -> str:
        """How the servers work together, for people; empty for one server alone."""
        return self._servers.describe()

    def misses(self, key: str = "") -> bool:
        """Whether the server of a key, or any of a Cluster, does not answer, or did not lately."""
        return self._servers.misses(key)

"""Sentinels: which server is the master now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from delaybridge.errors import printable
from delaybridge.settings.redis_servers import Address, RedisServers, name_of
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.redis.errors import Misnamed, NotAsked, NotNow
from delaybridge.store.redis.redis_client import connect
from delaybridge.store.redis.wire import Wire

ASK_S = 0.3  # to connect to a server that may be away, and for its answer


class Master(NamedTuple):
    """A master as a Sentinel knows it. epoch: grows with each fail-over."""

    epoch: int
    address: Address


class Seen(NamedTuple):
    """What a Sentinel says of the service. others: other Sentinels; flags: of the master."""

    address: Address
    others: int
    quorum: int
    flags: str


class Sentinels:
    """The Sentinels of a URL. For one thread.

    service: what they call the master. trouble: why none of them names it.
    """

    def __init__(self, servers: RedisServers) -> None:
        self.service, self._next = servers.service, 0
        self._epoch = -1  # of the last fail-over that we know of
        self._wires = [
            (address, Wire(connect(redis.Redis.from_url, servers.asked_url, ASK_S, address)
                           .connection_pool, ASK_S))
            for address in servers.asked
        ]  # fmt: skip
        self.trouble: RedisError = NotAsked("no Sentinel was asked yet")

    def master(self, known: Address | None) -> Address | None:
        """The master's address; None if no Sentinel knows it.

        One Sentinel is asked, another one each time. Only if it says something new are all of them
        asked, and the latest fail-over counts: a Sentinel that was cut off knows of earlier ones.
        """
        self._next = (self._next + 1) % len(self._wires)
        (one,) = self._ask(self._wires[self._next : self._next + 1])
        if one is not None and one.address == known:
            return known
        found = [master for master in self._ask(self._wires) if master is not None]
        latest = max(found, default=Master(-1, ("", 0)))
        if latest.epoch < self._epoch and 2 * len(found) <= len(self._wires):
            return None  # those who know of the fail-over that we have followed are silent
        self._epoch = latest.epoch
        return latest.address if found else None

    def survey(self) -> dict[str, Seen | str]:
        """What each Sentinel says, by its name; or why it does not answer."""
        found: dict[str, Seen | str] = {}
        for address, wire in self._wires:
            name = name_of(address)
            reply = self._reply(wire)
            if isinstance(reply, Exception):
                found[name] = printable(str(self._trouble_with(name, reply)))[:160]
            else:
                said = _fields(reply)
                numbers = int(said.get("num-other-sentinels", 0)), int(said.get("quorum", 0))
                found[name] = Seen(_read(reply).address, *numbers, said.get("flags", ""))
        return found

    def _ask(self, wires: Sequence[tuple[Address, Wire]]) -> list[Master | None]:
        return [self._ask_one(name_of(address), wire) for address, wire in wires]

    def _ask_one(self, name: str, wire: Wire) -> Master | None:
        reply = self._reply(wire)
        if isinstance(reply, Exception):
            self.trouble = self._trouble_with(name, reply)
            return None
        return _read(reply)

    def _reply(self, wire: Wire) -> Any:
        """SENTINEL MASTER, with the address that counts: during a fail-over, that of the next."""
        asked = ("MASTER", "GET-MASTER-ADDR-BY-NAME")
        try:
            known, address = wire.call([packed("SENTINEL", ask, self.service) for ask in asked])
        except (RedisError, OSError) as exc:
            return exc
        if isinstance(known, list) and isinstance(address, list):
            return [*known, b"ip", address[0], b"port", address[1]]
        return known

    def _trouble_with(self, name: str, error: Exception) -> RedisError:
        text = str(error)
        if "unknown command" in text:
            what = "is no Sentinel; give the addresses of Sentinels, whose usual port is 26379"
            return Misnamed(f"{name} {what}, or redis://HOST:PORT for a single server")
        if "No such master" in text:
            what = f"Sentinel {name} knows no service {printable(self.service)[:40]!r}"
            return Misnamed(f"{what}; after the hosts give the name in its `sentinel monitor NAME`")
        if isinstance(error, AuthenticationError | NoPermissionError):
            remedy = "Sentinels' own user: ?sentinel_username=...&sentinel_password=..."
            return type(error)(f"Sentinel {name}: {text.rstrip('.')[:80]} ({remedy})")
        return trouble_with(f"Sentinel {name}", error)

    def close(self) -> None:
        """Close the connections to all Sentinels."""
        for _, wire in self._wires:
            wire.close()


def trouble_with(name: str, error: Exception) -> RedisError:
    """What to answer to calls while a server that knows the masters fails in this way."""
    if isinstance(error, AuthenticationError | NoPermissionError):
        return error
    if "cluster support disabled" in str(error):
        remedy = f"for a single server give redis://{name}"
        return Misnamed(f"{name} is no server of a Redis Cluster; {remedy}")
    return NotNow(f"{name}: {printable(str(error) or type(error).__name__)[:110]}")


def _read(reply: Sequence[Any]) -> Master:
    fields = _fields(reply)
    return Master(int(fields.get("config-epoch", 0)), (fields["ip"], int(fields["port"])))


def _fields(reply: Sequence[Any]) -> dict[str, str]:
    words = [bytes(word).decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=False))

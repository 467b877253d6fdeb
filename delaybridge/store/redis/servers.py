"""Servers of Redis that may change: a master that Sentinels name, and those of a Cluster.

There are three kinds: one server (`pipeline.Single`), a master that Sentinels name (`Replicated`),
and the masters of a Cluster (`Clustered`). Workers and asyncio clients use them with an
`AsyncWire`, others with a `Wire`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from random import choice, sample
from typing import Any

import redis
from redis.exceptions import RedisError

from delaybridge.settings.redis_servers import Address, RedisServers, name_of
from delaybridge.store.protocol.keys import SLOTS, slot_of
from delaybridge.store.protocol.scripts import packed
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.errors import NotAsked, NotNow
from delaybridge.store.redis.master_watch import SLOW_S, Lookout
from delaybridge.store.redis.pipeline import Pipeline, Portion, Servers, W
from delaybridge.store.redis.redis_client import connect
from delaybridge.store.redis.sentinels import ASK_S, Sentinels, trouble_with
from delaybridge.store.redis.wire import Wire

KEYLESS = frozenset({
    "PING", "TIME", "INFO", "SCRIPT LOAD", "CONFIG GET", "ROLE", "CLUSTER SLOTS", "CLUSTER INFO",
})  # fmt: skip
"""Plain commands whose first argument is no key. (That of PUBLISH and SUBSCRIBE counts as one.)"""

Table = Sequence[Address | None]
"""Slot -> its master."""


def key_of(command: RedisCommand[Any]) -> str:
    """A key whose server is to run the command; empty: any server may."""
    if command.keys:
        return command.keys[0]
    if command.near or command.name in KEYLESS or not command.args:
        return command.near
    return str(command.args[0])


def read_table(reply: Iterable[Sequence[Any]], asked: str) -> Table:
    """The table in a reply to CLUSTER SLOTS. asked: the host that gave it."""
    table: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        host, port = master[0], int(master[1])
        name = "" if host is None or host == b"?" else bytes(host).decode()
        table[int(first) : int(last) + 1] = [(name or asked, port)] * (int(last) - int(first) + 1)
    return table


_ASK_SENTINELS_S = 0.5  # between two looks: a new master is followed within a second
_UNEASY_S = 3.0  # after a failed call, Sentinels are asked all the time
_ASK_CLUSTER_S = 10.0  # its servers tell each caller that asks the wrong one
_RECOVERS_S = 5.0  # a server counts as silent for so long after a failed call
_slot_of = lru_cache(65_536)(slot_of)


class Replicated(Servers[W]):
    """The master that Sentinels name.

    Once a call has failed, none is sent before a Sentinel has been asked. A master that died and
    was replaced takes writes when it is started again, until the Sentinels demote it: all those are
    lost.
    """

    every_s = _ASK_SENTINELS_S

    def __init__(self, servers: RedisServers, wire: W) -> None:
        self._wire = wire
        self._master: Address | None = None
        self._uneasy_until_s = 0.0
        self._doubts = self._settled = 0  # the number of the last doubt, and of the last settled
        self._sentinels = Sentinels(servers)
        self._lookout = Lookout(self, self._sentinels.close)

    def portions(self, pipeline: Pipeline) -> list[tuple[W, Portion]]:
        self._lookout.keep()
        portion = pipeline.portion(pipeline.next_round())
        try:
            return [(self.wire_at(""), portion)]
        except RedisError as exc:
            pipeline.lost(portion, exc)
            return []

    @property
    def is_known(self) -> bool:
        is_known = self._master is not None and self._doubts == self._settled
        if not is_known:
            self._lookout.wake()
        return is_known

    def wire_at(self, node: str) -> W:
        if not self.is_known:
            asking = NotAsked("a call failed; no Sentinel was asked since who is the master")
            raise self._sentinels.trouble if self._master is None else asking
        return self._wire

    def wires(self) -> list[W]:
        return [self._wire]

    def failed(self) -> None:
        if self._doubts == self._settled:
            self._doubts += 1
        self._uneasy_until_s = time.monotonic() + _UNEASY_S
        self._lookout.wake()

    def describe(self) -> str:
        master = "not known" if self._master is None else name_of(self._master)
        return f"Sentinels, service {self._sentinels.service}, master {master}"

    def refresh(self) -> None:
        """As the watch of the masters asks: see `Watched`."""
        doubt = self._doubts
        # In doubt all of them are asked: some hear of a fail-over later than others.
        found = self._sentinels.master(self._master if doubt == self._settled else None)
        if found is not None and found != self._master:
            self._wire.move_to(*found)
            self._master = found
        if time.monotonic() < self._uneasy_until_s:
            self._lookout.wake()
        self._settled = doubt  # also if none answers: then there is no fail-over that we could see

    def waiting_s(self) -> float:
        """As the watch of the masters asks: see `Watched`."""
        return self._wire.waiting_s()

    def end(self) -> None:
        self._lookout.end()


class Clustered(Servers[W]):
    """The masters of a Cluster."""

    every_s = _ASK_CLUSTER_S

    def __init__(self, servers: RedisServers, open_wire: Callable[[Address], W]) -> None:
        self._servers, self._open_wire = servers, open_wire
        self._table: Table = ()
        self._masters: Sequence[Address] = ()
        self._wires: dict[Address, W] = {}
        self._asking: dict[Address, Wire] = {}
        self._trouble: RedisError = NotAsked("no server of the Cluster was asked yet")
        self._lookout = Lookout(self, partial(_close_all, self._asking))

    def portions(self, pipeline: Pipeline) -> list[tuple[W, Portion]]:
        self._lookout.keep()
        if redirected := pipeline.redirected:
            self._learn(pipeline.commands, redirected)
        groups: dict[tuple[Address | None, bool], list[int]] = {}
        keyless = list[int]()
        for i in pipeline.next_round():
            if (told := redirected.get(i)) is not None:
                groups.setdefault((told.address, told.asking), []).append(i)
            elif key := key_of(pipeline.commands[i]):
                groups.setdefault((self._master_of(key), False), []).append(i)
            else:
                keyless.append(i)
        if keyless:  # they go along with others, or to any server
            places = groups.setdefault(next(iter(groups), (self._master_of(""), False)), [])
            places[:] = sorted(places + keyless)
        found = list[tuple[W, Portion]]()
        # In one order: calls of threads that wait for a connection to each never wait in a circle.
        for (address, asks), places in sorted(groups.items(), key=lambda each: str(each[0])):
            portion = pipeline.portion(places, asks=asks)
            if address is None:
                self._lookout.wake()
                pipeline.lost(portion, self._trouble)
            else:
                found.append((self._wire(address), portion))
        return found

    @property
    def is_known(self) -> bool:
        if not self._masters:
            self._lookout.wake()
        return bool(self._masters)

    def _learn(self, commands: Sequence[RedisCommand[Any]], redirected: Any) -> None:
        """Remember where slots have moved to."""
        table = list(self._table)
        for i, told in redirected.items():
            if not told.asking and table:
                table[_slot_of(key_of(commands[i]))] = told.address
        self._set_table(table)
        self._lookout.wake()

    def _set_table(self, table: Table) -> None:
        self._table, self._masters = table, [a for a in dict.fromkeys(table) if a is not None]

    def _master_of(self, key: str) -> Address | None:
        if not self._masters:
            return None
        if key.startswith("@"):
            return next((each for each in self._masters if name_of(each) == key[1:]), None)
        return self._table[_slot_of(key)] if key else self._any_master()

    def _any_master(self) -> Address:
        """One of those that answered lately, as far as is known; if none did, any."""
        answering = [each for each in self._masters if not self._is_silent(each)]
        return choice(answering or self._masters)

    def _is_silent(self, address: Address) -> bool:
        wire = self._wires.get(address)
        return wire is not None and wire.is_silent(_RECOVERS_S, SLOW_S)

    def _wire(self, address: Address) -> W:
        wire = self._wires.get(address)
        if wire is None:
            wire = self._wires[address] = self._open_wire(address)
        return wire

    def node_of(self, key: str) -> str:
        address = self._master_of(key)
        return "" if address is None else name_of(address)

    def nodes(self) -> list[str]:
        return [name_of(address) for address in self._masters]

    def wire_at(self, node: str) -> W:
        address = self._master_of(f"@{node}" if node else "")
        if address is None:
            self._lookout.wake()
            raise self._trouble
        return self._wire(address)

    def describe(self) -> str:
        return f"Cluster of {len(self.nodes())} masters"

    def wires(self) -> list[W]:
        return [*self._wires.values()]

    def failed(self) -> None:
        self._lookout.wake()

    def misses(self, key: str = "") -> bool:
        addresses: Iterable[Address | None] = [self._master_of(key)] if key else [*self._wires]
        return any(each is not None and self._is_silent(each) for each in addresses)

    def waiting_s(self) -> float:
        """As the watch of the masters asks: see `Watched`."""
        return max((wire.waiting_s() for wire in self.wires()), default=0.0)

    def refresh(self) -> None:
        """As the watch of the masters asks: see `Watched`."""
        known = self._masters
        others = [address for address in self._servers.asked if address not in known]
        for address in [*sample(known, len(known)), *others]:
            if (table := self._ask(address)) is not None:
                self._follow(table)
                return

    def _ask(self, address: Address) -> Table | None:
        """The table that a server knows; None if it is away or cut off from the others."""
        wire = self._asking.get(address)
        if wire is None:
            client = connect(redis.Redis.from_url, self._servers.asked_url, ASK_S, address)
            wire = self._asking[address] = Wire(client.connection_pool, ASK_S)
        try:
            info, slots = wire.call([packed("CLUSTER", "INFO"), packed("CLUSTER", "SLOTS")])
            if isinstance(slots, Exception):
                raise slots
            table = read_table(slots, address[0])
        except (RedisError, OSError, ValueError, TypeError, LookupError) as exc:
            self._trouble = trouble_with(name_of(address), exc)
            return None
        self._trouble = NotNow(f"{name_of(address)}: no server has the key's slot")
        is_cut_off = isinstance(info, bytes) and b"cluster_state:ok" not in info
        return None if is_cut_off and self._table else table

    def _follow(self, table: Table) -> None:
        self._set_table(table)
        for address in [a for a in [*self._wires] if a not in self._masters]:
            self._wires.pop(address).retire()

    def end(self) -> None:
        self._lookout.end()


def _close_all(wires: dict[Address, Wire]) -> None:
    for wire in wires.values():
        wire.close()

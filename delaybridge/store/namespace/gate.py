"""The gate: whether the Redis servers are set up for what `durability` promises, and keep it now.

Judged by INFO, which every user may read. CONFIG, which managed servers and many users lack, is
asked only for `appendfsync`, and only where INFO cannot answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from delaybridge.errors import ConfigError, StoreError
from delaybridge.settings.durability import Durability, Keeping
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.placement import Placement, at
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, plain, store_wide_error

_SECTIONS = ("server", "memory", "persistence", "replication")
_NO_EVICTION = "noeviction"
_HAS_WAITAOF = (7, 2)
_LAG_S = 10  # a replica that was silent for longer is not counted
_WRITES = {
    "aof_last_write_status": "the last write to the append-only file failed",
    "aof_last_bgrewrite_status": "the last rewrite of the append-only file failed",
    "rdb_last_bgsave_status": "the last snapshot failed",
}


class Shortfall(NamedTuple):
    """What a server lacks, and the remedy. server: `host:port` on a Cluster, else empty.

    is_setting: it stays until a setting is changed. is_mild: the promise holds nevertheless.
    """

    what: str
    remedy: str
    is_setting: bool = False
    is_mild: bool = False
    server: str = ""

    def __str__(self) -> str:
        return f"{self.server}: {self.what}" if self.server else self.what


def find_shortfalls(durability: Durability, placement: Placement) -> Steps[list[Shortfall]]:
    """What is lacking, of every master that answers. Raises if none does."""
    nodes = placement.nodes()
    servers = yield from _asked(nodes)
    return [
        each._replace(server=node)
        for node, of in servers.items()
        for each in shortfalls(durability, of)
    ]


def require(durability: Durability, placement: Placement) -> Steps[None]:
    """Raise ConfigError if a setting of Redis contradicts the durability."""
    if durability.mode is Keeping.MEMORY:
        return
    for each in (yield from find_shortfalls(durability, placement)):
        if each.is_setting and not each.is_mild:
            what = f"{each}, but durability is {durability}"
            raise ConfigError(f"redis: {what}; {each.remedy[0].lower()}{each.remedy[1:]}")


def _asked(nodes: Sequence[str]) -> Steps[dict[str, dict[str, Mapping[str, str]]]]:
    """What each server answers: INFO by section; `config`: the settings that may be read.

    A server that does not answer is left out: its buckets cannot be seen. Raises if none answers.
    """
    commands: list[RedisCommand[Any]] = []
    for node in nodes:
        commands += (registry.info(section, at(node)) for section in _SECTIONS)
        commands.append(plain("CONFIG GET", "append*", near=at(node), parse=_read_config))
    replies = yield Each(commands)
    names, found = (*_SECTIONS, "config"), {}
    for number, node in enumerate(nodes):
        answered = replies[number * len(names) : (number + 1) * len(names)]
        if store_wide_error(answered[:1]) is None:
            own = dict(zip(names, answered, strict=True))
            found[node] = {n: {} if isinstance(r, StoreError) else r for n, r in own.items()}
    if not found and (error := store_wide_error(replies)) is not None:
        raise error
    return found


def _read_config(reply: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode(errors="replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=False))


def shortfalls(durability: Durability, of: Mapping[str, Mapping[str, str]]) -> Iterator[Shortfall]:
    """What one server lacks. of: INFO by section, and `config`."""
    policy = of["memory"].get("maxmemory_policy", _NO_EVICTION)
    if policy != _NO_EVICTION:
        what = f"maxmemory-policy is {policy}: a full Redis would drop messages"
        yield Shortfall(what, f"Set: maxmemory-policy {_NO_EVICTION}", is_setting=True)
    if durability.mode in (Keeping.AOF, Keeping.AOF_FSYNC):
        if of["persistence"].get("aof_enabled") != "1":
            yield Shortfall("appendonly is no", "Set: appendonly yes", is_setting=True)
        elif durability.mode is Keeping.AOF_FSYNC:
            yield from _unsynced(of)
    if durability.mode is Keeping.REPLICATED:
        yield from _unreplicated(durability.replicas, of["replication"])
    for field, what in _WRITES.items():
        if of["persistence"].get(field, "ok") != "ok":
            is_mild = durability.mode in (Keeping.MEMORY, Keeping.REPLICATED)
            yield Shortfall(what, "See Redis' log: its disk may be full", is_mild=is_mild)


def _unsynced(of: Mapping[str, Mapping[str, str]]) -> Iterator[Shortfall]:
    words = of["server"].get("redis_version", "").split(".")[:2]
    if tuple(int(word) for word in words if word.isdigit()) >= _HAS_WAITAOF:
        return
    what = "this server is older than 7.2 and lacks WAITAOF"
    if (said := of["config"].get("appendfsync")) is None:
        what += ", and CONFIG GET is refused, so appendfsync cannot be seen"
        yield Shortfall(what, "Allow +config|get, or upgrade Redis", is_setting=True)
    elif said != "always":
        what += f", and appendfsync is {said}"
        yield Shortfall(what, "Set: appendfsync always, or upgrade Redis", is_setting=True)


def _unreplicated(wanted: int, said: Mapping[str, str]) -> Iterator[Shortfall]:
    lines = (said[name] for name in said if name[:5] == "slave" and name[5:].isdigit())
    found = [dict(word.partition("=")[::2] for word in line.split(",")) for line in lines]
    online = sum(_is_online(each) for each in found)
    if online < wanted:
        what = f"{online} of {wanted} replicas are online"
        yield Shortfall(what, "Start a replica, or ask for fewer: durability")
    if "min_slaves_good_slaves" not in said:  # it is there if min-replicas-to-write is set
        what = "min-replicas-to-write is 0: a master that is cut off goes on writing"
        remedy = "Set: min-replicas-to-write 1, min-replicas-max-lag 10"
        yield Shortfall(what, remedy, is_setting=True, is_mild=True)


def _is_online(replica: Mapping[str, str]) -> bool:
    lag = replica.get("lag", "0")
    return replica.get("state") == "online" and lag.isdigit() and int(lag) <= _LAG_S

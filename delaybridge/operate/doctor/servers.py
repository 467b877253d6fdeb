"""Checks of the Redis servers: how they work together, and what each of them lacks.

Of a Cluster also its slots, and what stops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from delaybridge import errors
from delaybridge.operate.doctor.checks import server_name
from delaybridge.operate.notices.silent_buckets import why_unseen
from delaybridge.operate.troubles.finding import Finding, ok
from delaybridge.operate.troubles.listed import trouble
from delaybridge.settings.redis_servers import Mode, RedisServers, name_of
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.placement import at
from delaybridge.store.namespace.translatable import some
from delaybridge.store.protocol.keys import SLOTS
from delaybridge.store.protocol.verbs import RedisCommand, plain
from delaybridge.store.redis.sentinels import Seen, Sentinels

if TYPE_CHECKING:
    from delaybridge.settings.settings import Settings
    from delaybridge.store.redis.store import Store

_OLDEST_REDIS = (6, 2)
# Release line -> the first release that fixes the four vulnerabilities in Lua of October 2025. The
# worst, CVE-2025-49844, lets every user who may run a script run code on the server.
_LUA_FIXED: dict[str, dict[tuple[int, int], int]] = {
    "redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_SECTIONS = ("server", "memory", "persistence", "replication")
_CLOCKS_APART_US = 1_000_000
_COVERAGE = "cluster-require-full-coverage"
_OPEN = re.compile(r"\[(\d+)-[<>]-\w+\]")  # of a node's own line in CLUSTER NODES
_SHOWN = 5


class Inspected(NamedTuple):
    """A master, what INFO and TIME say. node: on a Cluster; error: why it does not answer."""

    node: str
    info: Mapping[str, str]
    time_us: int
    error: str

    @property
    def label(self) -> str:
        """`redis`, or `redis HOST:PORT` on a Cluster: what its findings are about."""
        return f"redis {self.node}" if self.node else "redis"


def servers(store: Store, settings: Settings) -> Iterator[Finding]:
    """How Redis runs, and each master. StoreError if none can be asked."""
    of = RedisServers.parse(settings.redis.url)
    (said,) = store.run([registry.info("server")])  # from now on the masters are known
    _refuse_other_mode(of.mode, said.get("redis_mode", ""))
    found = inspect_masters(store)
    if of.mode is not Mode.SINGLE:
        yield ok("redis", store.describe())
    if of.mode is Mode.SENTINEL:
        yield from _sentinels(of)
    if of.mode is Mode.CLUSTER:
        yield from _whole(store, [each.node for each in found if not each.error])
        yield from clocks([each for each in found if not each.error])
    yield from _told_once(
        [
            finding
            for each in found
            for finding in (_silent(each) if each.error else _one(each, of.mode is Mode.SINGLE))
        ],
        len(found),
    )


def inspect_masters(store: Store) -> list[Inspected]:
    """Every master, asked at the same time."""
    nodes = store.nodes()
    # Connected before clocks are read.
    store.run_each([registry.store_time(at(node)) for node in nodes])
    commands: list[RedisCommand[Any]] = []
    for node in nodes:
        commands.append(registry.store_time(at(node)))
        commands += (registry.info(section, at(node)) for section in _SECTIONS)
    replies, size = store.run_each(commands), 1 + len(_SECTIONS)
    starts = range(0, len(replies), size)
    return [
        _read(node, *replies[start : start + size])
        for node, start in zip(nodes, starts, strict=True)
    ]


def _read(node: str, time_us: int, *sections: Any) -> Inspected:
    error = next((each for each in sections if isinstance(each, errors.StoreError)), None)
    if error is not None:
        return Inspected(node, {}, 0, why_unseen(node, error))
    return Inspected(node, {k: v for each in sections for k, v in each.items()}, time_us, "")


def _refuse_other_mode(mode: Mode, said: str) -> None:
    """Raise StoreMisnamed if a plain URL leads to a Cluster or to a Sentinel."""
    if mode is Mode.SINGLE and said == "cluster":
        what = "this server is one of a Redis Cluster; give its URL as redis+cluster://HOST:PORT"
        raise errors.StoreMisnamed(what)
    if mode is Mode.SINGLE and said == "sentinel":
        what = "this server is a Sentinel; give its URL as redis+sentinel://HOST:26379/SERVICE"
        raise errors.StoreMisnamed(what)


def _told_once(findings: Sequence[Finding], masters: int) -> Iterator[Finding]:
    """The same findings; those that several masters share, once."""
    shared: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        shared.setdefault((each.what, each.remedy), []).append(each)
    for same in shared.values():
        names = [each.about.removeprefix("redis ") for each in same]
        about = same[0].about if len(names) == 1 else f"redis {', '.join(names)}"
        yield same[0]._replace(about="redis" if len(names) == masters else about)


def _silent(each: Inspected) -> Iterator[Finding]:
    what = f"does not answer, its buckets wait: {each.error}"
    yield trouble("server_silent", what, about=each.label)


def _one(each: Inspected, is_alone: bool) -> Iterator[Finding]:
    """A master that answers."""
    info, about = each.info, each.label
    name, version = server_name(info), info.get("redis_version", "").split(".")[:2]
    is_new = tuple(int(part) for part in version if part.isdigit()) >= _OLDEST_REDIS
    fact = name if is_alone else f"{name}, {_memory(info)}"
    yield ok(about, fact) if is_new else trouble("store_old", about=about, version=fact)
    if (fixed := lua_fixed_in(name)) is not None:
        yield trouble("store_vulnerable", about=about, remedy=f"Upgrade: {fixed}")
    policy = info.get("maxmemory_policy", "?")
    keeps = ok(about, f"maxmemory-policy {policy}")
    yield keeps if policy == "noeviction" else trouble("store_evicts", about=about, policy=policy)
    is_on = info.get("aof_enabled") == "1"
    yield ok(about, "appendonly yes") if is_on else trouble("store_not_persistent", about=about)
    if not is_alone and info.get("connected_slaves") == "0":
        yield trouble("store_without_replica", about=about)


def _memory(info: Mapping[str, str]) -> str:
    most = "no maxmemory" if info.get("maxmemory", "0") == "0" else info.get("maxmemory_human")
    return f"{info.get('used_memory_human', '?')} used of {most}"


def clocks(found: Sequence[Inspected]) -> Iterator[Finding]:
    """Messages are due by the clock of the server that has them."""
    middle_us = sorted(each.time_us for each in found)[len(found) // 2]
    apart = {each.node: each.time_us - middle_us for each in found}
    off = {node: us for node, us in apart.items() if abs(us) >= _CLOCKS_APART_US}
    for node, us in off.items():
        side = "ahead of" if us > 0 else "behind"
        what = f"the clock of {node} is {abs(us) / 1e6:.1f} s {side} those of the others"
        yield trouble("store_clocks_differ", f"{what}: messages of its buckets are due by it")
    if not off and len(found) > 1:
        most_ms = max(map(abs, apart.values())) / 1000
        yield ok("clock", f"the masters' clocks are within {most_ms:.0f} ms")


def _whole(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    """Slots without a server or half-moved, and whether one server down stops all. nodes: alive."""
    if not nodes:
        return
    infos = store.run_each([plain("CLUSTER INFO", near=at(node)) for node in nodes])
    known = [_fields_of(each) for each in infos if isinstance(each, bytes)]
    assigned = min(
        (int(each.get("cluster_slots_assigned", SLOTS)) for each in known), default=SLOTS
    )
    if assigned < SLOTS:
        yield trouble("cluster_slots_unassigned", count=SLOTS - assigned, node=nodes[0])
    refusing = [n for n, each in zip(nodes, infos, strict=True) if b"state:fail" in _bytes(each)]
    if refusing:
        yield trouble("cluster_down", nodes=", ".join(refusing[:_SHOWN]), node=nodes[0])
    yield from _moving(store, nodes)
    yield from _coverage(store, nodes)


def _moving(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    replies = store.run_each([plain("CLUSTER NODES", near=at(node)) for node in nodes])
    if any(isinstance(each, errors.StoreError) for each in replies):
        yield trouble("cluster_slots_unseen")
    slots = {int(slot) for each in replies for slot in _OPEN.findall(_bytes(each).decode())}
    if slots:
        shown = some(sorted(slots), _SHOWN)
        yield trouble("cluster_slots_moving", count=len(slots), slots=shown, node=nodes[0])


def _coverage(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    replies = store.run_each([plain("CONFIG GET", _COVERAGE, near=at(node)) for node in nodes])
    said = {each[1] for each in replies if isinstance(each, list) and len(each) > 1}
    if b"yes" in said:
        yield trouble("cluster_needs_all")
    elif not said:
        what = f"CONFIG GET is refused: {_COVERAGE} cannot be seen. "
        yield ok("cluster", what + "Its default, yes, lets one server down stop all buckets")


def _fields_of(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else b""


def _sentinels(of: RedisServers) -> Iterator[Finding]:
    """Whether the Sentinels answer, agree, and are enough for a fail-over."""
    asked = Sentinels(of)
    found = asked.survey()
    asked.close()
    for name, each in found.items():
        if not isinstance(each, Seen):
            yield trouble("sentinel_silent", name=name, why=each)
    answers = {name: each for name, each in found.items() if isinstance(each, Seen)}
    if not answers:
        return
    yield from _agreement(of.service, answers)
    yield from _quorum(len(found), [*answers.values()])


def _agreement(service: str, answers: Mapping[str, Seen]) -> Iterator[Finding]:
    named: dict[str, list[str]] = {}
    for name, each in answers.items():
        named.setdefault(name_of(each.address), []).append(name)
    if len(named) > 1:
        said = "; ".join(f"{', '.join(who)} say {master}" for master, who in named.items())
        yield trouble("sentinels_disagree", service=service, said=said)
    if any("down" in each.flags for each in answers.values()):
        yield trouble("sentinel_master_down", service=service)


def _quorum(asked: int, answers: Sequence[Seen]) -> Iterator[Finding]:
    """Whether there are enough Sentinels. asked: how many the URL names."""
    all_of_them = max(each.others for each in answers) + 1
    quorum = max(each.quorum for each in answers)
    needed, fact = max(quorum, all_of_them // 2 + 1), f"{len(answers)} of {asked} answer"
    if asked < all_of_them:
        yield trouble("sentinels_unnamed", asked=asked, all=all_of_them)
    elif len(answers) < needed:
        yield trouble("sentinels_few_answer", fact=fact, needed=needed)
    else:
        yield ok("sentinel", f"{fact}, quorum {quorum}")
    if all_of_them < 3:
        yield trouble("sentinels_too_few", all=all_of_them)


def lua_fixed_in(name: str) -> str | None:
    """The release that fixes a server such as `redis 7.2.4`; None if it needs no fix."""
    found = re.fullmatch(r"(\w+) (\d+)\.(\d+)\.(\d+).*", name)
    lines = _LUA_FIXED.get(found[1], {}) if found else {}
    if found is None or not lines:
        return None
    line, patch = (int(found[2]), int(found[3])), int(found[4])
    if line > max(lines) or patch >= lines.get(line, patch + 1):
        return None
    # A release line without a fix: upgrade to the next line that has one.
    major, minor = line if line in lines else min(known for known in lines if known > line)
    return f"{found[1]} {major}.{minor}.{lines[major, minor]} or newer"

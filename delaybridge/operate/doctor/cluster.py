"""What `doctor` says of a Redis Cluster as a whole: its slots, and what stops them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from delaybridge.errors import StoreError
from delaybridge.operate.doctor.finding import FAIL, OK, WARN, Finding
from delaybridge.store.namespace.placement import at
from delaybridge.store.protocol.command import plain
from delaybridge.store.protocol.keys import SLOTS

if TYPE_CHECKING:
    from delaybridge.store.redis.store import Store

_COVERAGE = "cluster-require-full-coverage"
_OPEN = re.compile(r"\[(\d+)-[<>]-\w+\]")  # of a node's own line in CLUSTER NODES
_NAMED = 5


def whole(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    """Slots without a server or half-moved, and whether one server down stops all. nodes: alive."""
    if not nodes:
        return
    infos = store.run_each([plain("CLUSTER INFO", near=at(node)) for node in nodes])
    known = [_read(each) for each in infos if isinstance(each, bytes)]
    assigned = min(
        (int(each.get("cluster_slots_assigned", SLOTS)) for each in known), default=SLOTS
    )
    if assigned < SLOTS:
        what = f"{SLOTS - assigned} slots have no server: their buckets wait"
        yield Finding(FAIL, "cluster", what, f"Assign them: redis-cli --cluster fix {nodes[0]}")
    refusing = [n for n, each in zip(nodes, infos, strict=True) if b"state:fail" in _bytes(each)]
    if refusing:
        what = f"{', '.join(refusing[:_NAMED])} refuse commands: cluster_state is fail"
        yield Finding(FAIL, "cluster", what, "Start the servers that are down")
    yield from _moving(store, nodes)
    yield from _coverage(store, nodes)


def _moving(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    replies = store.run_each([plain("CLUSTER NODES", near=at(node)) for node in nodes])
    if any(isinstance(each, StoreError) for each in replies):
        what = "CLUSTER NODES is refused: slots that are half-moved cannot be seen"
        yield Finding(WARN, "cluster", what, "Allow +cluster|nodes, or watch it yourself")
    slots = {int(slot) for each in replies for slot in _OPEN.findall(_bytes(each).decode())}
    if slots:
        shown = ", ".join(map(str, sorted(slots)[:_NAMED])) + (
            ", ..." if len(slots) > _NAMED else ""
        )
        what = f"{len(slots)} slots are half-moved ({shown}): their buckets may wait"
        remedy = f"If nobody moves slots now: redis-cli --cluster fix {nodes[0]}"
        yield Finding(WARN, "cluster", what, remedy)


def _coverage(store: Store, nodes: Sequence[str]) -> Iterator[Finding]:
    replies = store.run_each([plain("CONFIG GET", _COVERAGE, near=at(node)) for node in nodes])
    said = {each[1] for each in replies if isinstance(each, list) and len(each) > 1}
    if b"yes" in said:
        what = f"{_COVERAGE} yes: one server down without a replica stops all buckets"
        yield Finding(WARN, "cluster", what, f"Set: {_COVERAGE} no")
    elif not said:
        what = f"CONFIG GET is refused: {_COVERAGE} cannot be seen"
        yield Finding(
            OK, "cluster", what, "Its default, yes, lets one server down stop all buckets"
        )


def _read(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.partition(":")[::2] for line in lines if ":" in line)


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else b""

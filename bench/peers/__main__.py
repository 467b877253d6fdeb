"""delaybridge beside what else delays messages, on the same machine and the same servers.

    python -m bench.peers [DUE] [PENDING] [SECONDS] [RUNS]

DUE messages come due at once; PENDING others are due tomorrow; lateness is taken for SECONDS at
each rate. Each figure is the median of the runs. See each peer's file for its settings.

Adds count 100-byte messages that are due tomorrow, until the last is confirmed. `due at once` is
from the due time until the last is in the destination queue, or has been worked on. Memory is
growth a pending message: used_memory of Redis; for RabbitMQ erlang:memory(total) without garbage,
once as it is then (the newest, up to 512 MiB, lie in tables beside the write-ahead log) and once
with all of it in segment files; resident for processes.
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from bench.lateness import Lateness
from bench.peers.bullmq import BullMQ
from bench.peers.celery import Celery
from bench.peers.kombu_native import KombuNative
from bench.peers.ours import Delaybridge
from bench.peers.peer import Peer, Servers, TooLate
from bench.peers.ttl import AtLeastOnce, AtMostOnce
from bench.peers.ttl_mixed import Mixed
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

PEERS: Sequence[type[Peer]] = (
    *(Delaybridge, AtLeastOnce, AtMostOnce, Mixed, KombuNative, BullMQ, Celery),
)
RATES = (100, 1000)
FAILED = "failed"
# Of the broker's consumer behind at-least-once; by default 32, which would hold it back.
DEAD_LETTER_PREFETCH = 1000

NOISE_BYTES = 1_000_000  # what a broker's memory goes up and down by when nothing happens

Figures = dict[str, list[Any]]


class Sheet:
    """The figures of one peer, of all runs."""

    def __init__(self, kind: type[Peer], due: int, pending: int, seconds: float) -> None:
        self.kind, self.seconds = kind, seconds
        self.due = min(due, kind.most_due or due)
        self.pending = min(pending, kind.most_pending or pending)
        self.figures: Figures = {}
        self.note, self.versions = "", dict[str, str]()

    def run(self, servers: Servers) -> None:
        """Take every figure once; what fails says why and is noted."""
        try:
            with self.kind(servers) as peer:
                self._measure(peer)
                self.note = peer.note
                self.versions = dict(peer.versions())
        except Exception:
            self._explain("its start or its end")

    def _measure(self, peer: Peer) -> None:
        self._take_late(peer, "late")
        self._take("burst", partial(self._burst_of, peer))
        self._take("fill", partial(self._fill, peer))
        peer.pending = self.pending
        self._take_late(peer, "pending")

    def _take_late(self, peer: Peer, when: str) -> None:
        for rate in RATES:
            self._take(f"{when} {rate}", partial(peer.late, rate, self.seconds))

    def _burst_of(self, peer: Peer) -> float:
        try:
            return peer.burst(self.due)
        except TooLate:  # the machine is busy
            return peer.burst(self.due, slack=3)

    def _fill(self, peer: Peer) -> float:
        before = peer.empty()
        rate = peer.fill(self.pending)
        for where, held in peer.held().items():
            self._note(f"bytes {where}", held - before[where])
        return rate

    def _take(self, name: str, measured: Callable[[], object]) -> None:
        try:
            self._note(name, measured())
        except Exception:
            self._explain(name)

    def _note(self, name: str, figure: object) -> None:
        self.figures.setdefault(name, []).append(figure)

    def _explain(self, what: str) -> None:
        sys.stderr.write(f"\n{self.kind.name}, {what}: failed\n{traceback.format_exc()}\n")
        sys.stderr.flush()

    def row(self, due: int) -> list[str]:
        """Its line of the table."""
        late = [self._late(f"{when} {rate}") for when in ("late", "pending") for rate in RATES]
        fill = self._number("fill", "{:,.0f}")
        return [
            *(self.kind.name, fill, self._burst(due), *late, self._bytes(), self.kind.cancel),
            self.note,
        ]

    def _number(self, name: str, form: str) -> str:
        found = self.figures.get(name)
        return form.format(median(found)) if found else FAILED

    def _burst(self, due: int) -> str:
        if not (found := self.figures.get("burst")):
            return FAILED
        took_s = median(found)
        of = "" if self.due == due else f"{self.due:,}: "
        return f"{of}{took_s:.2f} s ({self.due / took_s:,.0f}/s)"

    def _late(self, name: str) -> str:
        found = self.figures.get(name, [])
        taken = [one for one in found if isinstance(one, Lateness)]
        if not taken:
            return str(found[0]) if found else FAILED
        p50, p99, most, least = (median(column) for column in zip(*taken, strict=True))
        early = "; early!" if least < 0 else ""
        return f"{p50:,.1f} / {p99:,.1f} / {most:,.1f}{early}"

    def _bytes(self) -> str:
        names = [name for name in self.figures if name.startswith("bytes ")]
        return ", ".join(f"{self._each(name)} {name[6:]}" for name in names) or FAILED

    def _each(self, name: str) -> str:
        grown = median(self.figures[name])
        least = "under " if grown < NOISE_BYTES else ""
        return f"{least}{max(grown, NOISE_BYTES) / self.pending:,.0f}"


def table(sheets: Sequence[Sheet], due: int, pending: int) -> str:
    """All of it, in Markdown."""
    rates = [f"{rate:,}/s" for rate in RATES]
    head = [
        *("peer", "adds/s", f"{due:,} due at once"),
        *(f"late at {rate}, ms: p50 / p99 / max" for rate in rates),
        *(f"at {rate} with {pending:,} pending" for rate in rates),
        *("bytes a pending message", "cancel", "note"),
    ]
    rows = [head, ["---"] * len(head), *(sheet.row(due) for sheet in sheets)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def versions(sheets: Sequence[Sheet], servers: Servers) -> str:
    """Of all that was measured."""
    found = {
        "delaybridge": version("delaybridge"),
        "Python": platform.python_version(),
        "RabbitMQ": servers.rabbitmq.version,
        "Redis": servers.redis.version,
    }
    for sheet in sheets:
        found |= sheet.versions
    return ", ".join(f"{name} {number}" for name, number in found.items())


def main(due: int = 5_000, pending: int = 5_000, seconds: float = 1, runs: int = 1) -> None:
    """Print the table."""
    sheets = [Sheet(kind, due, pending, seconds) for kind in PEERS]
    with RedisServer(["--appendonly", "yes"]) as redis, RabbitMQNode() as rabbitmq:
        servers = Servers(redis, rabbitmq)
        prefetch = f"dead_letter_worker_consumer_prefetch, {DEAD_LETTER_PREFETCH}"
        rabbitmq.ctl("eval", f"application:set_env(rabbit, {prefetch}).")
        for number in range(runs):
            for sheet in sheets:
                began_s = time.monotonic()
                sheet.run(servers)
                took_s = time.monotonic() - began_s
                sys.stdout.write(f"run {number + 1}: {sheet.kind.name}, {took_s:.0f} s\n")
                sys.stdout.flush()
        sys.stdout.write(f"\n{table(sheets, due, pending)}\n{versions(sheets, servers)}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

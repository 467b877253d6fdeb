"""Compares delaybridge with other ways to delay messages, on the same machine and servers.

    python -m bench.peers [DUE] [PENDING] [SECONDS] [RUNS]

DUE messages come due at once, PENDING others are due tomorrow, and lateness is measured for SECONDS
at each rate. Each figure is the median of the runs. Each peer's settings are in its file.

- adds/s: 100-byte messages due tomorrow, until the last is confirmed.
- due at once: from the due time until the last message is in the destination queue; for
  BullMQ and Celery, until its task has run.
- bytes a pending message: how much memory grows per message. Redis: used_memory. RabbitMQ:
  erlang:memory(total) without garbage, first as it is after the last add (`new`: up to 512 MiB of
  the newest messages are in tables next to the write-ahead log), then once all messages are in
  segment files (`in segments`). Processes: their resident set.
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
from bench.peers.delaybridge import Delaybridge
from bench.peers.kombu_native import KombuNative
from bench.peers.peer import Peer, Servers, TooLate
from bench.peers.ttl import AtLeastOnce, AtMostOnce
from bench.peers.ttl_mixed import MixedDelays
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

PEERS: Sequence[type[Peer]] = (
    Delaybridge,
    AtLeastOnce,
    AtMostOnce,
    MixedDelays,
    KombuNative,
    BullMQ,
    Celery,
)
RATES = (100, 1000)
FAILED = "failed"
# Messages in flight of RabbitMQ's own consumer that moves dead letters at least once. The default,
# 32, would limit its speed.
DEAD_LETTER_PREFETCH = 1000

NOISE_BYTES = 1_000_000  # how much an idle broker's memory varies

Figures = dict[str, list[Any]]


class Sheet:
    """The figures of one peer from all runs, by name."""

    def __init__(self, kind: type[Peer], due: int, pending: int, seconds: float) -> None:
        self.kind, self.seconds = kind, seconds
        self.due = min(due, kind.most_due or due)
        self.pending = min(pending, kind.most_pending or pending)
        self.figures: Figures = {}
        self.note, self.versions = "", dict[str, str]()

    def run(self, servers: Servers) -> None:
        """Measure every figure once. Explains on stderr a figure that fails, and goes on."""
        try:
            with self.kind(servers) as peer:
                self._measure(peer)
                self.note = peer.note
                self.versions = dict(peer.versions())
        except Exception:
            self._explain("start or end")

    def _measure(self, peer: Peer) -> None:
        self._take_lateness(peer, "late")
        self._take("burst", partial(self._burst_of, peer))
        self._take("fill", partial(self._fill, peer))
        peer.pending = self.pending
        self._take_lateness(peer, "pending")

    def _take_lateness(self, peer: Peer, when: str) -> None:
        for rate in RATES:
            self._take(f"{when} {rate}", partial(peer.lateness, rate, self.seconds))

    def _burst_of(self, peer: Peer) -> float:
        try:
            return peer.burst(self.due)
        except TooLate:  # the machine is busy: allow three times as long for adding
            return peer.burst(self.due, slack=3)

    def _fill(self, peer: Peer) -> float:
        before = peer.empty_memory_bytes()
        rate = peer.fill(self.pending)
        for where, used in peer.memory_bytes().items():
            self._note(f"bytes {where}", used - before[where])
        return rate

    def _take(self, name: str, measure: Callable[[], object]) -> None:
        try:
            self._note(name, measure())
        except Exception:
            self._explain(name)

    def _note(self, name: str, figure: object) -> None:
        self.figures.setdefault(name, []).append(figure)

    def _explain(self, what: str) -> None:
        sys.stderr.write(f"\n{self.kind.name}, {what}: failed\n{traceback.format_exc()}\n")
        sys.stderr.flush()

    def row(self, due: int) -> list[str]:
        """The cells of this peer's row. due: as in the heading of the burst's column."""
        late = [self._lateness(f"{when} {rate}") for when in ("late", "pending") for rate in RATES]
        fill = self._number("fill", "{:,.0f}")
        measured = [fill, self._burst(due), *late, self._bytes()]
        return [self.kind.name, *measured, self.kind.cancel, self.note]

    def _number(self, name: str, form: str) -> str:
        found = self.figures.get(name)
        return form.format(median(found)) if found else FAILED

    def _burst(self, due: int) -> str:
        if not (found := self.figures.get("burst")):
            return FAILED
        took_s = median(found)
        of = "" if self.due == due else f"{self.due:,}: "
        return f"{of}{took_s:.2f} s ({self.due / took_s:,.0f}/s)"

    def _lateness(self, name: str) -> str:
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
    """The table of all peers, in Markdown."""
    rates = [f"{rate:,}/s" for rate in RATES]
    head = [
        "peer",
        "adds/s",
        f"{due:,} due at once",
        *(f"late at {rate}, ms: p50 / p99 / max" for rate in rates),
        *(f"at {rate} with {pending:,} pending" for rate in rates),
        "bytes a pending message",
        "cancel",
        "note",
    ]
    rows = [head, ["---"] * len(head), *(sheet.row(due) for sheet in sheets)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def versions(sheets: Sequence[Sheet], servers: Servers) -> str:
    """The versions of all software that was measured, in one line."""
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
    """Run every peer `runs` times and print the table."""
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

"""Compares delaybridge with other ways to delay messages, on the same machine and servers.

    python -m bench.peers [DUE] [PENDING] [SECONDS] [RUNS]

Messages have 100 bytes and are kept on a disk. DUE of them come due at once, PENDING others are due
tomorrow, and lateness is measured for SECONDS at each rate. Each peer is started once; each figure
is taken RUNS times, and its median and range are given. Its settings are in its file.

- adds/s: messages due tomorrow, until the last is confirmed.
- late: how long after its due time a consumer in a process of its own has a message.
- due at once: from the due time until the last message is in the destination queue; for a peer
  whose consumers are programs of its own, until they have the last.
- CPU: of all processes (clients, servers, workers, consumers), from the first add of those until
  the last has come, for each message.
- bytes: how much memory or disk grows per pending message. Redis: used_memory. RabbitMQ:
  erlang:memory(total) without garbage, first as it is after the last add (`new`: up to 512 MiB of
  the newest messages are in tables next to the write-ahead log), then once all messages are in
  segment files (`in segments`). Java: live objects on the heap. Other processes: resident set.
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from bench.lateness import Lateness
from bench.peers.bullmq import BullMQ
from bench.peers.celery import Celery
from bench.peers.delaybridge import Delaybridge
from bench.peers.fetched import NotHere
from bench.peers.kombu_native import KombuNative
from bench.peers.nats import Nats
from bench.peers.peer import Peer, Servers, TooLate, cpu_of_all_s
from bench.peers.plugin import Plugin
from bench.peers.pulsar import Pulsar
from bench.peers.rocketmq import RocketMQ
from bench.peers.ttl import AtLeastOnce, AtMostOnce
from bench.peers.ttl_mixed import MixedDelays
from tests.servers.rabbitmq import RabbitMQNode
from tests.servers.redis import RedisServer

PEERS: Sequence[type[Peer]] = (
    Delaybridge,
    Plugin,
    AtLeastOnce,
    AtMostOnce,
    MixedDelays,
    KombuNative,
    Celery,
    BullMQ,
    Nats,
    RocketMQ,
    Pulsar,
)
RATE = 1000  # messages that come due in a second, where lateness is measured
LATE = f"late at {RATE:,}/s, ms: p50 / p99"
FAILED = "failed"
# Messages in flight of RabbitMQ's own consumer that moves dead letters at least once. The default,
# 32, would limit its speed.
DEAD_LETTER_PREFETCH = 1000
NOISE_BYTES = 1_000_000  # how much an idle broker's memory varies


class Sheet:
    """The figures of one peer, by name, each as often as it was measured."""

    def __init__(self, kind: type[Peer], due: int, pending: int, seconds: float) -> None:
        self.kind, self.seconds = kind, seconds
        self.due = min(due, kind.most_due or due)
        self.pending = min(pending, kind.most_pending or pending)
        self.figures: dict[str, list[Any]] = {}
        self.note, self.versions = "", dict[str, str]()

    def measure(self, servers: Servers, runs: int) -> None:
        """Measure every figure. Explains on stderr a figure that fails, and goes on."""
        try:
            with self.kind(servers) as peer:
                self._measure(peer, runs)
                self.note = peer.note
                self.versions = dict(peer.versions())
        except NotHere as missing:
            self.note = str(missing)
        except Exception:
            self._explain("start or end")

    def _measure(self, peer: Peer, runs: int) -> None:
        for _ in range(runs):
            self._take("late", partial(peer.lateness, RATE, self.seconds))
            self._take("burst", partial(self._burst_of, peer))
        self._fill(peer, runs)
        peer.pending = self.pending
        for _ in range(runs):
            self._take("pending", partial(peer.lateness, RATE, self.seconds))

    def _burst_of(self, peer: Peer) -> float:
        for slack in (1, 3):  # the machine is busy: allow three times as long for adding
            used_s = cpu_of_all_s()
            try:
                took_s = peer.burst(self.due, slack)
            except TooLate:
                if slack == 3:
                    raise
            else:
                self._note("cpu", (cpu_of_all_s() - used_s) / self.due * 1e6)
                break
        return took_s

    def _fill(self, peer: Peer, runs: int) -> None:
        before = self._memory(peer.empty_memory_bytes)
        for _ in range(runs):
            self._take("fill", partial(peer.fill, self.pending // runs))
        after = self._memory(peer.memory_bytes)
        for where in filter(before.__contains__, after):
            self._note(f"bytes {where}", after[where] - before[where])

    def _memory(self, ask: Callable[[], Mapping[str, int]]) -> Mapping[str, int]:
        try:
            return ask()
        except Exception:
            self._explain("memory")
            return {}

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

    def row(self) -> list[str]:
        """The cells of this peer's row; a dash for each if it is not here."""
        if not self.figures and self.note:
            return [self.kind.name, *["-"] * 6]
        late = map(self._lateness, ("late", "pending"))
        of = f"{self.due:,}: " if self.kind.most_due else ""
        burst = self._number("burst", "{:,.2f}")
        cpu = self._number("cpu", "{:,.0f}")
        return [self.kind.name, self._number("fill"), *late, f"{of}{burst}", cpu, self._bytes()]

    def limits(self) -> list[str]:
        """The cells of the second table."""
        return [self.kind.name, self.kind.stored, self.kind.cannot, self.note]

    def _number(self, name: str, form: str = "{:,.0f}") -> str:
        return ranged(self.figures[name], form) if name in self.figures else FAILED

    def _lateness(self, name: str) -> str:
        found = self.figures.get(name, [])
        taken = [one for one in found if isinstance(one, Lateness)]
        if not taken:
            return str(found[0]) if found else FAILED
        p50, p99, _, least = zip(*taken, strict=True)
        early = "; early!" if min(least) < 0 else ""
        return f"{ranged(p50, '{:,.1f}')} / {ranged(p99, '{:,.1f}')}{early}"

    def _bytes(self) -> str:
        names = [name for name in self.figures if name.startswith("bytes ")]
        return ", ".join(f"{self._each(name)} {name[6:]}" for name in names) or FAILED

    def _each(self, name: str) -> str:
        grown = median(self.figures[name])
        least = "under " if grown < NOISE_BYTES else ""
        return f"{least}{max(grown, NOISE_BYTES) / self.pending:,.0f}"


def ranged(figures: Sequence[float], form: str) -> str:
    """The median, and in brackets the least and the largest, if they look different."""
    low, middle, high = (form.format(one) for one in (min(figures), median(figures), max(figures)))
    return middle if low == high else f"{middle} ({low} to {high})"


def measured(due: int, pending: int, seconds: float, runs: int) -> tuple[list[Sheet], str]:
    """Measure every peer; their figures, and the versions of all software, in one line."""
    sheets = [Sheet(kind, due, pending, seconds) for kind in PEERS]
    with RedisServer(["--appendonly", "yes"]) as redis, RabbitMQNode() as rabbitmq:
        servers = Servers(redis, rabbitmq)
        prefetch = f"dead_letter_worker_consumer_prefetch, {DEAD_LETTER_PREFETCH}"
        rabbitmq.ctl("eval", f"application:set_env(rabbit, {prefetch}).")
        for sheet in sheets:
            began_s = time.monotonic()
            sheet.measure(servers, runs)
            sys.stderr.write(f"{sheet.kind.name}, {time.monotonic() - began_s:.0f} s\n")
            sys.stderr.flush()
        found = {
            "delaybridge": version("delaybridge"),
            "Python": platform.python_version(),
            "RabbitMQ": rabbitmq.version,
            "Redis": redis.version,
        }
    for sheet in sheets:
        found |= sheet.versions
    return sheets, ", ".join(f"{name} {number}" for name, number in found.items())


def tables(sheets: Sequence[Sheet], due: int, pending: int) -> str:
    """Both tables, in Markdown."""
    figures = [
        "peer",
        "adds/s",
        LATE,
        f"the same, {pending:,} pending",
        f"{due:,} due at once, s",
        "CPU a message, us",
        "bytes a pending message",
    ]
    first = markdown(figures, [sheet.row() for sheet in sheets])
    limits = ["peer", "an added message is in", "it cannot", "measured with"]
    return f"{first}\n{markdown(limits, [sheet.limits() for sheet in sheets])}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def main(due: int = 5_000, pending: int = 6_000, seconds: float = 1, runs: int = 1) -> None:
    """Measure every peer, and print the tables."""
    sheets, versions = measured(due, pending, seconds, runs)
    sys.stdout.write(f"{tables(sheets, due, pending)}\n{versions}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Reads the processes' output and the store's counts, records them and shows them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from delaybridge.client import Client
from delaybridge.message import State
from delaybridge.operate.demo.result import POISON, Received, Scheduled, Story, Takeover
from delaybridge.operate.demo.screen import Screen, duration, histogram, percentiles
from delaybridge.operate.demo.servers import Process, begun_again, parsed
from delaybridge.operate.views.stats import Stats

_READY_S = 60.0
_POLL_S = 0.05
_SLOT_MS = 10  # resolution of the due times in `awaited`
_TITLES = "  time  delayed  in flight  published   dead  lateness p50 / p99   next due"
_EXPECTED = ("retried", "buried")  # warnings about the poison, which has events of its own
_DEFECTS = ("scanner_failed", "stuck")  # bugs, whatever was killed


class Failed(Exception):
    """The demo cannot go on; its text is the reason."""


@dataclass
class Observer:
    """Writes the story from the output of the consumer and the workers, and shows it.

    workers: the running ones; the caller removes a worker from the list before killing it.
    start: starts a worker of this name.
    bin_ms: of the histogram. awaited: slot of due time -> messages that are still to arrive.
    """

    screen: Screen
    client: Client
    workers: list[Process]
    consumer: Process
    start: Callable[[str], Process]
    bin_ms: int
    story: Story = field(default_factory=Story)
    awaited: Counter[int] = field(default_factory=Counter)
    began_s: float = 0.0
    rows_shown: int = 0
    deliveries_shown: int = 0
    poison_attempts: int = 0
    is_takeover_shown: bool = False

    def begin(self) -> None:
        """Wait until the consumer is ready and every worker has buckets; then start the clock."""
        names = {worker.name for worker in self.workers}
        deadline_s = time.monotonic() + _READY_S
        is_ready = False
        while not is_ready or {b.owner for b in self.client.stats().buckets} != names:
            self._check_alive()
            is_ready = is_ready or any(map(parsed, self.consumer.news()))
            if time.monotonic() > deadline_s:
                raise Failed(f"workers and consumer were not ready within {_READY_S:.0f} s")
            time.sleep(_POLL_S)
        self.began_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since `begin` returned."""
        return time.monotonic() - self.began_s

    def expect(self, message: Scheduled, messages: int = 1) -> None:
        """Count one more message, or one less (-1), as due to arrive."""
        self.awaited[message.due_ms // _SLOT_MS] += messages

    def awaits_takeover(self) -> bool:
        """Whether a bucket of the killed worker has no new owner yet."""
        return len(self.story.taken()) < len(self.story.orphans)

    def hear(self) -> None:
        """Read the processes' output since the last call. Failed: one of them died."""
        self._check_alive()
        for fields in filter(None, map(parsed, self.consumer.news())):
            self._deliver(Received(**fields))
        for worker in self.workers:
            for line in worker.news():
                self._hear_worker(worker.name, line)
        if self.story.orphans and not self.is_takeover_shown and not self.awaits_takeover():
            self.is_takeover_shown = True
            self._show_takeover()

    def _deliver(self, delivery: Received) -> None:
        self.story.deliveries.append(delivery)
        message = self.story.scheduled.get(delivery.id)
        if message is not None and not message.has_arrived:
            message.has_arrived = True
            if message.cancelled is None:
                self.expect(message, -1)

    def _hear_worker(self, name: str, line: str) -> None:
        record = parsed(line) or {}
        text = str(record.get("message", line))
        if record.get("event") == "lease_acquired":
            for bucket, at_ms, reclaimed, fired in record["leases"]:
                self.story.takeovers.append(Takeover(at_ms, name, bucket, reclaimed, fired))
        elif record.get("level") != "info" and not text.startswith(_EXPECTED):
            self.event(f"{name}: {text}")
            if text.startswith(_DEFECTS):
                self.story.defects.append(f"{name}: {text}")

    def _show_takeover(self) -> None:
        taken = self.story.taken()
        numbers = " ".join(str(takeover.bucket) for takeover in taken)
        owners = " ".join(sorted({takeover.worker for takeover in taken}))
        after = duration(max(takeover.at_ms for takeover in taken) - self.story.killed_ms)
        reclaimed = sum(takeover.reclaimed for takeover in taken)
        fired = sum(takeover.fired for takeover in taken)
        doubtful = f", {fired} may have been published already" if fired else ""
        text = f"worker {owners} took buckets {numbers} after {after}"
        self.event(f"{text}; {reclaimed:,} messages reclaimed{doubtful}")

    def _check_alive(self) -> None:
        for worker in begun_again(self.workers, self.start):
            text = f"{worker.name} (pid {worker.pid}) began again: Redis was silent"
            self.screen.line(f"          {text}")
        for process in (self.consumer, *self.workers):
            if process.poll() is not None:
                raise Failed(f"{process.name} ended by itself: {process.last_words()}")

    def titles(self) -> None:
        """Print the table's head; above it, if the screen is not animated, the histogram."""
        self.screen.line()
        if not self.screen.is_animated:
            self.screen.line(self._bars(self._ahead_ms()))
        self.screen.line(_TITLES, style="bold")

    def event(self, text: str) -> None:
        """A line in the table about something that happened."""
        self.screen.event(self._clock(), text)

    def look(self) -> Stats:
        """Ask the store for its counts and show them; one row per second is kept."""
        stats, ahead_ms = self.client.stats(), self._ahead_ms()
        self._look_at_poison()
        row = self._row(stats, ahead_ms)
        if int(self.elapsed_s()) > self.rows_shown:
            self.rows_shown = int(self.elapsed_s())
            self.deliveries_shown = len(self.story.deliveries)
            self.screen.line(row)
        self.screen.show_live(row, self._bars(ahead_ms))
        return stats

    def _bars(self, ahead_ms: dict[int, int]) -> str:
        return histogram(ahead_ms, self.bin_ms, self.screen.console.encoding)

    def _row(self, stats: Stats, ahead_ms: dict[int, int]) -> str:
        """A row of the table, below the titles."""
        scheduled = self.story.scheduled.values()
        cancelled = sum(message.cancelled is not None for message in scheduled)
        delayed = stats.delayed + stats.parked
        published = len(scheduled) - cancelled - delayed - stats.in_flight - stats.dead
        lately = self.story.deliveries[self.deliveries_shown :]
        late_ms = sorted(d.at_us / 1000 - d.due_ms for d in lately)
        p50, p99, _ = percentiles(late_ms) if late_ms else "---"
        next_ms = min(filter(lambda ms: ms > 0, ahead_ms), default=None)
        next_due = "-" if next_ms is None else duration(next_ms)
        counts = f"{delayed:>8}{stats.in_flight:>11}{published:>11}{stats.dead:>7}"
        return f" {self._clock()}{counts}{p50:>11} / {p99:<9}{next_due:>9}".rstrip()

    def _look_at_poison(self) -> None:
        """Show an event when the broker refuses the poison, and when it moves to the dead set."""
        stored = self.client.get(POISON)
        if stored is None or stored.attempts == self.poison_attempts:
            return
        self.poison_attempts = stored.attempts
        if stored.state is State.DEAD:
            self.expect(self.story.scheduled[POISON], -1)
            what = f"is given up after {stored.attempts} attempts and moved to the dead set: "
            self.event(f"{POISON} {what}{stored.reason}")
        else:
            self.event(f"{POISON} was refused by the broker; it will be retried")

    def _ahead_ms(self) -> dict[int, int]:
        """Milliseconds from now -> number of messages due then."""
        at_ms = now_ms()
        return {slot * _SLOT_MS - at_ms: count for slot, count in self.awaited.items() if count}

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_s()), 60)
        return f"{minutes:02}:{seconds:02}"


def now_ms() -> int:
    """The time of this machine, and so of the private Redis."""
    return time.time_ns() // 1_000_000

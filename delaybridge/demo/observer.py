"""Reads the processes' output and the store's counts, records them and shows them."""

from __future__ import annotations

import time
from collections import Counter

from delaybridge.client import Client
from delaybridge.demo.servers import Child, parsed
from delaybridge.demo.show import TITLES, Screen, duration, histogram, row
from delaybridge.demo.verdict import POISON, Received, Scheduled, Story, Takeover
from delaybridge.message import State
from delaybridge.store.stats import Stats

_READY_S = 20.0
_POLL_S = 0.05
_SLOT_MS = 10  # resolution of the due times in `_awaited`
_EXPECTED = ("retried", "buried")  # warnings about the poison, which has events of its own
_DEFECTS = ("scanner_failed", "stuck")  # bugs, whatever was killed


class Failed(Exception):
    """The demo cannot go on; its text is the reason."""


class Observer:
    """Writes the story from what the consumer and the workers print, and shows it.

    workers: the running ones; the caller removes a worker from the list before killing it.
    """

    def __init__(
        self,
        story: Story,
        screen: Screen,
        client: Client,
        workers: list[Child],
        consumer: Child,
    ) -> None:
        self._story, self._screen, self._client = story, screen, client
        self._workers, self._consumer = workers, consumer
        self._began_s = 0.0
        self._bin_ms = 1000
        self._awaited = Counter[int]()  # slot of due time -> messages
        self._received: set[str] = set()
        self._second_shown = 0
        self._deliveries_shown = 0
        self._poison_attempts = 0
        self._poison_is_dead = False
        self._takeover_shown = False

    def begin(self, *, bin_ms: int) -> None:
        """Wait until the consumer is ready and every worker has buckets; then start the clock."""
        self._bin_ms = bin_ms
        names = {worker.name for worker in self._workers}
        deadline_s = time.monotonic() + _READY_S
        consumes = False
        while True:
            self._check_alive()
            consumes = consumes or any(parsed(line) for line in self._consumer.news())
            if consumes and {b.owner for b in self._client.stats().buckets} == names:
                break
            if time.monotonic() > deadline_s:
                raise Failed(f"workers and consumer were not ready within {_READY_S:.0f} s")
            time.sleep(_POLL_S)
        self._began_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since `begin` returned."""
        return time.monotonic() - self._began_s

    def expect(self, message: Scheduled, messages: int = 1) -> None:
        """Count one more message, or one less (-1), as due to arrive."""
        slot = message.due_ms // _SLOT_MS
        self._awaited[slot] += messages
        if not self._awaited[slot]:
            del self._awaited[slot]

    def missing(self) -> int:
        """Number of messages that are still to arrive."""
        return self._awaited.total()

    def awaits_takeover(self) -> bool:
        """Whether a bucket of the killed worker has no new owner yet."""
        killed = self._story.killed_ms is not None
        return killed and len(self._story.taken()) < len(self._story.orphans)

    def hear(self) -> None:
        """Read what the processes printed since the last call. Failed: one of them died."""
        self._check_alive()
        for line in self._consumer.news():
            if (fields := parsed(line)) is not None:
                self._deliver(Received(**fields))
        for worker in self._workers:
            for line in worker.news():
                self._hear_worker(worker.name, line)
        if not self._takeover_shown and self._story.killed_ms and not self.awaits_takeover():
            self._takeover_shown = True
            self._show_takeover(self._story.killed_ms)

    def _deliver(self, delivery: Received) -> None:
        self._story.deliveries.append(delivery)
        message = self._story.scheduled.get(delivery.id)
        if message is None or delivery.id in self._received:
            return
        self._received.add(delivery.id)
        if message.cancelled is None:
            self.expect(message, -1)

    def _hear_worker(self, name: str, line: str) -> None:
        record = parsed(line) or {}
        text = str(record.get("message", line))
        if record.get("event") == "lease_acquired":
            for bucket, at_ms, reclaimed, fired in record["leases"]:
                self._story.takeovers.append(Takeover(at_ms, name, bucket, reclaimed, fired))
        elif record.get("level") != "info" and not text.startswith(_EXPECTED):
            self.event(f"{name}: {text}")
            if text.startswith(_DEFECTS):
                self._story.defects.append(f"{name}: {text}")

    def _show_takeover(self, killed_ms: int) -> None:
        taken = sorted(self._story.taken(), key=lambda takeover: takeover.bucket)
        numbers = " ".join(str(takeover.bucket) for takeover in taken)
        owners = " ".join(sorted({takeover.worker for takeover in taken}))
        after = duration(max((t.at_ms for t in taken), default=killed_ms) - killed_ms)
        fired = sum(takeover.fired for takeover in taken)
        text = f"worker {owners} took buckets {numbers} after {after}; "
        text += f"{sum(takeover.reclaimed for takeover in taken):,} messages reclaimed"
        self.event(text + (f", {fired} may have been published already" if fired else ""))

    def _check_alive(self) -> None:
        for child in (self._consumer, *self._workers):
            if child.has_ended:
                raise Failed(f"{child.name} ended by itself: {child.last_words()}")

    def titles(self) -> None:
        """The table's head; above it, if the screen is not live, the histogram."""
        self._screen.line()
        if not self._screen.is_live:
            self._screen.line(self._bars())
        self._screen.line(TITLES, bold=True)

    def event(self, text: str) -> None:
        """A line in the table about something that happened."""
        self._screen.event(self._clock(), text)

    def look(self) -> Stats:
        """Ask the store for its counts and show them; one row per second is kept."""
        stats = self._client.stats()
        self._look_at_poison(stats.dead)
        shown = self._row(stats)
        if int(self.elapsed_s()) > self._second_shown:
            self._second_shown = int(self.elapsed_s())
            self._deliveries_shown = len(self._story.deliveries)
            self._screen.line(shown)
        self._screen.footer([shown, self._bars()])
        return stats

    def _bars(self) -> str:
        return histogram(self._ahead_ms(), self._bin_ms, self._screen.encoding)

    def _row(self, stats: Stats) -> str:
        scheduled = self._story.scheduled.values()
        cancelled = sum(message.cancelled is not None for message in scheduled)
        left = stats.delayed + stats.in_flight + stats.parked
        lately = self._story.deliveries[self._deliveries_shown :]
        return row(
            self._clock(),
            delayed=stats.delayed + stats.parked,
            in_flight=stats.in_flight,
            published=len(scheduled) - cancelled - left - stats.dead,
            dead=stats.dead,
            lateness_ms=sorted(d.at_us / 1000 - d.due_ms for d in lately),
            next_due_ms=min((ms for ms in self._ahead_ms() if ms > 0), default=None),
        )

    def _look_at_poison(self, dead: int) -> None:
        """Show an event when the broker refuses the poison, and when it moves to the dead set."""
        if self._poison_is_dead:
            return
        stored = self._client.get(POISON)
        if stored is None or stored.attempts == self._poison_attempts:
            return
        self._poison_attempts = stored.attempts
        if stored.state is State.DEAD:
            self._poison_is_dead = True
            self.expect(self._story.scheduled[POISON], -1)
            what = f"is given up after {stored.attempts} attempts and moved to the dead set: "
            self.event(f"{POISON} {what}{stored.reason}")
        else:
            self.event(f"{POISON} was refused by the broker; it will be retried")

    def _ahead_ms(self) -> dict[int, int]:
        """Milliseconds from now -> number of messages due then."""
        at_ms = now_ms()
        return {slot * _SLOT_MS - at_ms: messages for slot, messages in self._awaited.items()}

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_s()), 60)
        return f"{minutes:02}:{seconds:02}"


def now_ms() -> int:
    """The time of this machine, and so of the private Redis."""
    return time.time_ns() // 1_000_000

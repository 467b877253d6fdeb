"""What the demo hears from its processes and the store, second by second, and shows."""

from __future__ import annotations

import time
from collections import Counter

from delaybridge.client import Client
from delaybridge.demo.servers import Child, said
from delaybridge.demo.show import TITLES, Screen, Second, duration, histogram, row
from delaybridge.demo.verdict import POISON, Delivery, Promise, Story, Taking
from delaybridge.message import State
from delaybridge.store.stats import Stats

_READY_S = 20.0
_POLL_S = 0.05
_SLOT_MS = 10  # how finely what is awaited is counted by its due time
_EXPECTED = ("retried", "buried")  # warnings about the poison, which is told of in its own way
_DEFECTS = ("scanner_failed", "stuck")  # what no kill and no stand-in excuses


class Failed(Exception):
    """The demo cannot go on: why."""


class Watch:
    """Hears deliveries and the workers' logs, writes the story and shows it.

    workers: of them none may die; the list may shrink.
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
        self._takeover_told = False

    def begin(self, *, bin_ms: int) -> None:
        """Return once the consumer consumes and every worker has its share; time starts now."""
        self._bin_ms = bin_ms
        names = {worker.name for worker in self._workers}
        deadline_s = time.monotonic() + _READY_S
        consumes = False
        while True:
            self._check_alive()
            consumes = consumes or any(said(line) for line in self._consumer.news())
            if consumes and {b.owner for b in self._client.stats().buckets} == names:
                break
            if time.monotonic() > deadline_s:
                raise Failed(f"workers and consumer were not ready within {_READY_S:.0f} s")
            time.sleep(_POLL_S)
        self._began_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def expect(self, promise: Promise, messages: int = 1) -> None:
        """One message more, or less (-1), is to come at its due time."""
        slot = promise.due_ms // _SLOT_MS
        self._awaited[slot] += messages
        if not self._awaited[slot]:
            del self._awaited[slot]

    def missing(self) -> int:
        """How many are still to come."""
        return self._awaited.total()

    def awaits_takeover(self) -> bool:
        """Whether buckets of a worker that was killed have no new owner yet."""
        killed = self._story.killed_ms is not None
        return killed and len(self._story.taken()) < len(self._story.orphans)

    # what is heard

    def hear(self) -> None:
        """Take in what the processes said. Failed: one of them died."""
        self._check_alive()
        for line in self._consumer.news():
            told = said(line)
            if told is not None:
                self._deliver(Delivery(**told))
        for worker in self._workers:
            for line in worker.news():
                self._hear_worker(worker.name, line)
        if not self._takeover_told and self._story.killed_ms and not self.awaits_takeover():
            self._takeover_told = True
            self._tell_takeover(self._story.killed_ms)

    def _deliver(self, delivery: Delivery) -> None:
        self._story.deliveries.append(delivery)
        promise = self._story.promises.get(delivery.id)
        if promise is None or delivery.id in self._received:
            return
        self._received.add(delivery.id)
        if promise.cancelled is None:
            self.expect(promise, -1)

    def _hear_worker(self, name: str, line: str) -> None:
        told = said(line) or {}
        text = str(told.get("message", line))
        if told.get("event") == "lease_acquired":
            for bucket, at_ms, reclaimed, fired in told["leases"]:
                self._story.takings.append(Taking(at_ms, name, bucket, reclaimed, fired))
        elif told.get("level") != "info" and not text.startswith(_EXPECTED):
            self.event(f"{name}: {text}")
            if text.startswith(_DEFECTS):
                self._story.defects.append(f"{name}: {text}")

    def _tell_takeover(self, killed_ms: int) -> None:
        taken = sorted(self._story.taken(), key=lambda taking: taking.bucket)
        numbers = " ".join(str(taking.bucket) for taking in taken)
        owners = " ".join(sorted({taking.worker for taking in taken}))
        after = duration(max((t.at_ms for t in taken), default=killed_ms) - killed_ms)
        fired = sum(taking.fired for taking in taken)
        text = f"worker {owners} took buckets {numbers} after {after}; "
        text += f"{sum(taking.reclaimed for taking in taken):,} messages reclaimed"
        self.event(text + (f", {fired} perhaps published already" if fired else ""))

    def _check_alive(self) -> None:
        for child in (self._consumer, *self._workers):
            if child.has_ended:
                raise Failed(f"{child.name} ended by itself: {child.last_words()}")

    # what is shown

    def titles(self) -> None:
        """The table's first line; where nothing changes in place, also what is due when."""
        self._screen.line()
        if not self._screen.is_live:
            self._screen.line(self._bars())
        self._screen.line(TITLES, bold=True)

    def event(self, text: str) -> None:
        """A line in the table about something that happened."""
        self._screen.event(self._clock(), text)

    def look(self) -> Stats:
        """Ask the store how things stand and show it; once a second to stay."""
        stats = self._client.stats()
        self._look_at_poison(stats.dead)
        shown = row(self._second(stats))
        if int(self.elapsed_s()) > self._second_shown:
            self._second_shown = int(self.elapsed_s())
            self._deliveries_shown = len(self._story.deliveries)
            self._screen.line(shown)
        self._screen.foot([shown, self._bars()])
        return stats

    def _bars(self) -> str:
        return histogram(self._ahead_ms(), self._bin_ms, self._screen.encoding)

    def _second(self, stats: Stats) -> Second:
        promises = self._story.promises
        cancelled = sum(promise.cancelled is not None for promise in promises.values())
        left = stats.delayed + stats.in_flight + stats.parked
        lately = self._story.deliveries[self._deliveries_shown :]
        return Second(
            clock=self._clock(),
            delayed=stats.delayed + stats.parked,
            in_flight=stats.in_flight,
            published=len(promises) - cancelled - left - stats.dead,
            dead=stats.dead,
            lateness_ms=sorted(d.at_us / 1000 - d.due_ms for d in lately),
            next_due_ms=min((ms for ms in self._ahead_ms() if ms > 0), default=None),
        )

    def _look_at_poison(self, dead: int) -> None:
        """Say when it was refused, and when it was given up."""
        if self._poison_is_dead:
            return
        stored = self._client.get(POISON)
        if stored is None or stored.attempts == self._poison_attempts:
            return
        self._poison_attempts = stored.attempts
        if stored.state is State.DEAD:
            self._poison_is_dead = True
            self.expect(self._story.promises[POISON], -1)
            what = f"is given up after {stored.attempts} attempts, and lies in the dead set: "
            self.event(f"{POISON} {what}{stored.reason}")
        else:
            self.event(f"{POISON} was refused by the broker; it is tried again")

    def _ahead_ms(self) -> dict[int, int]:
        """How far ahead -> how many messages are due then."""
        at_ms = now_ms()
        return {slot * _SLOT_MS - at_ms: messages for slot, messages in self._awaited.items()}

    def _clock(self) -> str:
        minutes, seconds = divmod(int(self.elapsed_s()), 60)
        return f"{minutes:02}:{seconds:02}"


def now_ms() -> int:
    """The time of this machine, which is the private Redis' as well."""
    return time.time_ns() // 1_000_000

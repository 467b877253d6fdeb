"""The run: schedules messages, changes some, kills a worker, and waits for the last message."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from delaybridge.client import Client
from delaybridge.message import Answer, Message, State
from delaybridge.operate.demo.brokers import Target
from delaybridge.operate.demo.processes import Failed, Process, begun_again, check_alive, now_ms
from delaybridge.operate.demo.result import (
    POISON,
    Received,
    Scheduled,
    Story,
    Takeover,
    duration,
    percentiles,
)
from delaybridge.operate.demo.screen import Screen
from delaybridge.operate.views.stats import Stats
from delaybridge.store.messages.selection import Selection
from delaybridge.times import format_time

_CALL_MESSAGES = 1000
_READY_S = 60.0
_TICK_S, _LOOK_S = 0.05, 0.2
_SAFE_MS = 300  # messages due sooner are not chosen to be cancelled
_QUIET_MS = 500  # after the last due time: wait for messages that should not arrive
_LOST_MS = 3000  # after the last due time, with an empty store: the missing are lost
_PATIENCE_MS = 15_000
_TITLES = "  time  delayed  in flight  published   dead  lateness p50 / p99   next due"
_EXPECTED = ("retried", "buried")  # warnings about the poison, which has events of its own
_DEFECTS = ("scanner_failed", "stuck")  # bugs, whatever was killed
_IN_TIME = (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED)


@dataclass(kw_only=True)
class Plan:
    """How many messages, over how long, and whether a worker is killed.

    broker: an amqp:// or kafka:// URL; None for a stand-in for Kafka. redis: the URL of a store;
    None for a private one. serve: keep a load up until Ctrl-C, with the console on this port.
    browser: open it there. consumer: the program to run as the consumer.
    """

    messages: int = 300
    seconds: int = 10
    kill: bool = True
    broker: str | None = None
    redis: str | None = None
    serve: bool = False
    port: int | None = None
    browser: bool = True
    consumer: Path = Path(__file__).with_name("consumer.py")

    def __post_init__(self) -> None:
        self.first_s = self.seconds / 10  # the first message is due
        self.change_at_s = self.seconds / 5  # some are cancelled or rescheduled
        self.kill_at_s = min(4.0, self.seconds * 0.4)
        self.cancelled = min(10, self.messages // 10)
        self.rescheduled = min(5, self.messages // 20)

    def lines(self) -> Iterator[str]:
        """The plan in lines, for people to read."""
        within = f"{self.messages:,} messages within {self.seconds} s"
        yield f"plan      {within}, one of them undeliverable ({POISON});"
        kill = f"; at {self.kill_at_s:g} s a worker is killed" if self.kill else ""
        yield f"          {self.cancelled} cancelled, {self.rescheduled} rescheduled{kill}"


@dataclass
class Play:
    """One run: acts by the plan, and writes the story from the output of the processes.

    workers: the running ones. start: starts a worker of this name. last_due_ms: when the last
    message is due.
    """

    plan: Plan
    screen: Screen
    client: Client
    target: Target
    workers: list[Process]
    consumer: Process
    start: Callable[[str], Process]
    story: Story = field(default_factory=Story)
    last_due_ms: int = 0
    rows_shown: int = 0
    deliveries_shown: int = 0
    poison_attempts: int = 0
    is_takeover_shown: bool = False

    def run(self, check: Callable[[], None]) -> Story:
        """Run to the end. Failed: the run cannot go on, for example because a process died.

        check: called several times a second; raises to end the run.
        """
        self._wait_until_ready()
        self._schedule()
        self.screen.line()
        self.screen.line(_TITLES, bold=True)
        acts = [(self.plan.change_at_s, self._change), (self.plan.kill_at_s, self._kill)]
        del acts[1 + self.plan.kill :]
        is_over, looked_s = False, 0.0
        while acts or not is_over:
            check()
            time.sleep(_TICK_S)
            while acts and self.screen.elapsed_s >= acts[0][0]:
                acts.pop(0)[1]()
            self._hear()
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                is_over = self._is_over(self._observe())
        pages = self.client.select(Selection(states=(State.DEAD,)))
        self.story.dead = [found.id for page in pages for found in page]
        return self.story

    def _wait_until_ready(self) -> None:
        """Wait until the consumer is ready and every worker has buckets; then start the clock."""
        names = {worker.name for worker in self.workers}
        deadline_s = time.monotonic() + _READY_S
        is_ready = False
        while not is_ready or {b.owner for b in self.client.stats().buckets} != names:
            self._check_processes()
            is_ready = is_ready or any("ready" in record for record in self.consumer.news())
            if time.monotonic() > deadline_s:
                raise Failed(f"workers and consumer were not ready within {_READY_S:.0f} s")
            time.sleep(_TICK_S)
        self.screen.began_s = time.monotonic()

    def _schedule(self) -> None:
        messages = self._messages()
        while batch := list(islice(messages, _CALL_MESSAGES)):
            for receipt in self.client.schedule_many(batch):
                if receipt.answer is not Answer.CREATED:
                    raise Failed(f"{receipt.id} was not accepted: {receipt!r}")
                message = Scheduled(receipt.id, receipt.bucket, receipt.due_ms)
                self.story.scheduled[receipt.id] = message
                self.last_due_ms = max(self.last_due_ms, message.due_ms)

    def _messages(self) -> Iterator[Message]:
        to, plan, chance = self.target, self.plan, random.Random()
        yield to.poison(id=POISON, delay_s=plan.change_at_s)
        for number in range(1, plan.messages):
            delay_s = round(chance.uniform(plan.first_s, plan.seconds), 3)
            yield Message(to.destination, f"I am {number}", id=f"demo.{number}", delay=delay_s)

    def _change(self) -> None:
        """Cancel and reschedule messages: some due next, which a worker has claimed, and others."""
        soonest_ms = now_ms() + _SAFE_MS
        free = [p for p in self.story.scheduled.values() if p.due_ms > soonest_ms]
        free = sorted((p for p in free if p.id != POISON), key=lambda p: p.due_ms)
        near, far = iter(free[: len(free) // 2]), reversed(free[len(free) // 2 :])
        half = self.plan.cancelled // 2
        last, claimed = self._in_time(self._cancel, far, half)
        next_, more = self._in_time(self._cancel, near, self.plan.cancelled - half)
        moved, most = self._in_time(self._reschedule, near, self.plan.rescheduled)
        self.screen.event(
            f"{last + next_} messages cancelled, {moved} rescheduled; "
            f"a worker had claimed {claimed + more + most} of them"
        )

    def _in_time(
        self, act: Callable[[Scheduled], bool], candidates: Iterator[Scheduled], wanted: int
    ) -> tuple[int, int]:
        """Act on candidates until `wanted` were in time: how many, and how many were claimed."""
        done = claimed = 0
        while done < wanted and (message := next(candidates, None)) is not None:
            stored = self.client.get(message.id)
            if act(message):
                done += 1
                claimed += stored is not None and stored.state is State.IN_FLIGHT
        return done, claimed

    def _cancel(self, message: Scheduled) -> bool:
        """Whether it was in time."""
        answer = self.client.cancel(message.id)
        if answer in _IN_TIME:
            message.cancelled = answer
        return answer in _IN_TIME

    def _reschedule(self, message: Scheduled) -> bool:
        """Whether it was in time."""
        due_ms = now_ms() + self.plan.seconds * 700
        if self.client.reschedule(message.id, at=format_time(due_ms)) != Answer.RESCHEDULED:
            return False
        message.due_ms, message.rescheduled = due_ms, True
        self.last_due_ms = max(self.last_due_ms, due_ms)
        return True

    def _kill(self) -> None:
        owned = self.client.stats().buckets
        self._hear()
        victim = self.workers.pop(0)
        self.story.orphans = frozenset(b.bucket for b in owned if b.owner == victim.name)
        self.story.killed_ms = now_ms()
        victim.kill()
        numbers = " ".join(map(str, sorted(self.story.orphans)))
        text = f"worker {victim.name} killed (kill -9): buckets {numbers} have no owner"
        self.screen.event(text)

    def _is_over(self, stats: Stats) -> bool:
        """Whether all messages arrived, or the missing ones are lost."""
        late_ms = now_ms() - self.last_due_ms
        if late_ms < _QUIET_MS or late_ms > _PATIENCE_MS:
            return late_ms > _PATIENCE_MS
        if stats.delayed + stats.in_flight + stats.parked or self._awaits_takeover():
            return False
        return late_ms > _LOST_MS or not self.story.missing()

    def _awaits_takeover(self) -> bool:
        """Whether a bucket of the killed worker has no new owner yet."""
        return len(self.story.taken()) < len(self.story.orphans)

    def _check_processes(self) -> None:
        for worker in begun_again(self.workers, self.start):
            text = f"{worker.name} (pid {worker.pid}) began again: Redis was silent"
            self.screen.line(f"          {text}")
        check_alive(self.consumer, *self.workers)

    def _hear(self) -> None:
        """Read the processes' output since the last call. Failed: one of them died."""
        self._check_processes()
        for record in self.consumer.news():
            if "id" in record:
                delivery = Received(**record)
                self.story.deliveries.append(delivery)
                if message := self.story.scheduled.get(delivery.id):
                    message.has_arrived = True
        for worker in self.workers:
            for record in worker.news():
                self._hear_worker(worker.name, record)
        if self.story.orphans and not self.is_takeover_shown and not self._awaits_takeover():
            self.is_takeover_shown = True
            self._show_takeover()

    def _hear_worker(self, name: str, record: dict[str, Any]) -> None:
        text = str(record.get("message"))
        if record.get("event") == "lease_acquired":
            for bucket, at_ms, reclaimed, fired in record["leases"]:
                self.story.takeovers.append(Takeover(at_ms, name, bucket, reclaimed, fired))
        elif record.get("level") != "info" and not text.startswith(_EXPECTED):
            self.screen.event(f"{name}: {text}")
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
        self.screen.event(f"{text}; {reclaimed:,} messages reclaimed{doubtful}")

    def _observe(self) -> Stats:
        """The store's counts; shown in a row once a second."""
        stats = self.client.stats()
        self._watch_poison()
        if int(self.screen.elapsed_s) > self.rows_shown:
            self.rows_shown = int(self.screen.elapsed_s)
            self.screen.line(self._row(stats))
        return stats

    def _row(self, stats: Stats) -> str:
        """A row of the table, below the titles."""
        scheduled = self.story.scheduled.values()
        cancelled = sum(message.cancelled is not None for message in scheduled)
        delayed = stats.delayed + stats.parked
        published = len(scheduled) - cancelled - delayed - stats.in_flight - stats.dead
        lately = self.story.deliveries[self.deliveries_shown :]
        self.deliveries_shown = len(self.story.deliveries)
        late_ms = sorted(d.at_us / 1000 - d.due_ms for d in lately)
        p50, p99, _ = percentiles(late_ms) if late_ms else "---"
        ahead_ms = [ms for each in self.story.missing() if (ms := each.due_ms - now_ms()) > 0]
        next_due = duration(min(ahead_ms)) if ahead_ms else "-"
        counts = f"{delayed:>8}{stats.in_flight:>11}{published:>11}{stats.dead:>7}"
        return f" {self.screen.clock}{counts}{p50:>11} / {p99:<9}{next_due:>9}".rstrip()

    def _watch_poison(self) -> None:
        """Show an event when the broker refuses the poison, and when it moves to the dead set."""
        stored = self.client.get(POISON)
        if stored is None or stored.attempts == self.poison_attempts:
            return
        self.poison_attempts = stored.attempts
        if stored.state is State.DEAD:
            self.story.dead = [POISON]
            what = f"is given up after {stored.attempts} attempts and moved to the dead set: "
            self.screen.event(f"{POISON} {what}{stored.reason}")
        else:
            self.screen.event(f"{POISON} was refused by the broker; it will be retried")

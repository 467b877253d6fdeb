"""The run: schedules messages, changes some, kills a worker, and waits for the last message."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from delaybridge.client import Client
from delaybridge.message import Answer, Message, State
from delaybridge.operate.demo.brokers import Target
from delaybridge.operate.demo.observer import Failed, Observer, now_ms
from delaybridge.operate.demo.result import POISON, Scheduled, Story
from delaybridge.operate.views.stats import Stats
from delaybridge.store.messages.selection import Selection
from delaybridge.times import format_time

_CALL_MESSAGES = 1000
_TICK_S, _LOOK_S = 0.05, 0.2
_SAFE_MS = 300  # messages due sooner are not chosen to be cancelled
_QUIET_MS = 500  # after the last due time: wait for messages that should not arrive
_LOST_MS = 3000  # after the last due time, with an empty store: the missing are lost
_PATIENCE_MS = 15_000


@dataclass(kw_only=True)
class Plan:
    """How many messages, over how long, and whether a worker is killed.

    consumer: the program to run as the consumer.
    """

    messages: int = 300
    seconds: int = 10
    kill: bool = True
    consumer: Path = Path(__file__).with_name("consumer.py")

    def __post_init__(self) -> None:
        self.first_s = self.seconds / 10  # the first message is due
        self.change_at_s = self.seconds / 5  # some are cancelled or rescheduled
        self.kill_at_s = min(4.0, self.seconds * 0.4)
        self.cancelled = min(10, self.messages // 10)
        self.rescheduled = min(5, self.messages // 20)


@dataclass
class Play:
    """One run. last_due_ms: when the last message is due."""

    plan: Plan
    observer: Observer
    client: Client
    target: Target
    last_due_ms: int = 0

    def run(self, check: Callable[[], None]) -> Story:
        """Run to the end. Failed: the run cannot go on, for example because a process died.

        check: called several times a second; raises to end the run.
        """
        observer = self.observer
        observer.begin()
        self._schedule()
        observer.titles()
        acts = [(self.plan.change_at_s, self._change), (self.plan.kill_at_s, self._kill)]
        del acts[1 + self.plan.kill :]
        is_over, looked_s = False, 0.0
        while acts or not is_over:
            check()
            time.sleep(_TICK_S)
            while acts and observer.elapsed_s() >= acts[0][0]:
                acts.pop(0)[1]()
            observer.hear()
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                is_over = self._is_over(observer.look())
        pages = self.client.select(Selection(states=(State.DEAD,)))
        self.observer.story.dead = [found.id for page in pages for found in page]
        return self.observer.story

    def _schedule(self) -> None:
        messages, story = self._messages(), self.observer.story
        while batch := list(islice(messages, _CALL_MESSAGES)):
            for receipt in self.client.schedule_many(batch):
                if receipt.answer is not Answer.CREATED:
                    raise Failed(f"{receipt.id} was not accepted: {receipt!r}")
                message = Scheduled(receipt.id, receipt.bucket, receipt.due_ms)
                story.scheduled[receipt.id] = message
                self.observer.expect(message)
                self.last_due_ms = max(self.last_due_ms, message.due_ms)
            done = f" scheduling: {len(story.scheduled):,} of {self.plan.messages:,}"
            self.observer.screen.show_live(done)

    def _messages(self) -> Iterator[Message]:
        to, plan, chance = self.target, self.plan, random.Random()
        yield to.poison(id=POISON, delay_s=plan.change_at_s)
        for number in range(1, plan.messages):
            delay_s = round(chance.uniform(plan.first_s, plan.seconds), 3)
            yield Message(to.destination, f"I am {number}", id=f"demo.{number}", delay=delay_s)

    def _change(self) -> None:
        """Cancel and reschedule messages: some due next, which a worker has claimed, and others."""
        soonest_ms = now_ms() + _SAFE_MS
        free = [p for p in self.observer.story.scheduled.values() if p.due_ms > soonest_ms]
        free = sorted((p for p in free if p.id != POISON), key=lambda p: p.due_ms)
        near, far = iter(free[: len(free) // 2]), reversed(free[len(free) // 2 :])
        half = self.plan.cancelled // 2
        last, claimed = self._in_time(self._cancel, far, half)
        next_, more = self._in_time(self._cancel, near, self.plan.cancelled - half)
        moved, most = self._in_time(self._reschedule, near, self.plan.rescheduled)
        self.observer.event(
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
        if answer not in (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED):
            return False
        self.observer.expect(message, -1)
        message.cancelled = answer
        return True

    def _reschedule(self, message: Scheduled) -> bool:
        """Whether it was in time."""
        due_ms = now_ms() + self.plan.seconds * 700
        if self.client.reschedule(message.id, at=format_time(due_ms)) != Answer.RESCHEDULED:
            return False
        self.observer.expect(message, -1)
        message.due_ms, message.rescheduled = due_ms, True
        self.observer.expect(message)
        self.last_due_ms = max(self.last_due_ms, due_ms)
        return True

    def _kill(self) -> None:
        owned = self.client.stats().buckets
        self.observer.hear()
        victim = self.observer.workers.pop(0)
        self.observer.story.orphans = frozenset(b.bucket for b in owned if b.owner == victim.name)
        self.observer.story.killed_ms = now_ms()
        victim.kill()
        numbers = " ".join(map(str, sorted(self.observer.story.orphans)))
        text = f"worker {victim.name} killed (kill -9): buckets {numbers} have no owner"
        self.observer.event(text)

    def _is_over(self, stats: Stats) -> bool:
        """Whether all messages arrived, or the missing ones are lost."""
        late_ms = now_ms() - self.last_due_ms
        if late_ms < _QUIET_MS or late_ms > _PATIENCE_MS:
            return late_ms > _PATIENCE_MS
        if stats.delayed + stats.in_flight + stats.parked or self.observer.awaits_takeover():
            return False
        return late_ms > _LOST_MS or self.observer.awaited.total() <= 0

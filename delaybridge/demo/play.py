"""The run: schedules messages, changes some, kills a worker, and waits for the last message."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from delaybridge.client import Client
from delaybridge.demo.brokers import Target
from delaybridge.demo.observer import Failed, Observer, now_ms
from delaybridge.demo.servers import Child
from delaybridge.demo.show import Screen
from delaybridge.demo.verdict import POISON, Scheduled, Story
from delaybridge.message import Answer, Message, State
from delaybridge.store.selection import Selection
from delaybridge.store.stats import Stats
from delaybridge.times import format_time

_CALL_MESSAGES = 1000
_TICK_S, _LOOK_S = 0.05, 0.2
_SAFE_MS = 300  # messages due sooner are not chosen to be cancelled
_QUIET_MS = 500  # after the last due time: wait for messages that should not arrive
_LOST_MS = 3000  # after the last due time, with an empty store: the missing are lost
_PATIENCE_MS = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many messages, over how long, and whether a worker is killed.

    consumer: the program to run as the consumer.
    """

    messages: int = 300
    seconds: int = 10
    kill: bool = True
    consumer: Path = Path(__file__).with_name("consumer.py")

    @property
    def first_s(self) -> float:
        """When the first message is due."""
        return self.seconds / 10

    @property
    def change_at_s(self) -> float:
        """When some messages are cancelled or rescheduled."""
        return self.seconds / 5

    @property
    def kill_at_s(self) -> float:
        """When a worker is killed."""
        return min(4.0, self.seconds * 0.4)

    @property
    def cancelled(self) -> int:
        """How many are cancelled."""
        return min(10, self.messages // 10)

    @property
    def rescheduled(self) -> int:
        """How many are rescheduled."""
        return min(5, self.messages // 20)


class Play:
    """One run. workers: the first one is killed."""

    def __init__(
        self,
        plan: Plan,
        screen: Screen,
        client: Client,
        target: Target,
        workers: list[Child],
        consumer: Child,
    ) -> None:
        self._plan, self._screen, self._client, self._target = plan, screen, client, target
        self._workers = workers
        self._story = Story()
        self._observer = Observer(self._story, screen, client, workers, consumer)
        self._last_due_ms = 0
        self._claimed = 0  # of the messages that were cancelled or rescheduled

    def run(self, check: Callable[[], None]) -> Story:
        """Run to the end. Failed: the run cannot go on, for example because a process died.

        check: called several times a second; raises to end the run.
        """
        self._observer.begin(bin_ms=self._plan.seconds * 100)
        self._schedule()
        self._observer.titles()
        acts: list[tuple[float, Callable[[], None]]] = [(self._plan.change_at_s, self._change)]
        if self._plan.kill:
            acts.append((self._plan.kill_at_s, self._kill))
        is_over, looked_s = False, 0.0
        while acts or not is_over:
            check()
            time.sleep(_TICK_S)
            while acts and self._observer.elapsed_s() >= acts[0][0]:
                acts.pop(0)[1]()
            self._observer.hear()
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                is_over = self._is_over(self._observer.look())
        pages = self._client.select(Selection(states=(State.DEAD,)))
        self._story.dead = [found.id for page in pages for found in page]
        return self._story

    def _schedule(self) -> None:
        plan, place, chance = self._plan, self._target, random.Random()
        poison = Message(
            place.poison,
            "undeliverable",
            id=POISON,
            delay=plan.change_at_s,
            properties=place.poison_properties,
        )
        messages = [poison]
        for number in range(1, plan.messages):
            delay_s = round(chance.uniform(plan.first_s, plan.seconds), 3)
            id = f"demo.{number}"
            messages.append(Message(place.destination, f"I am {id}", id=id, delay=delay_s))
            if len(messages) == _CALL_MESSAGES:
                self._hand_in(messages)
                messages = []
                self._screen.footer([f" scheduling: {number:,} of {plan.messages:,}"])
        self._hand_in(messages)
        self._screen.footer(())

    def _hand_in(self, messages: list[Message]) -> None:
        for receipt in self._client.schedule_many(messages):
            if receipt.answer is not Answer.CREATED:
                raise Failed(f"{receipt.id} was not accepted: {receipt}")
            message = Scheduled(receipt.id, receipt.bucket, receipt.due_ms)
            self._story.scheduled[receipt.id] = message
            self._observer.expect(message)
            self._last_due_ms = max(self._last_due_ms, message.due_ms)

    def _change(self) -> None:
        """Cancel and reschedule messages: some due next, which a worker has claimed, and others."""
        soonest_ms = now_ms() + _SAFE_MS
        free = [p for p in self._story.scheduled.values() if p.due_ms > soonest_ms]
        free = sorted((p for p in free if p.id != POISON), key=lambda p: p.due_ms)
        near, far = iter(free[: len(free) // 2]), reversed(free[len(free) // 2 :])
        half = self._plan.cancelled // 2
        cancelled = _some(far, half, self._cancel)
        cancelled += _some(near, self._plan.cancelled - half, self._cancel)
        rescheduled = _some(near, self._plan.rescheduled, self._reschedule)
        self._observer.event(
            f"{cancelled} messages cancelled, {rescheduled} rescheduled; "
            f"a worker had claimed {self._claimed} of them"
        )

    def _cancel(self, message: Scheduled) -> bool:
        """Whether it was in time."""
        was_claimed = self._is_claimed(message)
        answer = self._client.cancel(message.id)
        if answer not in (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED):
            return False
        self._observer.expect(message, -1)
        message.cancelled = answer
        self._claimed += was_claimed
        return True

    def _reschedule(self, message: Scheduled) -> bool:
        """Whether it was in time."""
        was_claimed = self._is_claimed(message)
        due_ms = now_ms() + self._plan.seconds * 700
        if self._client.reschedule(message.id, at=format_time(due_ms)) != Answer.RESCHEDULED:
            return False
        self._observer.expect(message, -1)
        message.due_ms, message.rescheduled = due_ms, True
        self._observer.expect(message)
        self._last_due_ms = max(self._last_due_ms, due_ms)
        self._claimed += was_claimed
        return True

    def _is_claimed(self, message: Scheduled) -> bool:
        stored = self._client.get(message.id)
        return stored is not None and stored.state is State.IN_FLIGHT

    def _kill(self) -> None:
        victim = self._workers[0]
        buckets = self._client.stats().buckets
        self._observer.hear()
        del self._workers[0]
        self._story.orphans = frozenset(b.bucket for b in buckets if b.owner == victim.name)
        self._story.killed_ms = now_ms()
        victim.kill()
        numbers = " ".join(map(str, sorted(self._story.orphans)))
        self._observer.event(
            f"worker {victim.name} killed (kill -9): buckets {numbers} have no owner"
        )

    def _is_over(self, stats: Stats) -> bool:
        """Whether all messages arrived, or the missing ones are lost."""
        late_ms = now_ms() - self._last_due_ms
        if late_ms < _QUIET_MS or late_ms > _PATIENCE_MS:
            return late_ms > _PATIENCE_MS
        if stats.delayed + stats.in_flight + stats.parked or self._observer.awaits_takeover():
            return False
        return late_ms > _LOST_MS or self._observer.missing() <= 0


def _some(candidates: Iterator[Scheduled], wanted: int, act: Callable[[Scheduled], bool]) -> int:
    """Act on the candidates until `wanted` of them were in time; how many were."""
    done = 0
    while done < wanted and (message := next(candidates, None)) is not None:
        done += act(message)
    return done

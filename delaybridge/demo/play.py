"""The plot: what the demo does to the bridge, from the first message to the last."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from delaybridge.client import Client
from delaybridge.demo.brokers import Target
from delaybridge.demo.servers import Child
from delaybridge.demo.show import Screen
from delaybridge.demo.verdict import POISON, Promise, Story
from delaybridge.demo.watch import Failed, Watch, now_ms
from delaybridge.message import Answer, Message, State
from delaybridge.store.stats import Stats
from delaybridge.times import format_time

_CALL_MESSAGES = 1000
_TICK_S, _LOOK_S = 0.05, 0.2
_SAFE_MS = 300  # what is due sooner is not chosen to be cancelled
_QUIET_MS = 500  # after the last due time: what should not come would come now
_LOST_MS = 3000  # after it, and nothing is left in the store: what is missing does not come
_PATIENCE_MS = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much, over how long, and whether a worker is killed. consumer: the program run as one."""

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
        """When some are cancelled and rescheduled."""
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
    """One run. workers: the first of them is the one that is killed."""

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
        self._watch = Watch(self._story, screen, client, workers, consumer)
        self._last_due_ms = 0
        self._claimed = 0  # of what was cancelled or rescheduled

    def run(self, check: Callable[[], None]) -> Story:
        """Play it to its end. Failed: it cannot go on, as when a process died by itself.

        check: called again and again; raises if it is to end now.
        """
        self._watch.begin(bin_ms=self._plan.seconds * 100)
        self._schedule()
        self._watch.titles()
        acts: list[tuple[float, Callable[[], None]]] = [(self._plan.change_at_s, self._change)]
        if self._plan.kill:
            acts.append((self._plan.kill_at_s, self._kill))
        is_over, looked_s = False, 0.0
        while acts or not is_over:
            check()
            time.sleep(_TICK_S)
            while acts and self._watch.elapsed_s() >= acts[0][0]:
                acts.pop(0)[1]()
            self._watch.hear()
            if time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                is_over = self._is_over(self._watch.look())
        self._story.dead = self._dead()
        return self._story

    def _schedule(self) -> None:
        plan, place, chance = self._plan, self._target, random.Random()
        poison = Message(
            *(place.poison, "nobody can have this"),
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
                self._screen.foot([f" scheduling: {number:,} of {plan.messages:,}"])
        self._hand_in(messages)
        self._screen.foot(())

    def _hand_in(self, messages: list[Message]) -> None:
        for receipt in self._client.schedule_many(messages):
            if receipt.answer is not Answer.CREATED:
                raise Failed(f"{receipt.id} was not accepted: {receipt}")
            promise = Promise(receipt.id, receipt.bucket, receipt.due_ms)
            self._story.promises[receipt.id] = promise
            self._watch.expect(promise)
            self._last_due_ms = max(self._last_due_ms, promise.due_ms)

    def _change(self) -> None:
        """Cancel and reschedule messages due next, which a worker has claimed, and some others."""
        soonest_ms = now_ms() + _SAFE_MS
        free = [p for p in self._story.promises.values() if p.due_ms > soonest_ms]
        free = sorted((p for p in free if p.id != POISON), key=lambda p: p.due_ms)
        near, far = iter(free[: len(free) // 2]), reversed(free[len(free) // 2 :])
        half = self._plan.cancelled // 2
        cancelled = _some(far, half, self._cancel)
        cancelled += _some(near, self._plan.cancelled - half, self._cancel)
        rescheduled = _some(near, self._plan.rescheduled, self._reschedule)
        self._watch.event(
            f"{cancelled} messages cancelled, {rescheduled} rescheduled; "
            f"a worker had claimed {self._claimed} of them"
        )

    def _cancel(self, promise: Promise) -> bool:
        """Whether it was in time."""
        was_claimed = self._is_claimed(promise)
        answer = self._client.cancel(promise.id)
        if answer not in (Answer.CANCELLED, Answer.CANCELLED_MAYBE_DELIVERED):
            return False
        self._watch.expect(promise, -1)
        promise.cancelled = answer
        self._claimed += was_claimed
        return True

    def _reschedule(self, promise: Promise) -> bool:
        """Whether it was in time."""
        was_claimed = self._is_claimed(promise)
        due_ms = now_ms() + self._plan.seconds * 700
        if self._client.reschedule(promise.id, at=format_time(due_ms)) != Answer.RESCHEDULED:
            return False
        self._watch.expect(promise, -1)
        promise.due_ms, promise.rescheduled = due_ms, True
        self._watch.expect(promise)
        self._last_due_ms = max(self._last_due_ms, due_ms)
        self._claimed += was_claimed
        return True

    def _is_claimed(self, promise: Promise) -> bool:
        stored = self._client.get(promise.id)
        return stored is not None and stored.state is State.IN_FLIGHT

    def _kill(self) -> None:
        victim = self._workers[0]
        buckets = self._client.stats().buckets
        self._watch.hear()
        del self._workers[0]
        self._story.orphans = frozenset(b.bucket for b in buckets if b.owner == victim.name)
        self._story.killed_ms = now_ms()
        victim.kill()
        numbers = " ".join(map(str, sorted(self._story.orphans)))
        self._watch.event(f"worker {victim.name} killed (kill -9): nobody owns buckets {numbers}")

    def _is_over(self, stats: Stats) -> bool:
        """Whether all came, or what is missing will not come any more."""
        late_ms = now_ms() - self._last_due_ms
        if late_ms < _QUIET_MS or late_ms > _PATIENCE_MS:
            return late_ms > _PATIENCE_MS
        if stats.delayed + stats.in_flight + stats.parked or self._watch.awaits_takeover():
            return False
        return late_ms > _LOST_MS or self._watch.missing() <= 0

    def _dead(self) -> list[str]:
        found: list[str] = []
        page = self._client.dead(limit=1000)
        while True:
            found += [stored.id for stored in page.items]
            if page.cursor is None:
                return found
            page = self._client.dead(limit=1000, cursor=page.cursor)


def _some(candidates: Iterator[Promise], wanted: int, act: Callable[[Promise], bool]) -> int:
    """Act on the candidates until so many were in time; how many were."""
    done = 0
    while done < wanted and (promise := next(candidates, None)) is not None:
        done += act(promise)
    return done

"""Recurring definitions under a simulated clock: callers step by step, a scanner, what arrived.

A caller is a call of `Calls`; each step runs its next commands on a real Redis. Others may step in
between, and a caller may die at any step.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from delaybridge.errors import StoreError
from delaybridge.message import Limits
from delaybridge.recurring.definition import Definition, due_text
from delaybridge.recurring.definitions import Definitions
from delaybridge.recurring.runs import AT_ONCE, Made, RunMaking
from delaybridge.recurring.stored import recur
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.verbs import Each, RedisCommand, Steps, bucket_of
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Copy, World

KINDS = {"memory": "memory://"}
NAME = "job"
NOW_MS = 1_800_000_000_000  # Fri 2027-01-15 08:00:00 UTC, when a timetable begins
MINUTE_MS = 60_000


def definition(**fields: Any) -> Definition:
    """Of a run each minute, unless the fields say otherwise."""
    times = {} if "cron" in fields else {"every_ms": MINUTE_MS}
    return Definition(**{"name": NAME, "destination": "memory:q", "body": "x", **times, **fields})


def make_runs(calls: Calls, *, now_ms: int | None = None) -> Steps[list[Made]]:
    """What a worker does: take some definitions that are to be looked at, and make their runs."""
    (taken,) = yield [recur(calls.namespace, AT_ONCE, now_ms=now_ms)]
    return (yield from RunMaking(calls).make_taken(*taken))


class Caller:
    """A call under way. done: it has returned (`result`), raised (`error`), or was killed."""

    def __init__(self, table: Timetable, steps: Steps[Any], what: str = "") -> None:
        self.table, self.what = table, what
        self.result: Any = None
        self.error: Exception | None = None
        self.done = False
        self.began_ms = table.now_ms
        self._steps, self._reply = steps, None

    def step(self) -> None:
        """Run its next commands, and let it act on the replies to those before."""
        try:
            asked = self._steps.send(self._reply)
            self._reply = self.table.replies(asked)
        except StopIteration as found:
            self.result, self.done = found.value, True
        except Exception as exc:
            self.error, self.done = exc, True

    def finish(self) -> Any:
        while not self.done:
            self.step()
        if self.error is not None:
            raise self.error
        return self.result


class Timetable(AbstractContextManager):
    """The definitions of one namespace, the time, and a scanner for the bucket of `job`."""

    def __init__(self, url: str, namespace: str, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms
        self.store = Store(url)
        self.calls = Calls(namespace, KINDS, None, Limits())
        buckets = self.store.complete(self.calls.open())
        number = bucket_of(NAME.encode(), len(buckets))
        self.world = World(url, namespace, now_ms, number=number, birth=self.calls.birth)
        self.owner = self.world.owner()
        self.arrived: list[str] = []
        self._fired: list[Copy] = []

    def __exit__(self, *exc: object) -> None:
        self.world.__exit__()
        self.store.close()

    def call(self, steps: Steps[Any], what: str = "") -> Caller:
        return Caller(self, steps, what)

    def run(self, steps: Steps[Any]) -> Any:
        return self.call(steps).finish()

    def add(self, *, replace: bool = False, **fields: Any) -> Any:
        return self.run(Definitions(self.calls).add(definition(**fields), replace=replace))

    def sources(self) -> list[str]:
        found = self.store.redis.hkeys(self.world.key("sources"))
        return sorted(name.decode() for name in found)

    def make(self) -> list[Any]:
        """One worker looks until nothing is left to do now."""
        made: list[Any] = []
        while found := self.run(make_runs(self.calls, now_ms=self.now_ms)):
            made += found
        return made

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.world.now_ms = self.now_ms

    def seconds_pass(self, count: int) -> list[Any]:
        """Each second a worker looks, and what is due is delivered; what the worker made."""
        made: list[Any] = []
        for _ in range(count):
            self.pass_ms(1000)
            made += self.make()
            self.deliver()
        return made

    def minutes_pass(self, count: int) -> None:
        self.seconds_pass(count * 60)

    def replies(self, asked: Any) -> list[Any]:
        """The replies to commands, at the simulated time."""
        commands = [self._at_now(command) for command in list(asked)]
        found = self.store.run_each(commands)
        errors = [each for each in found if isinstance(each, StoreError)]
        if errors and not isinstance(asked, Each):
            raise errors[0]
        return found

    def _at_now(self, command: RedisCommand[Any]) -> RedisCommand[Any]:
        if command.name == "TIME":
            parse, now = command.parse, [self.now_ms // 1000, self.now_ms % 1000 * 1000]
            return msgspec.structs.replace(command, parse=lambda _: parse(now))
        if command.name in ("recur", "cancel", "schedule"):  # the time is their first argument
            return msgspec.structs.replace(command, args=(self.now_ms, *command.args[1:]))
        return command

    # the scanner

    def claim(self) -> None:
        self.owner.claim(ahead_ms=2000)

    def fire(self) -> None:
        """Fire what is due, and let it arrive."""
        due = [copy for copy in self.owner.wheel if copy.score < self.now_ms + 1]
        if not due:
            return
        for copy in self.owner.fire(max(copy.score for copy in due)):
            self.arrived.append(copy.id)
            self._fired.append(copy)

    def settle(self) -> None:
        if self._fired:
            self.owner.settle(*self._fired)
            self._fired = []

    def deliver(self) -> None:
        """Everything that is due arrives."""
        self.claim()
        self.fire()
        self.settle()

    @property
    def twice(self) -> list[str]:
        return [id for id, count in Counter(self.arrived).items() if count > 1]


def ids(*minutes: int) -> list[str]:
    """The ids of the runs of `job` that are due these minutes after the beginning."""
    return [f"{NAME}@{due_text(NOW_MS + minute * MINUTE_MS)}" for minute in minutes]

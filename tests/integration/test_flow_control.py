"""Retry plans, spread, and all rules at once, on a real Redis with time in the test's hands."""

from __future__ import annotations

import random

import pytest

from delaybridge.backoff import RetryPlan
from delaybridge.events import Published
from delaybridge.store.namespace.rules import Rule
from tests.rigs.outcomes import NACK
from tests.rigs.scanner import SOON_MS, Rig, RigFactory, message, when

CLOSE = "rabbit:orders/close"

# retry plans


async def test_a_destination_has_its_own_retry_plan(rig: Rig) -> None:
    plan = RetryPlan(max_attempts=3, base_ms=100, factor=10.0, jitter=0.0)
    await rig.steer({"memory": Rule(retry=plan), "memory:q": Rule(retry=RetryPlan(base_ms=50))})
    rig.memory.next_outcomes.extend([NACK] * 3)
    await rig.claim(message("x", SOON_MS))
    await rig.live_until(SOON_MS + 5000)
    assert [p.at_ms - SOON_MS for p in rig.memory.taken] == [0, 50, 550]
    assert await rig.state("x") == "dead"


async def test_a_messages_own_plan_wins_field_by_field(rig: Rig) -> None:
    await rig.steer({"memory": Rule(retry=RetryPlan(max_attempts=5, base_ms=100, jitter=0.0))})
    rig.memory.next_outcomes.extend([NACK] * 9)
    await rig.claim(message("x", SOON_MS, retry={"max_attempts": 2}))
    await rig.live_until(SOON_MS + 5000)
    assert [p.at_ms - SOON_MS for p in rig.memory.taken] == [0, 100]


@pytest.mark.parametrize(
    ("rules", "letter"),
    [
        ({"memory": Rule(dead_letter="b:d")}, True),
        ({"memory:q": Rule(dead_letter="b:d")}, True),
        ({"memory": Rule(dead_letter="b:d"), "memory:q": Rule(dead_letter="")}, False),
        ({}, False),
    ],
)
async def test_a_destination_has_its_own_dead_letter(
    rig_of: RigFactory, rules: dict[str, Rule], letter: bool
) -> None:
    async with rig_of(max_attempts=1) as rig:
        await rig.steer(rules)
        rig.memory.next_outcomes.append(NACK)
        await rig.claim(message("x", SOON_MS))
        await rig.live_until(SOON_MS + 10)
        assert rig.other.ids == (["x"] if letter else [])
        assert await rig.state("x") == (None if letter else "dead")


# spread


async def test_messages_of_one_instant_leave_over_the_window_and_none_is_early(rig: Rig) -> None:
    await rig.steer({"memory": Rule(spread_ms=10_000)})
    await rig.claim(*(message(f"m{n}", SOON_MS) for n in range(500)))
    await rig.claim(message("other", SOON_MS, "b:q"))
    await rig.live_until(SOON_MS + 10_000)
    left = sorted(publish.at_ms - SOON_MS for publish in rig.memory.taken)
    assert len(left) == len({*rig.memory.ids}) == 500
    assert 0 <= left[0] and left[-1] < 10_000
    for tenth in range(10):  # 50 expected; the chance of less or more is below one in a million
        assert 15 < sum(tenth * 1000 <= each < tenth * 1000 + 1000 for each in left) < 90
    assert {(p.due_ms, p.attempt) for p in rig.memory.taken} == {(SOON_MS, 1)}
    assert [publish.at_ms for publish in rig.other.taken] == [SOON_MS]
    published = [event for event in rig.events if isinstance(event, Published)]
    assert {event.late_ms for event in published} == {0}, "late from when it should leave"


async def test_a_message_leaves_at_the_same_time_with_any_worker(rig: Rig) -> None:
    times = []
    for _ in range(2):
        await rig.steer({"memory:q": Rule(spread_ms=5000)})
        begin_ms = rig.now_ms + 100
        await rig.claim(message("x", begin_ms), message("y", begin_ms + 7, key="x"))
        await rig.live_until(begin_ms + 6000)
        times.append([publish.at_ms - begin_ms for publish in rig.memory.taken])
        rig.memory.taken.clear()
        await rig.steer({})
    assert times[0] == times[1] and times[0][1] == times[0][0] + 7


async def test_spread_messages_of_one_key_keep_their_order_also_when_late(rig: Rig) -> None:
    await rig.steer({"memory": Rule(spread_ms=3000)})
    numbers = range(200)
    await rig.schedule(*(message(f"m{n:03}", SOON_MS + 9 * n, key=f"k{n % 5}") for n in numbers))
    rig.now_ms += 4000  # the worker slept meanwhile
    await rig.send(*(message(f"n{n:03}", SOON_MS + 9 * n, key=f"k{n % 5}") for n in numbers))
    await rig.live_until(rig.now_ms + 6000)
    assert len(rig.memory.ids) == 400
    for key in range(5):
        of_key = [p.due_ms for p in rig.memory.taken if int(p.id[1:]) % 5 == key]
        assert of_key == sorted(of_key)


async def test_a_spread_message_is_cancelled_rescheduled_and_retried_as_any_other(rig: Rig) -> None:
    await rig.steer({"memory": Rule(spread_ms=1000)})
    await rig.claim(*(message(id, SOON_MS) for id in ("cancelled", "moved", "failed")))
    assert await rig.state("moved") == "delayed"
    assert await rig.client.cancel("cancelled") == "cancelled"
    assert await rig.client.reschedule("moved", at=when(SOON_MS + 5000)) == "rescheduled"
    rig.memory.next_outcomes.append(NACK)
    await rig.live_until(SOON_MS + 10_000)
    first, again, moved = rig.memory.taken
    assert [(p.id, p.attempt, p.due_ms) for p in (first, again)] == [
        ("failed", 1, SOON_MS), ("failed", 2, SOON_MS)
    ]  # fmt: skip
    assert again.at_ms == first.at_ms + 1000, "its back-off is not spread"
    assert (moved.id, moved.due_ms) == ("moved", SOON_MS + 5000) and moved.at_ms > moved.due_ms


async def test_a_ttl_counts_from_the_due_time_though_a_message_is_spread(rig: Rig) -> None:
    await rig.steer({"memory": Rule(spread_ms=10_000)})
    await rig.claim(*(message(f"m{n}", SOON_MS, ttl=1) for n in range(40)))
    await rig.live_until(SOON_MS + 11_000)
    assert 0 < len(rig.memory.ids) < 40
    assert all(publish.at_ms <= SOON_MS + 1000 for publish in rig.memory.taken)


async def test_a_spread_that_is_removed_leaves_its_messages_at_their_times(rig: Rig) -> None:
    await rig.steer({"memory": Rule(spread_ms=60_000)})
    await rig.claim(*(message(f"m{n}", SOON_MS) for n in range(20)))
    await rig.live_until(SOON_MS + 1000)
    early = len(rig.memory.ids)
    await rig.steer({})
    await rig.claim(message("after", rig.now_ms + 100))
    await rig.live_until(rig.now_ms + 200)
    assert "after" in rig.memory.ids[early:] and len(rig.memory.ids) < 10
    await rig.live_until(SOON_MS + 60_000)
    assert len(rig.memory.ids) == 21


async def test_a_spread_also_takes_what_is_on_the_wheel_already(rig: Rig) -> None:
    await rig.claim(*(message(f"m{n}", SOON_MS) for n in range(100)))
    await rig.steer({"memory": Rule(spread_ms=10_000)})
    await rig.live_until(SOON_MS + 10_000)
    assert len(rig.memory.ids) == 100
    assert len({publish.at_ms for publish in rig.memory.taken}) > 80


# stories

PLACES = ["memory", "memory:q", "rabbit", "rabbit:orders", CLOSE, "rabbit:orders/open"]
DESTINATIONS = ["memory:q", CLOSE, "rabbit:orders/open"]
N_STORIES = 15
LEAD_MS = 5  # what is fired when a pause comes still goes out


class Story:
    """Random rules, messages and losses of leases; each delivery is checked when it happens."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.rules: dict[str, Rule] = {}
        self.paused_ms: dict[str, int] = {}  # destination -> since when
        self.sent: dict[str, tuple[str, str]] = {}  # id -> destination, key
        # It stays: a message may overtake one that was spread otherwise.
        self.spread_ms = self.random.choice([0, 0, 300, 3000])
        self.rules["rabbit:orders"] = Rule(spread_ms=self.spread_ms)
        self.due_ms = 0
        self.seen = [0, 0]

    async def run(self, steps: int) -> None:
        await self.rig.steer(self.rules)
        for _ in range(steps):
            act = self.random.choice([self.send, self.send, self.steer, self.steer, self.lose])
            await act()
            await self.rig.live_until(self.rig.now_ms + self.random.choice([1, 30, 400, 2500]))
            self.look()
        self.paused_ms = {}
        await self.rig.steer({"rabbit:orders": Rule(spread_ms=self.spread_ms)})
        await self.rig.live_until(self.rig.now_ms + 20_000)
        self.look()

    async def send(self) -> None:
        count, messages = self.random.randrange(1, 60), []
        self.due_ms = max(self.due_ms, self.rig.now_ms)
        for n in range(len(self.sent), len(self.sent) + count):
            destination, key = self.random.choice(DESTINATIONS), f"k{self.random.randrange(6)}"
            self.due_ms += self.random.randrange(0, 40)  # never before one that may have gone
            self.sent[f"m{n}"] = destination, key
            messages.append(message(f"m{n}", self.due_ms, destination, key=key))
        await self.rig.schedule(*messages)
        self.rig.scanner.wake_all()

    async def steer(self) -> None:
        place = self.random.choice(PLACES)
        spread_ms = self.spread_ms if place == "rabbit:orders" else None
        self.rules[place] = Rule(paused=self.random.random() < 0.5, spread_ms=spread_ms)
        if place != "rabbit:orders" and self.random.random() < 0.3:
            del self.rules[place]
        paused = {place for place, rule in self.rules.items() if rule.paused}
        for destination in DESTINATIONS:
            broker, exchange = destination.partition(":")[0], destination.partition("/")[0]
            if paused & {broker, exchange, destination}:
                self.paused_ms.setdefault(destination, self.rig.now_ms)
            else:
                self.paused_ms.pop(destination, None)
        await self.rig.steer(dict(self.rules))

    async def lose(self) -> None:
        number = self.random.choice(list(self.rig.sessions))
        while self.rig.sessions[number].exits.any:  # or what was settled would come again
            await self.rig.live_until(self.rig.now_ms + 1)
        await self.rig.expire(number)
        self.rig.lose(self.rig.sessions[number], "test")
        await self.rig.take(number, f"w:{self.rig.now_ms}")

    def look(self) -> None:
        """None is early, and none goes out of a destination that is paused."""
        for n, broker in enumerate((self.rig.memory, self.rig.rabbit)):
            for publish in broker.taken[self.seen[n] :]:
                since_ms = self.paused_ms.get(self.sent[publish.id][0])
                assert publish.at_ms >= publish.due_ms
                assert since_ms is None or publish.at_ms <= since_ms + LEAD_MS
            self.seen[n] = len(broker.taken)

    def check(self) -> None:
        ids = self.rig.memory.ids + self.rig.rabbit.ids
        assert sorted(ids) == sorted(self.sent), "none is lost or doubled"
        for way in {*self.sent.values()}:
            order = [int(id[1:]) for id in ids if self.sent[id] == way]
            assert order == sorted(order)


@pytest.mark.parametrize("seed", range(N_STORIES))
@pytest.mark.slow_with("[6-9]", "1?")
async def test_whatever_the_rules_nothing_is_lost_doubled_early_or_out_of_order(
    rig_of: RigFactory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.scan.reclaiming._IN_CALL", 1 + seed)
    async with rig_of(window=30 if seed % 2 else 1000) as rig:
        story = Story(rig, seed)
        await story.run(40)
        story.check()

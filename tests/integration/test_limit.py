"""Rates of destinations, with time in the test's hands: exact, in order, no burden to others."""

from __future__ import annotations

import contextlib
from collections import Counter
from zlib import crc32

import pytest

from delaybridge.message import Message
from delaybridge.store.namespace.rules import Rule, Rules
from delaybridge.store.protocol import keys
from tests.rigs.outcomes import NACK, NO_EXCHANGE
from tests.rigs.scanner import NOW_MS, Publish, Rig, message

TEN_S = 10_000


def limit(rig: Rig, **rates: float | None) -> None:
    """Only these places have a rate from now on; `__` stands for a colon."""
    places = {place.replace("__", ":"): Rule(rate=rate) for place, rate in rates.items()}
    rig.lanes.rules_changed(Rules(places))


def overdue(count: int, destination: str = "memory:q", **options: object) -> list[Message]:
    """Messages that were due within the last second."""
    name = destination.partition(":")[2]
    return [
        message(f"{name}{n:05}", NOW_MS - 1000 + n * 1000 // count, destination, **options)  # type: ignore[arg-type]
        for n in range(count)
    ]


def most_within(taken: list[Publish], ms: int) -> int:
    """The most messages in any window of that length."""
    times = [publish.at_ms for publish in taken]
    return max(
        (n - first for first, at_ms in enumerate(times) for n in [_after(times, at_ms + ms)]),
        default=0,
    )


def _after(times: list[int], ms: int) -> int:
    return next((n for n, at_ms in enumerate(times) if at_ms > ms), len(times))


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(0.5, 10), (2, 10), pytest.param(100, 10, marks=pytest.mark.slow), (1000, 3)],
)
async def test_a_backlog_goes_out_at_its_rate_and_earliest_first(
    rig: Rig, rate: float, seconds: int
) -> None:
    limit(rig, memory__q=rate)
    await rig.send(*overdue(int((seconds + 2) * rate)))
    await rig.live_until(NOW_MS + seconds * 1000)
    taken = rig.memory.taken
    assert rate * (seconds - 0.2) <= len(taken) <= rate * (seconds + 0.2) + 1
    assert most_within(taken, 1000) <= rate * 1.2 + 1
    assert {publish.attempt for publish in taken} == {1}
    behind = [abs(n - int(publish.id[1:])) for n, publish in enumerate(taken)]
    assert max(behind) <= rate * 0.2 + 4, "the four buckets go on side by side"


async def test_a_destination_below_its_rate_is_on_time_and_asks_no_more_than_it_publishes(
    rig: Rig,
) -> None:
    limit(rig, memory__q=1000)
    due = {f"m{n}": NOW_MS + 10 * n for n in range(200)}
    await rig.send(*(message(id, due_ms) for id, due_ms in due.items()))
    await rig.live_until(NOW_MS + 3000)
    assert {publish.id: publish.at_ms for publish in rig.memory.taken} == due
    assert rig.store.sent.count("allow") <= 200
    assert "park" not in rig.store.sent
    asked = len(rig.store.sent)
    await rig.live_until(NOW_MS + 60_000)
    assert rig.store.sent[asked:].count("allow") == 0, "idle, it asks for nothing"


def burst(count: int, spread_ms: int) -> dict[str, int]:
    """Ids of messages that fall due from 5 s after the start on, and when."""
    return {f"q{n:05}": NOW_MS + 5000 + n * spread_ms // count for n in range(count)}


async def test_what_is_saved_up_allows_a_burst_on_time_of_which_nothing_is_set_aside(
    rig: Rig,
) -> None:
    limit(rig, memory__q=1000)
    due = {"first": NOW_MS + 1000, **burst(200, 0)}
    await rig.send(*(message(id, due_ms) for id, due_ms in due.items()))
    await rig.live_until(NOW_MS + 6000)
    assert {publish.id: publish.at_ms for publish in rig.memory.taken} == due
    assert "park" not in rig.store.sent


@pytest.mark.parametrize("spread_ms", [0, pytest.param(300, marks=pytest.mark.slow), 1000])
@pytest.mark.slow_with("1000")
async def test_a_large_burst_gets_its_whole_rate_at_once_and_delays_no_other(
    rig: Rig, spread_ms: int
) -> None:
    """What exceeds the rate is set aside before it is due; nothing is early, twice or overtaken."""
    limit(rig, memory__q=1000)
    due = burst(5000, spread_ms)
    others = {f"o{n}": NOW_MS + 4500 + 9 * n for n in range(200)}
    await rig.send(*(message(id, due_ms) for id, due_ms in due.items()))
    await rig.schedule(*(message(id, due_ms, "b:q") for id, due_ms in others.items()))
    await rig.live_until(NOW_MS + 4900)
    parked = [await rig.raw("parked", number) for number in range(4)]
    assert sum(map(len, parked)) >= 5000 - (1 + spread_ms // 100) * 301
    first_ms = min(due.values())
    await rig.live_until(first_ms + 3000)
    taken = rig.memory.taken
    assert 2900 <= len(taken) <= 3201, "as much as the rate gives, and what was saved up"
    assert most_within(taken, 1000) <= 1201 + 200, "a worker may hold 0.2 s of the rate"
    assert {publish.id: publish.at_ms for publish in rig.other.taken} == others
    await rig.live_until(first_ms + 6000)
    assert sorted(publish.id for publish in taken) == sorted(due)
    assert all(publish.at_ms >= due[publish.id] for publish in taken)
    for bucket in range(4):
        ours = [p.id for p in taken if crc32(p.id.encode()) % 4 == bucket]
        assert ours == sorted(ours)


async def test_what_is_set_aside_before_it_is_due_outlives_its_worker_and_its_rate(
    rig: Rig,
) -> None:
    limit(rig, memory__q=100)
    due = burst(400, 0)
    await rig.send(*(message(id, due_ms) for id, due_ms in due.items()))
    await rig.live_until(NOW_MS + 4000)
    assert await rig.client.cancel("q00399") == "cancelled"
    for number in (0, 1):
        await rig.expire(number)
        rig.lose(rig.sessions[number], "a test")
        await rig.take(number)
    await rig.live_until(NOW_MS + 5500)
    assert 40 <= len(rig.memory.taken) <= 71, "half a second at 100/s, asked for at random"
    limit(rig)
    await rig.live_until(NOW_MS + 6000)
    taken = rig.memory.taken
    assert sorted(publish.id for publish in taken) == sorted({*due} - {"q00399"})
    assert all(publish.at_ms >= due[publish.id] for publish in taken)


async def test_the_backlog_of_a_limited_destination_delays_no_other(rig: Rig) -> None:
    limit(rig, memory__q=50)
    due = {f"o{n}": NOW_MS + 100 + 7 * n for n in range(300)}
    await rig.send(*overdue(2000), *(message(id, ms, "b:q") for id, ms in due.items()))
    await rig.live_until(NOW_MS + 3000)
    assert {publish.id: publish.at_ms for publish in rig.other.taken} == due
    assert 145 <= len(rig.memory.taken) <= 161


async def test_while_nobody_answers_for_the_rates_other_destinations_are_on_time(rig: Rig) -> None:
    limit(rig, memory__q=100.0)
    rig.store.hold("allow")  # on a Cluster they may be on a node that is silent
    limited = [message(f"q{n:05}", NOW_MS + 10 * n) for n in range(100)]
    free = [message(f"f{n:05}", NOW_MS + 10 * n, "b:f") for n in range(100)]
    await rig.send(*limited + free)
    await rig.live_until(NOW_MS + 2000)
    assert not rig.memory.taken
    assert len(rig.other.taken) == len(free)
    assert max(p.at_ms - p.due_ms for p in rig.other.taken) <= 250
    rig.store.let_go("allow")
    await rig.live_until(NOW_MS + 6000)
    assert len(rig.memory.taken) == len(limited)
    assert most_within(rig.memory.taken, 1000) <= 100 * 1.2 + 1


async def test_a_rate_of_the_whole_broker_is_shared_and_each_lane_keeps_to_its_own_too(
    rig: Rig,
) -> None:
    limit(rig, memory=100, memory__s=10)
    await rig.send(*(m for name in "qrs" for m in overdue(1200, f"memory:{name}")))
    await rig.live_until(NOW_MS + TEN_S)
    counts = Counter(publish.id[0] for publish in rig.memory.taken)
    assert 980 <= counts.total() <= 1021
    assert 95 <= counts["s"] <= 103
    assert counts["q"] > 350 and counts["r"] > 350


async def live_together(rigs: list[Rig], end_ms: int) -> None:
    """As `Rig.live_until`, for several workers on one clock."""
    looks = {rig: await rig.quiet() for rig in rigs}
    while True:
        first = min(rigs, key=lambda rig: looks[rig] or end_ms)
        at_ms = max((looks[first] or end_ms), first.now_ms + 1)
        if at_ms >= end_ms:
            break
        for rig in rigs:
            rig.now_ms = max(rig.now_ms, at_ms)
        looks[first] = await first.quiet()


@pytest.mark.parametrize(("rate", "workers", "seconds"), [(3, 4, 10), (100, 4, 5), (500, 2, 4)])
@pytest.mark.slow_with("3-4-10", "500-2-4")
async def test_workers_share_a_rate_and_one_that_dies_takes_little_with_it(
    redis_url: str, namespace: str, rate: int, workers: int, seconds: int
) -> None:
    """The worker dies after half of the time, and nobody takes its buckets over."""
    async with contextlib.AsyncExitStack() as stack:
        rigs = [
            await stack.enter_async_context(Rig(redis_url, f"{namespace}-{n}", rates_of=namespace))
            for n in range(workers)
        ]
        for rig in rigs:
            limit(rig, memory__q=rate)
            await rig.send(*overdue((seconds + 2) * rate))
        await live_together(rigs, NOW_MS + seconds * 500)
        await live_together(rigs[1:], NOW_MS + seconds * 1000)
        taken = sorted((p for rig in rigs for p in rig.memory.taken), key=lambda p: p.at_ms)
        assert rate * (seconds - 0.5) <= len(taken) <= rate * (seconds + 0.2) + 1
        assert most_within(taken, 1000) <= rate * 1.4 + workers
        assert min(len(rig.memory.taken) for rig in rigs) > 0


async def test_a_new_rate_holds_at_once_and_without_one_the_backlog_goes_out(rig: Rig) -> None:
    limit(rig, memory__q=10)
    await rig.send(*overdue(2000))
    await rig.live_until(NOW_MS + 1000)
    assert 10 <= len(rig.memory.taken) <= 13
    limit(rig, memory__q=200)
    await rig.live_until(NOW_MS + 2000)
    assert 200 <= len(rig.memory.taken) <= 255
    limit(rig)
    await rig.live_until(NOW_MS + 2500)
    assert len(rig.memory.taken) == 2000


async def test_a_failed_attempt_counts_and_so_does_its_retry(rig: Rig) -> None:
    limit(rig, memory__q=20)
    rig.memory.next_outcomes.extend([NACK] * 10)
    await rig.send(*overdue(10))
    await rig.live_until(NOW_MS + 3000)
    assert len(rig.memory.taken) == 20
    assert most_within(rig.memory.taken, 1000) <= 25
    assert rig.memory.taken[-1].attempt == 2


async def test_a_shut_destination_asks_for_nothing_and_its_probes_count(rig: Rig) -> None:
    limit(rig, memory__q=2)
    rig.memory.next_outcomes.extend([NO_EXCHANGE] * 4)
    await rig.send(*overdue(50))
    await rig.live_until(NOW_MS + 1000)
    asked = rig.store.sent.count("allow")
    await rig.live_until(NOW_MS + 30_000)
    assert rig.memory.published, "a probe passed"
    assert rig.store.sent.count("allow") < asked + 130
    assert most_within(rig.memory.taken, 1000) <= 4


async def test_a_damaged_key_stops_only_what_is_limited_and_is_reported(rig: Rig) -> None:
    limit(rig, memory__q=100)
    key = keys.allowances(rig.namespace)
    await rig.store.redis.set(key, "x")
    await rig.send(*overdue(20), *(message(f"o{n}", NOW_MS + n, "b:q") for n in range(20)))
    await rig.live_until(NOW_MS + 3000)
    assert len(rig.other.taken) == 20 and not rig.memory.taken
    told = dict(rig.lanes.parking.blocked())["memory:q"]
    assert told.startswith(f"rate: redis: {key} has a wrong type")
    held, parked_ms = rig.lanes.parking.held()
    assert not held, "nobody wants them to wait"
    assert parked_ms is not None and parked_ms < NOW_MS
    assert [each.key for each in (await rig.client.stats()).damage] == [key]
    assert rig.store.sent.count("allow") <= 4
    await rig.store.redis.delete(key)
    await rig.live_until(NOW_MS + 5000)
    assert len(rig.memory.taken) == 20


async def test_a_backlog_is_announced_as_limited_and_not_as_slow(rig: Rig) -> None:
    limit(rig, memory__q=2.5)
    await rig.send(*overdue(50))
    await rig.live_until(NOW_MS + 1000)
    assert dict(rig.lanes.parking.blocked()) == {"memory:q": "limited: to 2.5/s"}
    rig.now_ms += 60_000
    rig.scanner.check_moving(10_000)
    await rig.quiet()
    rig.now_ms += 60_000
    rig.scanner.check_moving(10_000)
    assert rig.scanner.calls.failure is None

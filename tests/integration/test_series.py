"""The fleet's series: what workers record is what a client reads, on real servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delaybridge import Message, MessageError
from delaybridge.operate.views.series import read_slot
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew
from tests.rigs.flavours import Maker
from tests.rigs.waiting import until_async

START_S = 1_795_000_000
RINGS = {"s": (1, 61), "m": (60, 61), "h": (1800, 49)}
MOST_DESTINATIONS = 50
FORGOTTEN_S = 600
TO = "memory:orders"


class Recorded:
    """Samples sent to the script, with the time passed in, and what must come of them."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store, self.namespace = store, namespace
        self.now_s = START_S
        self.sent: dict[int, tuple[int, bytes, int]] = {}  # by worker
        self.numbers: Counter[int] = Counter()
        self.added: list[tuple[int, int, dict[str, int], int]] = []  # second, worker, ..., late
        self.store.redis.delete(keys.series(namespace))

    def send(self, worker: int, counts: dict[str, int], late_ms: int = 0) -> None:
        """A new sample."""
        self.numbers[worker] += 1
        places = {f"kafka:t{n % 60}": {n: c} for n, c in enumerate(counts.values())}
        named = {place: {"published": sum(v.values())} for place, v in places.items()}
        sample = msgspec.msgpack.encode([counts, named, late_ms, []])
        self.sent[worker] = self.numbers[worker], sample, self.now_s
        assert self._record(worker)
        self.added.append((self.now_s, worker, counts, late_ms))

    def send_again(self, worker: int) -> None:
        """The last sample once more: its answer was lost."""
        if worker in self.sent and self.now_s - self.sent[worker][2] < FORGOTTEN_S:
            assert not self._record(worker)

    def _record(self, worker: int) -> bool:
        number, sample, _ = self.sent[worker]
        command = registry.record(
            self.namespace, f"w{worker}", f"i{worker}", number, sample, now_ms=self.now_s * 1000
        )
        (added,) = self.store.run([command])
        return bool(added)

    def check(self) -> None:
        """Every slot holds what was sent in its period, and there are no other slots."""
        found = self.store.redis.hgetall(keys.series(self.namespace))
        slots = {n.decode(): text for n, text in found.items() if n != b"workers"}
        for ring, (seconds, size) in RINGS.items():
            expected: dict[str, tuple[int, Counter[str]]] = {}
            reported: dict[str, set[tuple[int, int]]] = {}
            for at_s, worker, counts, _ in self.added:
                field = f"{ring}{at_s // seconds % size}"
                if expected.get(field, (None,))[0] != at_s // seconds:
                    expected[field], reported[field] = (at_s // seconds, Counter()), set()
                expected[field][1].update(counts)
                reported[field].add((worker, at_s))
            assert {n for n in slots if n[0] == ring} == expected.keys()
            for field, (period, sums) in expected.items():
                slot = read_slot(slots[field])
                assert slot is not None
                assert (slot.period, slot.counts) == (period, dict(sums))
                assert slot.samples == len(reported[field])
                placed = sum(each["published"] for each in slot.destinations.values())
                assert placed == sums.total()
                assert len(slot.destinations) <= MOST_DESTINATIONS + 1


@pytest.fixture
def recorded(any_redis_url: str, namespace: str) -> Iterator[Recorded]:
    store = Store(any_redis_url)
    yield Recorded(store, namespace)
    store.redis.delete(keys.series(namespace))
    store.close()


COUNTS = st.dictionaries(
    st.sampled_from(["published", "retried", "late_3", "buried"]), st.integers(0, 2**40)
)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), COUNTS),
    st.tuples(st.just("again"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1, 1, 1, 7, 59, 61, 500, 1800, 100_000])),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, max_size=40))
def test_the_rings_hold_what_was_sent_in_their_periods_and_no_more(
    recorded: Recorded, steps: list[tuple[Any, ...]]
) -> None:
    recorded.__init__(recorded.store, recorded.namespace)  # type: ignore[misc]
    for step, *args in steps:
        if step == "send":
            recorded.send(*args)
        elif step == "pass":
            recorded.now_s += args[0]
        else:
            recorded.send_again(*args)
        recorded.check()


def test_memory_is_bounded(recorded: Recorded) -> None:
    counts = {f"n{n}": 2**40 for n in range(70)}
    sizes = []
    for _ in range(3):
        for _ in range(130):
            recorded.now_s += 37
            for worker in range(3):
                recorded.send(worker, counts)
        sizes.append(recorded.store.redis.memory_usage(keys.series(recorded.namespace), samples=0))
    assert sizes[2] <= sizes[1] * 1.1 < 2**20


class Totals:
    """A bucket's totals, as workers read them."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded, self.numbers = recorded, Counter[str]()

    def tell(
        self, instance: str, *totals: int, states: Sequence[int] = (0, 0, 0, 0), bucket: int = 7
    ) -> None:
        self.numbers[instance] += 1
        sample = msgspec.msgpack.encode([{}, {}, 0, [bucket, *totals, *states]])
        number, now_ms = self.numbers[instance], self.recorded.now_s * 1000
        command = registry.record(
            self.recorded.namespace, "w", instance, number, sample, now_ms=now_ms
        )
        self.recorded.store.run([command])

    @property
    def scheduled(self) -> int:
        """In the half hour under way."""
        field = f"h{self.recorded.now_s // 1800 % 49}"
        name = keys.series(self.recorded.namespace)
        slot = read_slot(self.recorded.store.redis.hget(name, field))
        assert slot is not None
        return slot.counts.get("scheduled", 0)


def test_a_buckets_totals_are_counted_once_whoever_holds_it(recorded: Recorded) -> None:
    totals = Totals(recorded)
    totals.tell("a", 100, 0, 0)
    assert totals.scheduled == 0  # when that was is unknown
    totals.tell("a", 150, 0, 0)
    totals.tell("b", 170, 0, 0)  # took the bucket over
    totals.tell("a", 160, 0, 0)  # was under way for long
    totals.tell("b", 171, 0, 0)
    assert totals.scheduled == 71


def test_what_was_scheduled_while_nobody_looked_is_not_a_burst(recorded: Recorded) -> None:
    totals = Totals(recorded)
    totals.tell("a", 100, 0, 0)
    recorded.now_s += 61
    totals.tell("a", 1_000_000, 0, 0)
    assert totals.scheduled == 0
    totals.tell("a", 1_000_005, 0, 0)
    assert totals.scheduled == 5


def test_totals_that_begin_anew_are_never_negative(recorded: Recorded) -> None:
    totals = Totals(recorded)
    totals.tell("a", 100, 50, 20)
    totals.tell("a", 3, 0, 0)  # the marks were deleted by hand
    assert totals.scheduled == 0
    recorded.now_s += 61
    totals.tell("a", 4, 0, 0)
    totals.tell("a", 9, 0, 0)
    assert totals.scheduled == 5


async def test_the_states_of_any_second_are_those_told_by_then(
    recorded: Recorded, any_redis_url: str, make: Maker
) -> None:
    totals, client = Totals(recorded), make(any_redis_url, namespace=recorded.namespace, buckets=8)
    await client.stats()  # makes the namespace
    recorded.now_s = int(recorded.store.redis.time()[0]) - 300
    for instance, bucket, *states in (
        ("a", 7, 9, 0, 0, 0), ("b", 2, 5, 1, 0, 0), ("a", 7, 8, 1, 0, 0),
        ("b", 7, 8, 0, 0, 1),  # took it over
        ("b", 2, 0, 0, 6, 0),
    ):  # fmt: skip
        recorded.now_s += 60
        totals.tell(instance, 0, 0, 0, states=states, bucket=bucket)
    names = ("delayed", "in_flight", "parked", "dead")
    found = [p and p.states for p in (await client.series("1m")).points]
    seen = [tuple(states[n] for n in names) for states in found if states]
    # Before its first look a bucket is as it was then: who looked at it earlier is unknown.
    wanted = [(14, 1, 0, 0), (14, 1, 0, 0), (13, 2, 0, 0), (13, 1, 0, 1), (8, 0, 6, 1)]
    assert seen == wanted[: len(seen)] and len(seen) >= 4
    recorded.store.redis.hset(keys.series(recorded.namespace), "b3", f"{recorded.now_s} 1 1 1")
    assert all(p.states is None for p in (await client.series("1m")).points if p)


def test_fields_that_cannot_be_read_are_begun_anew(recorded: Recorded) -> None:
    name = keys.series(recorded.namespace)
    for junk in (b"\xc1", b"\x91\x01", msgspec.msgpack.encode({"a": {"b": 1}}), b""):
        fields = ["workers", "b7", *(f"{r}{START_S // s % n}" for r, (s, n) in RINGS.items())]
        recorded.store.redis.hset(name, mapping=dict.fromkeys(fields, junk))
        recorded.added.clear()
        recorded.send(1, {"published": 3})
        Totals(recorded).tell("b", 5, 0, 0)
        slot = read_slot(recorded.store.redis.hget(name, f"s{START_S % 61}"))
        assert slot is not None
        assert slot.counts == {"published": 3}


@pytest.mark.parametrize(
    "odd",
    [
        ("a", 0, 0, 0, {}, {}), (1, 0, 0, "x", {}, {}), (1, 0, 0, 0, 3, {}), (1, 0, 0, 0, {}, "x"),
        (1, 0, 0, 0, {"published": "x"}, {}), (1, 0, 0, 0, {}, {"kafka:t0": 7}),
    ],
)  # fmt: skip
def test_a_slot_of_this_period_that_makes_no_sense_stops_nothing(
    recorded: Recorded, odd: tuple[Any, ...]
) -> None:
    name = keys.series(recorded.namespace)
    slots = {
        f"{ring}{START_S // s % n}": msgspec.msgpack.encode([START_S // s, *odd])
        for ring, (s, n) in RINGS.items()
    }
    recorded.store.redis.hset(name, mapping=slots)
    recorded.send(1, {"published": 3})
    for field in slots:
        slot = read_slot(recorded.store.redis.hget(name, field))
        assert slot is not None
        assert slot.counts == {"published": 3}


@pytest.mark.slow_with("sync")
async def test_the_series_of_two_workers_add_up(
    crew: Crew, arrived: Arrived, make: Maker, redis_url: str, namespace: str
) -> None:
    crew.start("w1", lease=CALM)
    crew.start("w2", lease=CALM)
    await crew.shared("w1", "w2")
    client = make(redis_url, namespace=namespace)

    async def both_report() -> bool:
        recent = await client.rates()
        if recent.missing or recent.silent or not recent.rates[1].covered_s > 2:
            return False
        # What is scheduled before a bucket was looked at counts as older.
        known = await crew.store.redis.hkeys(keys.series(namespace))
        return sum(name.startswith(b"b") for name in known) == BUCKETS

    await until_async(both_report, "both workers report")
    messages = [Message(TO, b"x", delay="10ms") for _ in range(300)]
    ids = [receipt.id for receipt in await crew.client.schedule_many(messages)]
    cancelled = await crew.client.schedule(TO, b"x", delay="1h")
    await crew.client.reschedule(cancelled.id, delay="2h")
    await crew.client.cancel(cancelled.id)
    await arrived.all(ids)
    wanted = {"published": 300, "scheduled": 301, "cancelled": 1, "rescheduled": 1}

    async def sums() -> Counter[str]:
        found: Counter[str] = Counter()
        for point in (await client.series("1s")).points:
            found.update({} if point is None else point.counts)
        return found

    async def all_counted() -> bool:
        return dict(await sums()) == wanted

    await until_async(all_counted, "all are counted")
    await crew.client.schedule_many([Message(TO, b"x", delay="1h") for _ in range(7)])

    async def all_delayed() -> bool:
        last = (await client.series("1s")).points[-1]
        states = {"delayed": 7, "in_flight": 0, "parked": 0, "dead": 0}
        return last is not None and last.states == states

    await until_async(all_delayed, "the states are told")
    series = await client.series("1s")
    assert (len(series.points), series.step_ms, series.points[0]) == (60, 1000, None)
    recent = await client.rates()
    minute = recent.rates[1]
    assert [each.window_s for each in recent.rates] == [1, 60, 900]
    assert minute.per_s["published"] * minute.covered_s == pytest.approx(300)
    assert minute.destinations[TO]["published"] * minute.covered_s == pytest.approx(300)
    assert minute.lateness is not None
    late = minute.lateness
    assert 0 <= late.p50_ms <= late.p99_ms <= late.max_ms


async def test_no_other_step_is_offered(make: Maker, redis_url: str, namespace: str) -> None:
    with pytest.raises(MessageError, match="step"):
        await make(redis_url, namespace=namespace).series("5s")

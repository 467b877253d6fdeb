"""What workers are granted of a rate, by the script, on simulated time: exact, whoever asks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from delaybridge.errors import StoreError
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.lossy_proxy import LossyProxy

PLACE = "kafka:orders"
BURST_S = 0.2
LOTS = 10**6


class Redis:
    """The allowances of one namespace, on a clock that stands still."""

    def __init__(self, url: str, namespace: str, now_ms: int) -> None:
        self.store, self.namespace, self.now_ms = Store(url), namespace, now_ms

    @property
    def key(self) -> str:
        return keys.allowances(self.namespace)

    def allow(self, *wanted: tuple[int, dict[str, float]]) -> list[tuple[int, int]]:
        command = registry.allow(
            self.namespace,
            [(want, list(places.items())) for want, places in wanted],
            now_ms=self.now_ms,
        )
        (answer,) = self.store.run([command])
        return answer

    def take(self, want: int, rate: float, place: str = PLACE) -> int:
        ((granted, _),) = self.allow((want, {place: rate}))
        return granted


@pytest.fixture
def at(redis_url: str, namespace: str, now_ms: int) -> Iterator[Redis]:
    redis = Redis(redis_url, namespace, now_ms)
    yield redis
    redis.store.redis.delete(redis.key)
    redis.store.close()


def test_a_new_place_has_one_message_and_then_its_rate(at: Redis) -> None:
    assert at.allow((9, {PLACE: 10})) == [(1, 100)]
    at.now_ms += 99
    assert at.allow((9, {PLACE: 10})) == [(0, 1)]
    at.now_ms += 1
    assert at.allow((9, {PLACE: 10})) == [(1, 100)]


def test_no_more_is_granted_than_is_wanted_and_the_rest_is_kept(at: Redis) -> None:
    assert at.take(1, 100) == 1
    at.now_ms += 50
    assert [at.take(2, 100) for _ in range(4)] == [2, 2, 1, 0]


def test_a_place_saves_up_one_message_and_those_of_a_fifth_of_a_second(at: Redis) -> None:
    at.take(1, 100)
    at.now_ms += 3_600_000
    assert at.take(LOTS, 100) == 1 + 100 * BURST_S


def test_asking_late_for_the_next_message_costs_nothing_of_a_low_rate(at: Redis) -> None:
    begin_ms, drawn, granted = at.now_ms, random.Random(1), 0
    for n in range(100):
        at.now_ms = begin_ms + 500 * n + (drawn.randrange(200) if n else 0)
        granted += at.take(1, 2)
    assert granted == 100


@pytest.mark.parametrize("first", [3, 0])
def test_a_destination_gets_only_what_all_its_places_grant(at: Redis, first: int) -> None:
    at.allow((1, {"kafka": 1000}), (1, {PLACE: 100}))
    at.now_ms += 50
    assert at.allow((first, {"kafka": 1000, PLACE: 100})) == [(first, 0 if first < 5 else 10)]
    assert at.allow((9, {"kafka": 1000, PLACE: 100})) == [(5 - first, 10)]
    assert at.take(LOTS, 1000, "kafka") == 45  # the others were not spent


def test_two_destinations_of_a_broker_share_its_rate(at: Redis) -> None:
    at.take(1, 100, "kafka")
    at.now_ms += 100
    shared = {"kafka": 100.0}
    assert at.allow((7, shared), (7, shared)) == [(7, 0), (3, 10)]


def test_a_clock_set_back_grants_nothing_extra_and_does_not_wait_until_it_is_there_again(
    at: Redis,
) -> None:
    at.take(1, 10)
    at.now_ms -= 3_600_000
    assert at.allow((9, {PLACE: 10})) == [(0, 100)]
    at.now_ms += 100
    assert at.take(9, 10) == 1


def test_a_clock_set_forth_grants_no_more_than_a_pause_does(at: Redis) -> None:
    at.take(1, 10)
    at.now_ms += 3_600_000
    assert at.take(LOTS, 10) == 3


@pytest.mark.parametrize(
    ("before", "after", "pause_ms"), [(0.001, 5000, 1), (5000, 0.001, 1_000_000), (5, 10, 100)]
)
def test_a_changed_rate_holds_from_the_next_call(
    at: Redis, before: float, after: float, pause_ms: int
) -> None:
    at.take(LOTS, before)
    assert at.allow((LOTS, {PLACE: after})) == [(0, pause_ms)]
    at.now_ms += pause_ms
    assert at.take(LOTS, after) == max(1, after * pause_ms // 1000)


@pytest.mark.parametrize("garbage", ["", "nan", "inf", "-inf", "1e400", "x", "\0", "9" * 400])
def test_garbage_in_the_field_costs_at_most_one_message_or_one_burst(
    at: Redis, garbage: str
) -> None:
    at.store.redis.hset(at.key, PLACE, garbage)
    assert 0 <= at.take(LOTS, 100) <= 1 + 100 * BURST_S
    at.now_ms += 50
    assert at.take(LOTS, 100) == 5


@pytest.mark.parametrize("rate", [1e-9, 1e-5, 1e6])
def test_extreme_rates_are_exact_too(at: Redis, rate: float) -> None:
    assert at.take(1, rate) == 1
    ((granted, pause_ms),) = at.allow((1, {PLACE: rate}))
    assert (granted, pause_ms) == (0, min(max(1, round(1000 / rate)), 30 * 24 * 3_600_000))
    at.now_ms += 1000
    assert at.take(LOTS, rate) == (BURST_S * rate + 1 if rate > 1 else 0)


def test_a_key_of_another_type_is_an_error_and_is_left_alone(at: Redis) -> None:
    at.store.redis.set(at.key, "x")
    with pytest.raises(StoreError, match="wrong type"):
        at.take(1, 100)
    assert at.store.redis.get(at.key) == b"x"


def test_a_lost_answer_costs_its_grant_and_never_doubles_it(at: Redis, redis_url: str) -> None:
    at.take(1, 100)
    at.now_ms += 100
    command = registry.allow(at.namespace, [(7, [(PLACE, 100.0)])], now_ms=at.now_ms)
    with LossyProxy(urlsplit(redis_url).port or 0) as proxy:
        store = Store(proxy.url)
        store.run([registry.store_time()])
        proxy.drop_next_replies(1)
        ((answer,),) = store.run([command])
        store.close()
    assert answer == (3, 10)  # of ten: seven were granted to the lost answer
    assert at.take(9, 100) == 0


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rate=st.floats(0.5, 20_000),
    workers=st.lists(
        st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3000)), max_size=30),
        min_size=1,
        max_size=4,
    ),
)
@example(rate=5542.41796875, workers=[[(0, 0), (201, 748), (0, 4), (130, 1078)]])  # 1830.0
def test_in_no_window_more_is_granted_than_rate_and_burst(
    at: Redis, rate: float, workers: list[list[tuple[int, int]]]
) -> None:
    """Workers that ask for any number after any pause: sum up every window between two grants."""
    at.store.redis.delete(at.key)
    begin_ms = at.now_ms
    asks = sorted(
        (begin_ms + sum(pause for pause, _ in worker[: n + 1]), want)
        for worker in workers
        for n, (_, want) in enumerate(worker)
    )
    grants = []
    for at.now_ms, want in asks:
        grants.append((at.now_ms, at.take(want, rate)))
    for first, (from_ms, _) in enumerate(grants):
        total = 0
        for to_ms, granted in grants[first:]:
            total += granted
            assert total <= rate * ((to_ms - from_ms) / 1000 + BURST_S) + 1 + 1e-3
    at.now_ms = begin_ms


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.5, 3, 100, 5000])
def test_workers_that_want_more_get_the_whole_rate_together(
    at: Redis, rate: float, workers: int
) -> None:
    """Each asks for a backlog, again when it is told to, but 25 ms to 100 ms late."""
    drawn = random.Random(workers)
    next_ms = dict.fromkeys(range(workers), at.now_ms)
    begin_ms, total, shares = at.now_ms, 0, dict.fromkeys(range(workers), 0)
    while at.now_ms < begin_ms + 10_000 + 40_000 * (rate < 10):
        worker = min(next_ms, key=lambda each: next_ms[each])
        at.now_ms = next_ms[worker]
        ((granted, pause_ms),) = at.allow((int(rate / 5) + 1, {PLACE: rate}))
        total += granted
        shares[worker] += granted
        next_ms[worker] += max(25, pause_ms) + drawn.randrange(75)
    took_s = (at.now_ms - begin_ms) / 1000
    assert 0.95 * rate * took_s - 1 <= total <= rate * (took_s + BURST_S) + 1
    assert min(shares.values()) > 0.5 * total / workers - 2

"""Shares of the buckets: even, the same for all workers, and few buckets move."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaybridge.scan.leases.fleet import fair_share

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=12, unique=True)
BUCKETS = st.sampled_from([1, 2, 4, 16, 64])
FLEETS = 100


def moved(before: dict[int, str], after: dict[int, str]) -> int:
    return sum(after[bucket] != worker for bucket, worker in before.items())


@given(NAMES, BUCKETS)
def test_it_is_even_to_within_one(workers: list[str], buckets: int) -> None:
    share = fair_share(workers, range(buckets))
    assert share.keys() == set(range(buckets))
    load = Counter(share.values())
    assert max(load.values()) - min(load[worker] for worker in workers) <= 1


@given(NAMES, BUCKETS, st.randoms(use_true_random=False))
def test_all_workers_agree_in_whatever_order_they_see_each_other(
    workers: list[str], buckets: int, order: random.Random
) -> None:
    seen = sorted(workers, key=lambda _: order.random())
    assert fair_share(seen, range(buckets)) == fair_share(workers, range(buckets))


def test_without_workers_there_are_no_shares() -> None:
    assert fair_share([], range(16)) == {}


@given(NAMES, st.text(min_size=13, max_size=20), BUCKETS)
def test_few_buckets_move_when_a_worker_joins_or_leaves(
    workers: list[str], other: str, buckets: int
) -> None:
    without, along = (
        fair_share(workers, range(buckets)),
        fair_share([*workers, other], range(buckets)),
    )
    ideal = -(-buckets // (len(workers) + 1))  # the share of the one who joins or leaves
    assert moved(without, along) <= min(buckets, 3 * ideal + 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("buckets", [16, 64])
def test_on_average_fewer_than_twice_the_necessary_buckets_move(workers: int, buckets: int) -> None:
    names = random.Random(8)
    moves = []
    for _ in range(FLEETS):
        fleet = [f"host-{names.randrange(10**6)}:{names.randrange(10**5)}" for _ in range(workers)]
        moves.append(
            moved(fair_share(fleet, range(buckets)), fair_share([*fleet, "new:1"], range(buckets)))
        )
    assert mean(moves) < 2 * buckets / (workers + 1)

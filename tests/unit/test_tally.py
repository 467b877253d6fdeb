"""Estimates by destination: right as often as they say, and exact if everything was read."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from delaybridge.operate.views.tally import OTHER, STATES, Tally, estimated, tallied
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.protocol.replies import Tallied

BUCKETS, TRIALS = 16, 400


def drawn(bucket: list[str], limit: int, chance: random.Random) -> Tallied:
    """What the script answers for a bucket that holds messages to these destinations."""
    read = bucket if len(bucket) <= limit else chance.sample(bucket, limit)
    return Tallied(len(bucket), len(read), Counter(read))


def test_what_was_read_as_a_whole_is_exact() -> None:
    strata = [Tallied(3, 3, {"a": 2, "b": 1}), Tallied(0, 0, {}), Tallied(5, 5, {"a": 5})]
    assert dict(estimated(strata)) == {"a": Tally(7), "b": Tally(1)}


@pytest.mark.parametrize(("buckets", "most_read"), [(1, 2000), (16, 375), (1000, 64 * 31)])
def test_redis_answers_others_between_two_parts(buckets: int, most_read: int) -> None:
    numbers = range(buckets)
    steps = tallied([Bucket("ns", number, "birth") for number in numbers])
    asked: list[str] = []
    commands = steps.send([10_000 for _ in next(steps)])
    try:
        while True:
            assert sum(int(command.args[0]) for command in commands) <= most_read
            asked += [command.keys[0] for command in commands]
            commands = steps.send([command.keys[0] for command in commands])
    except StopIteration as end:
        assert [len(of_state) for of_state in end.value] == [buckets] * len(STATES)
        assert sum(end.value, []) == asked
        assert len(set(asked)) == buckets * len(STATES)


def test_what_is_empty_is_read_at_once() -> None:
    """Each round trip counts where Redis is far away: there were 32 of them."""
    steps = tallied([Bucket("ns", number, "birth") for number in range(16)])
    sizes = [300 if "due" in command.args[0] else 0 for command in next(steps)]
    commands, trips = steps.send(sizes), 1
    with pytest.raises(StopIteration):
        while True:
            commands, trips = steps.send([None for _ in commands]), trips + 1
    assert trips <= 9


@pytest.mark.parametrize("share", [0.5, 0.05, 0.004])
@pytest.mark.parametrize("is_even", [True, False], ids=["even", "by key"])
def test_estimates_are_as_good_as_they_say(share: float, is_even: bool) -> None:
    chance = random.Random(5)
    shares = [share] * BUCKETS if is_even else [share * BUCKETS / 4] * 4 + [0.0] * (BUCKETS - 4)
    buckets = [["a"] * round(2000 * min(1, s)) for s in shares]
    buckets = [each + ["b"] * (2000 - len(each)) for each in buckets]
    truth = sum(each.count("a") for each in buckets)
    right = 0
    for _ in range(TRIALS):
        found = dict(estimated([drawn(each, 100, chance) for each in buckets]))
        tally = found.get("a", Tally(0, truth))  # none was drawn: it is not listed
        assert tally.error > 0
        right += abs(tally.messages - truth) <= tally.error
    assert right / TRIALS >= 0.93


def test_a_damaged_bucket_of_which_nothing_was_read_does_not_divide_by_zero() -> None:
    assert dict(estimated([Tallied(10, 0, {}), Tallied(1, 1, {"a": 1})])) == {"a": Tally(1)}


def test_destinations_beyond_two_hundred_share_one_count() -> None:
    counts = {f"d{number}": 1 for number in range(300)} | {"big": 50}
    found = dict(estimated([Tallied(350, 350, counts)]))
    assert found["big"] == Tally(50)
    assert found[OTHER] == Tally(101)
    assert len(found) == 201

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from delaybridge.accept.accept import check_id
from delaybridge.store.protocol.ids import Ids
from delaybridge.store.protocol.verbs import bucket_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def drawn(count: int, buckets: int) -> list[str]:
    ids = Ids(lambda: buckets)
    return [ids.draw() for _ in range(count)]


@pytest.mark.parametrize("buckets", [1, 2, 16, 64, 256, 16_384])
def test_ids_are_valid_and_unique(clock: list[float], buckets: int) -> None:
    found = drawn(20_000, buckets)
    assert len(set(found)) == len(found)
    assert {len(check_id(id)) for id in found} == {26}


@pytest.mark.parametrize("buckets", [2, 16, 64])
def test_a_run_is_for_one_bucket_and_runs_go_round_all_buckets(
    clock: list[float], buckets: int
) -> None:
    numbers = [bucket_of(id.encode(), buckets) for id in drawn(1100 * buckets, buckets)]
    runs = [(number, len(list(run))) for number, run in itertools.groupby(numbers)]
    assert all(length >= 60 for _, length in runs[:-1])
    turns = [number for number, _ in runs[: 2 * buckets]]
    assert turns[:buckets] == turns[buckets:]
    assert sorted(turns[:buckets]) == list(range(buckets))


@pytest.mark.parametrize("buckets", [256, 1024])
def test_with_many_buckets_a_run_is_for_a_few(clock: list[float], buckets: int) -> None:
    numbers = [bucket_of(id.encode(), buckets) for id in drawn(50_000, buckets)]
    assert len(set(numbers[:64])) <= buckets // 64
    assert len(set(numbers)) == buckets


def test_ids_sort_by_the_time_they_were_drawn() -> None:
    """To within some milliseconds: an older run is dropped."""
    ids = Ids(lambda: 16)
    first = [ids.draw() for _ in range(3)]
    assert first == sorted(first)
    later_s = time.monotonic() + 0.02
    while time.monotonic() < later_s:
        pass
    assert ids.draw() > max(first)


def test_a_run_of_an_idle_client_is_not_used_up(clock: list[float]) -> None:
    ids = Ids(lambda: 16)
    first, second = ids.draw(), ids.draw()
    assert first[:24] == second[:24]
    clock[0] += 0.011
    assert ids.draw()[:24] != first[:24]


def test_no_two_threads_draw_the_same_id(clock: list[float]) -> None:
    ids = Ids(lambda: 16)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [ids.draw() for _ in range(5000)], range(8)))
    assert len(set().union(*found)) == 40_000


def _send(ids: Ids, pipe: Connection) -> None:
    pipe.send((os.getpid(), [ids.draw() for _ in range(50)]))


def test_a_forked_process_draws_its_own(clock: list[float]) -> None:
    """Also in the middle of a run that it inherited."""
    ids, forking = Ids(lambda: 16), get_context("fork")
    ids.draw()
    found = [{ids.draw() for _ in range(5)}]
    for _ in range(2):
        ours, theirs = forking.Pipe()
        child = forking.Process(target=_send, args=(ids, theirs))
        child.start()
        pid, drawn = ours.recv()
        child.join()
        assert pid == child.pid
        found.append(set(drawn))
    found.append({ids.draw() for _ in range(50)})
    assert len(set().union(*found)) == sum(map(len, found)) == 155

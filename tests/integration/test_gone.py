"""Processes that stopped announcing themselves, and did not say that they leave."""

from __future__ import annotations

import pytest
import redis

from delaybridge import Client
from delaybridge.operate.notices.announcements import Gone
from delaybridge.operate.troubles.found import troubles
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.redis.store import Store
from tests.rigs.command_line import Run

ABOUT = b'{"host": "h", "pid": 7, "version": "1", "started_ms": 5}'
TTL_MS = 10_000


class Fleet:
    """Announcements, as of so many ms before now."""

    def __init__(self, store: Store, redis_url: str, namespace: str) -> None:
        self.store, self.namespace = store, namespace
        self.client = Client(redis_url, namespace=namespace)
        self.client.stats()
        self.now_ms = store.run([registry.store_time()])[0] // 1000

    def announce(
        self, name: str, ago_ms: int, ttl_ms: int = TTL_MS, kind: str = "worker"
    ) -> set[str]:
        """Those that are alive then."""
        of, now_ms = self.namespace, self.now_ms - ago_ms
        said = registry.announce(of, name, "a1", ttl_ms, ABOUT, kind=kind, now_ms=now_ms)
        return set(self.store.run([said])[0].expires_ms)

    @property
    def gone(self) -> list[str]:
        return [each.name for each in self.client.stats().gone]


@pytest.fixture
def fleet(store: Store, redis_url: str, namespace: str) -> Fleet:
    return Fleet(store, redis_url, namespace)


@pytest.mark.parametrize("is_seen", [True, False], ids=["by another", "by none"])
@pytest.mark.parametrize("kind", registry.KINDS)
def test_who_vanishes_is_named_and_when_it_was_heard_last(
    fleet: Fleet, kind: str, is_seen: bool
) -> None:
    fleet.announce("w1", 60_000, kind=kind)
    if is_seen:
        assert fleet.announce("w2", 0, kind=kind) == {"w2"}
    stats = fleet.client.stats()
    assert stats.gone == [Gone(kind, "w1", "h", 7, "1", 5, fleet.now_ms - 60_000)]
    assert [each.name for each in stats.workers] == ["w2"] * (is_seen and kind == "worker")


def test_who_leaves_or_comes_back_is_not_gone(fleet: Fleet) -> None:
    for name in ("left", "back", "hung"):
        fleet.announce(name, 60_000)
    fleet.announce("left", 55_000, 0)
    assert fleet.announce("other", 20_000) == {"other"}
    assert fleet.announce("back", 0) == {"back"}
    assert fleet.gone == ["other", "hung"]
    fleet.announce("hung", 0, 0)  # it was told to stop, and went on for as long
    assert fleet.gone == ["other"]


def test_a_vanished_process_is_forgotten_after_ten_minutes(fleet: Fleet) -> None:
    fleet.announce("w1", 600_000 + TTL_MS + 1000)
    fleet.announce("w2", 600_000 + TTL_MS - 30_000)
    fleet.announce("w3", 500_000)
    assert fleet.gone == ["w3", "w2"]
    fleet.announce("w4", 0)
    assert fleet.store.run([registry.fleet(fleet.namespace)[0]])[0].keys() == {b"w2", b"w3", b"w4"}


def test_the_latest_hundred_are_kept(fleet: Fleet) -> None:
    for number in range(103):
        fleet.announce(f"w{number}", 300_000 - number * 1000)
    fleet.announce("alive", 0)
    assert fleet.gone == [f"w{number}" for number in range(102, 2, -1)]
    assert fleet.announce("alive", 0) == {"alive"}


def test_a_clock_that_is_set_back_revives_none(fleet: Fleet) -> None:
    fleet.announce("dead", 60_000)
    assert fleet.announce("alive", 0) == {"alive"}
    assert fleet.announce("alive", 65_000) == {"alive"}


def test_an_entry_that_is_no_announcement_harms_nothing(fleet: Fleet, redis_url: str) -> None:
    scores = {"odd": 1000 - fleet.now_ms, "early": float("-inf"), "none": -1, "zero": 0}
    with redis.Redis.from_url(redis_url) as raw:
        raw.zadd(keys.workers(fleet.namespace), scores)
        raw.hset(keys.worker_info(fleet.namespace), "odd", b"{}\xff")
    assert fleet.gone == ["odd"]
    assert fleet.announce("alive", 0) == {"alive"}
    assert fleet.gone == ["odd"]


def test_one_that_was_killed_on_purpose_is_told_for_a_minute_and_is_no_incident(
    fleet: Fleet,
) -> None:
    fleet.announce("w1", 200_000)
    about = b'{"killed_by": "demo"}'
    for name, ago_ms in (("w2", 100_000), ("w3", 10_000)):
        now_ms = fleet.now_ms - ago_ms
        said = registry.announce(fleet.namespace, name, "a1", 1, about, now_ms=now_ms)
        fleet.store.run([said])
    found = troubles(fleet.client.stats())
    told = [(each.what, each.is_red) for each in found if each.code == "worker_silent"]
    assert told == [
        ("worker w1 on h stopped announcing itself 3m20s ago: killed, or hung", False),
        ("demo: w3 was killed on purpose", False),
    ]


def test_the_list_of_workers_names_who_took_over(fleet: Fleet, run: Run) -> None:
    said = b'{"host": "h", "ousted_by": "w2"}'
    fleet.store.run(
        [registry.announce(fleet.namespace, "w1", "a1", 1, said, now_ms=fleet.now_ms - 5_000)]
    )
    assert "w1 on h ended, w2 freed its buckets" in run("worker", "ls").err

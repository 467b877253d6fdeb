"""Claims and parked messages on real Redis: limits, order, unreadable records, one slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.message import Answer
from tests.rigs.bucket import World
from tests.rigs.sample_calls import SAMPLES
from tests.rigs.waiting import until
from tests.servers.process import free_port
from tests.servers.redis import RedisServer

# claim: limits, order, unreadable records


def test_claims_take_messages_by_score_within_their_limits_and_return_the_next_score(
    world: World, now: int
) -> None:
    for n in range(4):
        world.schedule(f"x{n}", now + n, payload=b"." * 87)  # 100 bytes with the head
    world.schedule("far", now + 60_000)
    owner = world.owner()
    two = world.run(owner.claiming(limit=2))
    assert [copy.id for copy in owner.received(two)] == ["x0", "x1"]
    assert two is not None and two.more and two.next_score == now + 2 + 255 / 256
    one = world.run(owner.claiming(max_bytes=1))
    assert [copy.id for copy in owner.received(one)] == ["x2"]
    last = world.run(owner.claiming())
    assert [copy.id for copy in owner.received(last)] == ["x3"]
    assert last is not None and not last.more and last.next_score == now + 60_000 + 255 / 256


def test_a_session_that_began_without_the_marks_ends_once_they_are_repaired(
    world: World, now: int
) -> None:
    world.claimed("m")
    world.redis.delete(world.key("marks"), world.key("lease"))
    owner = world.owner()
    again = {"turn": 9, "claimed": 9, "fired_claim": 9, "fired_score": 2**53 - 1, "look": 0}
    world.redis.hset(world.key("marks"), mapping=again)  # as `doctor` says
    assert world.run(owner.claiming()) is None
    assert [copy.id for copy in world.successor().claim()] == ["m"]


def test_a_claim_ends_with_the_record_that_reaches_its_bytes(world: World, now: int) -> None:
    sizes = [13, *([113] * 6)]  # with the head; after the first, twelve more seem to fit
    for n, size in enumerate(sizes):
        world.schedule(f"x{n}", now + n, payload=b"." * (size - 13))
    owner = world.owner()
    assert len(owner.claim(max_bytes=13 + 113)) == 2
    assert len(owner.claim(max_bytes=114)) == 2
    assert len(owner.claim(max_bytes=113)) == 1


def test_a_message_due_just_after_the_horizon_is_not_claimed(world: World, now: int) -> None:
    world.schedule("in", now + 100, priority=0)
    world.schedule("out", now + 101, priority=255)
    assert [copy.id for copy in world.owner().claim(ahead_ms=100)] == ["in"]


def test_a_message_without_payload_is_buried_and_does_not_stop_others(
    world: World, now: int
) -> None:
    world.schedule("gone", now)
    world.schedule("x", now + 1)
    world.redis.hdel(world.key("messages"), "gone")
    assert [copy.id for copy in world.owner().claim()] == ["x"]
    assert world.state()["dead_reason"] == {b"gone": b"payload_missing"}


def test_a_batch_returned_again_buries_messages_that_lost_their_payload(
    world: World, now: int
) -> None:
    world.schedule("gone", now)
    world.schedule("x", now + 1)
    owner = world.owner()
    world.run(owner.claiming())
    world.redis.hdel(world.key("messages"), "gone")
    assert [copy.id for copy in owner.claim()] == ["x"]
    assert b"gone" in world.state()["dead"]
    assert world.place("x") == "mirror"


def test_reclaim_buries_messages_without_payload(world: World, now: int) -> None:
    world.schedule("gone", now)
    world.owner().claim()
    world.redis.hdel(world.key("messages"), "gone")
    world.successor()
    assert world.state()["dead_reason"] == {b"gone": b"payload_missing"}


def test_a_claim_returns_the_remembered_failures(world: World, now: int) -> None:
    owner, (x,) = world.fired("x")
    owner.retry(x, delay_ms=10, maybe=True)
    world.schedule("y", now)
    claimed = world.run(owner.claiming())
    assert claimed is not None
    assert dict(zip(claimed.ids, claimed.tried, strict=True)) == {
        b"x": f"1:1:{now}".encode(),
        b"y": b"",
    }


def test_every_verb_takes_many_messages_in_one_call(world: World, now: int) -> None:
    names = [f"x{n:04}" for n in range(2500)]
    messages = [
        Accepted(name, b"", str(now + n % 7), 255, b"payload") for n, name in enumerate(names)
    ]
    world.run(world.scheduling_all(messages))
    owner = world.owner()
    copies = owner.claim(limit=5000)
    assert len(copies) == 2500
    owner.retry(*copies)
    copies = owner.claim(limit=5000)
    owner.park(*copies)
    world.run(owner.unparking(limit=5000))
    copies = owner.claim(limit=5000)
    assert len(owner.fire(now + 10)) == 2500
    owner.settle(*copies)
    assert world.state().keys() == {"lease", "marks"}


# settle: a claim as a whole, and in parts


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 1, 4, 0, 2]])
def test_a_claim_that_is_settled_as_a_whole_leaves_nothing(world: World, order: list[int]) -> None:
    owner, copies = world.claimed("a", "b", "c", "d", "e")
    owner.settle(*(copies[i] for i in order))
    assert [world.place(copy.id) for copy in copies] == [None] * 5


@pytest.mark.parametrize("named", ["abcdx", "badcb"])
def test_as_many_ids_as_a_claim_has_left_do_not_settle_one_that_is_not_named(
    world: World, now: int, named: str
) -> None:
    owner, copies = world.claimed(*"abcdex")
    world.cancel("x")
    world.schedule("x", now + 60_000)
    by_id = {copy.id: copy for copy in copies}
    owner.settle(*(by_id[id] for id in named))
    places = [world.place(id) for id in "abcdex"]
    assert places == [None, None, None, None, "mirror", "due"]
    owner.settle(by_id["e"])
    assert world.place("e") is None


def test_an_id_of_a_later_claim_is_not_settled_with_all_of_an_earlier_one(
    world: World, now: int
) -> None:
    owner, copies = world.claimed(*"abcde")
    world.replace("e", now)
    later = owner.claim()
    assert [copy.id for copy in later] == ["e"]
    owner.settle(*copies)
    assert [world.place(id) for id in "abcde"] == [None, None, None, None, "mirror"]


def test_sixteen_messages_make_a_tree_of_due_and_mirror_and_leave_nothing_else(
    world: World, now: int
) -> None:
    owner = world.owner()
    for first in range(0, 18, 6):
        some = [Accepted(f"x{n}", b"", str(now), 0, b"payload") for n in range(first, first + 6)]
        world.run(world.scheduling_all(some))
    encodings = [world.redis.object("encoding", world.key("due"))]
    copies = owner.claim()
    encodings.append(world.redis.object("encoding", world.key("mirror")))
    assert encodings == [b"skiplist"] * 2 and len(copies) == 18
    owner.settle(*copies)
    assert not world.redis.exists(world.key("mirror"), world.key("messages"))


# parked


def test_parked_messages_are_not_claimed_and_come_back_in_order(world: World, now: int) -> None:
    for n in range(4):
        world.schedule(f"x{n}", now + n)
    owner = world.owner()
    owner.park(*owner.claim())
    assert owner.claim() == []
    assert world.run(owner.unparking(limit=2)) == 2
    assert [copy.id for copy in owner.claim()] == ["x0", "x1"]
    assert world.run(owner.unparking(ids=["x3", "unheard of"])) == 1
    assert [copy.id for copy in owner.claim()] == ["x3"]
    assert world.tried("x0") is None


def test_a_message_parked_before_the_fire_that_would_cover_it_can_still_be_cancelled(
    world: World, now: int
) -> None:
    owner, (x, y) = world.claimed("x", "y")
    owner.park(x)
    assert owner.fire(now + 0.999) == [y]
    assert world.cancel("x") == Answer.CANCELLED
    assert owner.fire(now + 0.999) == []


# one slot of a cluster


@pytest.fixture
def in_cluster(now_ms: int) -> Iterator[World]:
    """A bucket on the only node of a cluster."""
    # The default port of the bus is in the range of those for outgoing connections.
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    with RedisServer(options) as server, World(server.url, "slots", now_ms) as world:
        world.redis.execute_command("CLUSTER ADDSLOTS", *range(16_384))
        # A node refuses writes for two seconds after its start.
        until(lambda: world.redis.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield world


def test_every_script_loads_and_its_keys_are_in_one_slot(in_cluster: World) -> None:
    for verb, sample in SAMPLES.items():
        keys = sample(1).keys
        slots = {in_cluster.redis.execute_command("CLUSTER KEYSLOT", key) for key in keys}
        assert len(slots) == 1, verb
        in_cluster.run(sample(2))
        in_cluster.redis.flushdb()  # `begin` leaves keys of a wrong type


def test_a_whole_life_runs_on_a_node_of_a_cluster(in_cluster: World, now_ms: int) -> None:
    owner, (x,) = in_cluster.fired("x")
    owner.bury(x)
    in_cluster.kick("x")
    (x,) = owner.claim()
    owner.park(x)
    in_cluster.run(owner.unparking())
    owner.claim()
    in_cluster.reschedule("x", now_ms)
    owner = in_cluster.successor()
    owner.settle(*owner.claim())
    assert in_cluster.place("x") is None

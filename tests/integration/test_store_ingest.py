"""What ingest asks of the store: sources, ids that are in flight, and quarantine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from delaybridge.accept import Accepted
from delaybridge.commands import Source
from delaybridge.message import Answer, OnConflict, State
from tests.integration.bucket import World

CREATED, DUPLICATE, CONFLICT = Answer.CREATED, Answer.DUPLICATE, Answer.CONFLICT


@pytest.fixture
def world(any_redis_url: str, namespace: str, now_ms: int) -> Iterator[World]:
    with World(any_redis_url, namespace, now_ms) as world:
        yield world


def read(world: World, items: Sequence[tuple[int, str]], payload: bytes = b"p") -> list[Answer]:
    """Schedule what was read at these offsets of one partition."""
    offsets = [offset for offset, _ in items]
    messages = [
        (world.stamp(), Accepted(id, b"", str(world.now_ms), 255, payload)) for _, id in items
    ]
    command = world.bucket.schedule(
        messages, None, source=Source("topic:0", offsets), first=True, now_ms=world.now_ms
    )
    answers = world.run(command)
    assert answers is not None
    return [answer for answer, _ in answers]


def publish(world: World) -> None:
    """Everything that is due goes out and is settled."""
    owner = world.owner()
    copies = owner.claim()
    owner.fire(world.now_ms + 0.999)
    world.run(owner.settling(*copies))
    world.end_lease()


def test_what_was_read_before_is_left_out_also_when_it_was_published_already(world: World) -> None:
    assert read(world, [(5, "a"), (6, "b")]) == [CREATED, CREATED]
    publish(world)
    assert read(world, [(5, "a"), (6, "b"), (7, "c")]) == [DUPLICATE, DUPLICATE, CREATED]
    publish(world)
    assert read(world, [(7, "c")]) == [DUPLICATE]
    assert world.run(world.bucket.get("a")) is None


def test_two_partitions_are_read_independently(world: World) -> None:
    assert read(world, [(5, "a")]) == [CREATED]
    command = world.scheduling("b", world.now_ms, policy=None, source=Source("topic:1", [5]))
    answers = world.run(command)
    assert answers is not None
    assert answers[0][0] is CREATED


def test_offsets_beyond_32_bits_are_exact(world: World) -> None:
    far = 2**52
    assert read(world, [(far, "a"), (far + 1, "b")]) == [CREATED, CREATED]
    assert read(world, [(far + 1, "b"), (far + 2, "c")]) == [DUPLICATE, CREATED]


def test_a_conflict_ends_the_answers_and_was_not_read(world: World) -> None:
    world.schedule("x", world.now_ms, payload=b"other")
    assert read(world, [(5, "a"), (6, "x"), (7, "b")]) == [CREATED, CONFLICT]
    assert read(world, [(6, "x"), (7, "b")]) == [CONFLICT], "also where the answer was lost"
    assert read(world, [(7, "b")]) == [CREATED]


def test_an_id_whose_message_is_fired_is_in_flight_until_it_is_settled(world: World) -> None:
    world.schedule("x", world.now_ms, payload=b"p")
    owner = world.owner()
    copies = owner.claim()
    assert read(world, [(5, "x")]) == [DUPLICATE], "claimed is not fired"
    owner.fire(world.now_ms + 0.999)
    assert read(world, [(6, "x"), (7, "b")]) == [Answer.IN_FLIGHT]
    world.run(owner.settling(*copies))
    assert read(world, [(6, "x"), (7, "b")]) == [CREATED, CREATED]


def test_a_call_sent_again_is_answered_as_before_though_its_message_is_fired(world: World) -> None:
    sent = world.stamp(), Accepted("x", b"", str(world.now_ms), 255, b"p")

    def send() -> Answer:
        command = world.bucket.schedule([sent], None, first=True, now_ms=world.now_ms)
        answers = world.run(command)
        assert answers is not None
        return answers[0][0]

    assert send() is CREATED
    owner = world.owner()
    owner.claim()
    owner.fire(world.now_ms + 0.999)
    assert send() is CREATED
    assert world.schedule("x", world.now_ms, payload=b"p", policy=None) is Answer.IN_FLIGHT


def test_without_waiting_a_fired_message_of_the_same_content_is_a_duplicate(world: World) -> None:
    world.schedule("x", world.now_ms, payload=b"p")
    owner = world.owner()
    owner.claim()
    owner.fire(world.now_ms + 0.999)
    assert world.schedule("x", world.now_ms, payload=b"p") is DUPLICATE
    assert world.schedule("x", world.now_ms, payload=b"q") is CONFLICT
    assert world.schedule("x", world.now_ms, payload=b"p", policy=None) is Answer.IN_FLIGHT
    assert world.schedule("x", world.now_ms, policy=OnConflict.REPLACE) is Answer.IN_FLIGHT


def test_a_cancel_read_again_undoes_no_later_schedule(world: World) -> None:
    read(world, [(1, "x")])
    assert world.run(world.canceling("x", "topic:0", 2)) is Answer.CANCELLED
    read(world, [(3, "x")])
    assert world.run(world.canceling("x", "topic:0", 2)) is Answer.UNKNOWN
    assert world.run(world.canceling("x", "topic:0", 4)) is Answer.CANCELLED


def test_quarantined_messages_lie_in_the_dead_set_and_can_be_kicked(world: World) -> None:
    assert world.run(world.quarantining("q", reason="ingress: bad_time")) == [CREATED]
    row = world.run(world.bucket.get("q"))
    assert (row.state, row.reason, row.record[13:]) == (
        State.DEAD,
        "ingress: bad_time",
        b"payload",
    )
    assert world.run(world.kicking("q")) is Answer.KICKED
    assert world.run(world.bucket.get("q")).state is State.DELAYED


def test_a_quarantine_never_touches_another_message(world: World) -> None:
    world.schedule("x", world.now_ms)
    assert world.run(world.quarantining("x", "y")) == [CONFLICT, CREATED]
    assert world.run(world.bucket.get("x")).state is State.DELAYED

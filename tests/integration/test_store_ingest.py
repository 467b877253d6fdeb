"""The store as ingest uses it: sources, ids in flight, and quarantine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.ingest.reach import reach_of
from delaybridge.ingest.routes import Route
from delaybridge.message import Answer, ConflictPolicy, OnConflict, Record, State, encode_record
from delaybridge.recurring.stored import fence
from delaybridge.store.protocol.verbs import SourceOffsets
from tests.rigs.bucket import World

CREATED, DUPLICATE, CONFLICT = Answer.CREATED, Answer.DUPLICATE, Answer.CONFLICT
KINDS = {"rabbitmq": "rabbitmq", "kafka": "kafka", "eu-1": "kafka", "s": "redis"}
EXCHANGE = Route("rabbitmq", "rabbitmq", "orders.delay", "orders")
TOPIC = Route("kafka", "kafka", "orders.delay", "orders")
ODD = EXCHANGE._replace(target="a/b%c(é)")


def read(world: World, items: Sequence[tuple[int, str]], payload: bytes = b"p") -> list[Answer]:
    """Schedule messages read at these offsets of one partition."""
    offsets = [offset for offset, _ in items]
    messages = [
        (world.stamp(), Accepted(id, b"", str(world.now_ms), 255, payload)) for _, id in items
    ]
    command = world.bucket.schedule(
        messages,
        OnConflict.FAIL,
        source=SourceOffsets("topic:0", offsets),
        first=True,
        now_ms=world.now_ms,
    )
    answers = world.run(command)
    assert answers is not None
    return [answer for answer, _ in answers]


def publish(world: World) -> None:
    """Publish and settle everything that is due."""
    owner = world.owner()
    copies = owner.claim()
    owner.fire(world.now_ms + 0.999)
    world.run(owner.settling(*copies))
    world.end_lease()


def test_messages_read_before_are_skipped_even_if_published_already(world: World) -> None:
    assert read(world, [(5, "a"), (6, "b")]) == [CREATED, CREATED]
    publish(world)
    assert read(world, [(5, "a"), (6, "b"), (7, "c")]) == [DUPLICATE, DUPLICATE, CREATED]
    publish(world)
    assert read(world, [(7, "c")]) == [DUPLICATE]
    assert world.run(world.bucket.get("a")) is None


def test_two_partitions_are_read_independently(world: World) -> None:
    assert read(world, [(5, "a")]) == [CREATED]
    command = world.scheduling("b", world.now_ms, source=SourceOffsets("topic:1", [5]))
    answers = world.run(command)
    assert answers is not None
    assert answers[0][0] is CREATED


def test_offsets_beyond_32_bits_are_exact(world: World) -> None:
    far = 2**52
    assert read(world, [(far, "a"), (far + 1, "b")]) == [CREATED, CREATED]
    assert read(world, [(far + 1, "b"), (far + 2, "c")]) == [DUPLICATE, CREATED]


def test_a_fenced_source_reads_no_more_and_tells_where_it_was_however_often(world: World) -> None:
    assert read(world, [(6, "a"), (7, "b")]) == [CREATED, CREATED]
    for _ in range(3):
        assert world.run(fence(world.bucket, ["topic:0", "unknown"])) == [7, None]
    assert read(world, [(8, "c")]) == [DUPLICATE]
    assert world.place("c") is None


def test_a_conflict_ends_the_answers_and_does_not_count_as_read(world: World) -> None:
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


def test_a_call_sent_again_gets_the_same_answer_even_if_its_message_is_fired(world: World) -> None:
    sent = world.stamp(), Accepted("x", b"", str(world.now_ms), 255, b"p")

    def send() -> Answer:
        command = world.bucket.schedule([sent], OnConflict.FAIL, first=True, now_ms=world.now_ms)
        answers = world.run(command)
        assert answers is not None
        return answers[0][0]

    assert send() is CREATED
    owner = world.owner()
    owner.claim()
    owner.fire(world.now_ms + 0.999)
    assert send() is CREATED
    assert world.schedule("x", world.now_ms, payload=b"p") is Answer.IN_FLIGHT


@pytest.mark.parametrize("policy", OnConflict)
@pytest.mark.parametrize("payload", [b"p", b"q"])
def test_a_fired_message_is_in_flight_whatever_the_policy_and_the_content(
    world: World, policy: OnConflict, payload: bytes
) -> None:
    world.schedule("x", world.now_ms, payload=b"p")
    owner = world.owner()
    copies = owner.claim()
    owner.fire(world.now_ms + 0.999)
    again = world.scheduling("x", world.now_ms, policy=policy, payload=payload)
    assert world.run(again) == [(Answer.IN_FLIGHT, world.now_ms)]
    world.run(owner.settling(*copies))
    assert world.run(again) == [(CREATED, world.now_ms)]


def test_a_cancel_read_again_undoes_no_later_schedule(world: World) -> None:
    read(world, [(1, "x")])
    assert world.run(world.canceling("x", "topic:0", 2)) is Answer.CANCELLED
    read(world, [(3, "x")])
    assert world.run(world.canceling("x", "topic:0", 2)) is Answer.UNKNOWN
    assert world.run(world.canceling("x", "topic:0", 4)) is Answer.CANCELLED


def test_quarantined_messages_are_in_the_dead_set_and_can_be_kicked(world: World) -> None:
    assert world.run(world.quarantining("q", reason="ingress: bad_time")) == [CREATED]
    row = world.run(world.bucket.get("q"))
    assert (row.state, row.reason, row.record[13:]) == (State.DEAD, "ingress: bad_time", b"payload")
    assert world.run(world.kicking("q")) is Answer.KICKED
    assert world.run(world.bucket.get("q")).state is State.DELAYED


def test_a_quarantine_never_touches_another_message(world: World) -> None:
    world.schedule("x", world.now_ms)
    assert world.run(world.quarantining("x", "y")) == [CONFLICT, CREATED]
    assert world.run(world.bucket.get("x")).state is State.DELAYED


def test_a_quarantine_with_the_same_stamp_and_other_content_is_another_one(world: World) -> None:
    first, other = ((b"1234", "q", payload, "why") for payload in (b"one", b"other"))
    for sent, answer in ((first, CREATED), (first, CREATED), (other, CONFLICT)):
        command = world.bucket.quarantine([sent], first=True, now_ms=world.now_ms)
        assert world.run(command) == [answer]


def test_a_quarantine_takes_over_a_bucket_of_another_birth_id_only_without_messages(
    world: World,
) -> None:
    world.redis.hset(world.key("marks"), "birth", "another")
    assert world.run(world.quarantining("q")) == [CREATED]
    world.redis.hset(world.key("marks"), "birth", "another")
    assert world.run(world.quarantining("r")) is None


def bound_for(destination: str) -> bytes:
    return encode_record(Record(destination, b"body"))


@pytest.mark.parametrize(
    ("route", "destinations", "trust", "within", "beyond"),
    [
        (
            *(EXCHANGE, (), ()),
            ("rabbitmq:orders/", "rabbitmq:orders/a.b"),
            ("rabbitmq:orders2/a", "rabbitmq:order/s", "rabbitmq:/orders", "kafka:orders"),
        ),
        (TOPIC, (), (), ("kafka:orders",), ("kafka:orders.x", "kafka:order", "eu-1:orders")),
        (ODD, (), (), ("rabbitmq:a%2Fb%25c%28%C3%A9%29/k",), ("rabbitmq:a/b%25c%28%C3%A9%29/k",)),
        (
            *(EXCHANGE, ("rabbitmq:audit-*", "rabbitmq:/q", "kafka:*"), ()),
            ("rabbitmq:audit-eu/k", "rabbitmq:/q"),
            ("rabbitmq:audit/k", "rabbitmq:x/audit-eu/k", "rabbitmq:/qq", "kafka:audit-eu"),
        ),
        (
            *(TOPIC, ("eu*:pay.*",), ()),
            ("eu-1:pay.x", "kafka:orders"),
            ("eu-1:payx", "kafka:pay.x", "eu-1:xpay.x"),
        ),
        (
            *(TOPIC, (), ("orders.delay=rabbitmq:audit", "kafka:orders.*=s:*", "pay.delay=*")),
            ("rabbitmq:audit/k", "s:stream", "kafka:orders"),
            ("rabbitmq:pay/k", "kafka:pay"),
        ),
        (
            *(TOPIC, ("kafka:a*b*c",), ("*=rabbitmq:a*b*", "*=rabbitmq:/q*x*y")),
            ("kafka:abc", "kafka:abcbc", "rabbitmq:ab/", "rabbitmq:abab/k", "rabbitmq:/qxxyy"),
            (
                "kafka:ab",
                "kafka:abcd",
                "kafka:xabc",
                "rabbitmq:a/b",
                "rabbitmq:/qxz",
                "rabbitmq:/qy",
            ),
        ),
        (TOPIC, (), ("*=*",), ("rabbitmq:/q", "gone:x", "kafka:" + "x" * 249), ()),
    ],
)
def test_a_source_reaches_the_destinations_of_its_patterns(
    world: World,
    route: Route,
    destinations: Sequence[str],
    trust: Sequence[str],
    within: Sequence[str],
    beyond: Sequence[str],
) -> None:
    reach = reach_of(route, KINDS, destinations, trust)
    for destination in (*within, *beyond):
        due_ms, payload = world.now_ms + 500, bound_for(destination)
        world.schedule("x", due_ms, payload=payload)
        answers = [
            world.schedule("x", due_ms, payload=payload, policy=OnConflict.REPLACE, reach=reach),
            world.run(world.rescheduling("x", due_ms, reach=reach)),
            world.run(world.canceling("x", reach=reach)),
        ]
        expected = [Answer.REPLACED, Answer.RESCHEDULED, Answer.CANCELLED]
        if destination not in within:
            expected = [Answer.FOREIGN] * 3
        assert (destination, answers) == (destination, expected)
        world.cancel("x")


def test_a_pattern_with_many_stars_costs_in_proportion_to_the_name(world: World) -> None:
    """In one Lua pattern each star multiplies the cost: this would take for ever."""
    stars = "*".join(["kafka:", *"a" * 30, "b"])
    reach = reach_of(TOPIC, KINDS, (stars,), (f"*={stars.replace('kafka', 'rabbitmq')}",))
    for destination in ("kafka:" + "a" * 249, "rabbitmq:" + "a" * 249 + "/" + "a" * 249):
        world.schedule("x", world.now_ms + 500, payload=bound_for(destination))
        assert world.run(world.canceling("x", reach=reach)) is Answer.FOREIGN
        world.cancel("x")


@pytest.mark.parametrize("payload", [b"", b"\x98", b"\x98\xd9", b"\x98\x05", b"\xff" * 40])
def test_a_record_without_a_destination_is_outside_every_reach(
    world: World, payload: bytes
) -> None:
    reach = reach_of(TOPIC, KINDS, (), ())
    world.schedule("x", world.now_ms, payload=payload)
    assert world.run(world.canceling("x", reach=reach)) is Answer.FOREIGN
    assert world.schedule("x", world.now_ms, policy=OnConflict.REPLACE, reach=reach) == "foreign"
    assert world.cancel("x") is Answer.CANCELLED


@pytest.mark.parametrize("policy", [*OnConflict])
def test_a_message_of_another_source_is_not_changed(world: World, policy: ConflictPolicy) -> None:
    mine, reach = bound_for("kafka:orders"), reach_of(TOPIC, KINDS, (), ())
    world.schedule("x", world.now_ms + 500, payload=bound_for("kafka:pay"))
    before = world.state()
    send = {"payload": mine, "policy": policy, "reach": reach}
    assert world.schedule("x", world.now_ms, **send) is Answer.FOREIGN
    assert world.run(world.canceling("x", reach=reach)) is Answer.FOREIGN
    assert world.run(world.rescheduling("x", world.now_ms, reach=reach)) is Answer.FOREIGN
    assert world.state() == before
    # it does not count as read either: ingest may crash before it has quarantined it
    source = {"source": SourceOffsets("topic:0", [5])}
    assert world.schedule("x", world.now_ms, **send, **source) is Answer.FOREIGN
    assert world.state() == before


def test_a_tombstone_for_a_message_of_another_source_does_not_count_as_read(world: World) -> None:
    reach = reach_of(TOPIC, KINDS, (), ())
    world.schedule("x", world.now_ms, payload=bound_for("kafka:pay"))
    before = world.state()
    command = world.canceling("x", "topic:0", 2, otherwise=True, reach=reach)
    assert world.run(command) is Answer.FOREIGN
    assert world.state() == before


def test_a_reschedule_read_again_undoes_no_later_one(world: World) -> None:
    read(world, [(1, "x")])
    first, second = world.now_ms + 1000, world.now_ms + 2000
    assert world.run(world.rescheduling("x", first, "topic:0", 2)) is Answer.RESCHEDULED
    assert world.run(world.rescheduling("x", second, "topic:0", 3)) is Answer.RESCHEDULED
    assert world.run(world.rescheduling("x", first, "topic:0", 2)) is Answer.UNKNOWN
    assert int(world.score("x") or 0) == second


def test_a_cancel_says_if_the_message_may_have_been_delivered(world: World) -> None:
    assert world.schedule("x", world.now_ms, maybe=True) is CREATED
    assert world.cancel("x") is Answer.CANCELLED_MAYBE_DELIVERED
    world.schedule("x", world.now_ms)
    assert world.schedule("x", world.now_ms, maybe=True) is DUPLICATE
    assert world.reschedule("x", world.now_ms) is Answer.RESCHEDULED_MAYBE_DELIVERED
    assert world.schedule("x", world.now_ms, payload=b"q", maybe=True) is CONFLICT

"""What happens to messages on the wheel: commands of clients, lost replies, lost leases."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from delaybridge.events import LeaseAcquired, Revoked
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, RigFactory, message, when


async def test_a_message_cancelled_on_the_wheel_is_never_delivered(rig: Rig) -> None:
    await rig.claim(*(message(id, SOON_MS) for id in "xyz"))
    assert await rig.client.cancel("y") == "cancelled"
    await rig.live_until(SOON_MS + 5000)
    assert sorted(rig.memory.ids) == ["x", "z"]
    assert sum(e.messages for e in rig.events if isinstance(e, Revoked)) == 1


async def test_a_message_rescheduled_on_the_wheel_goes_out_once_at_the_new_time(rig: Rig) -> None:
    await rig.claim(message("x", SOON_MS), message("y", SOON_MS))
    assert await rig.client.reschedule("x", at=when(SOON_MS + 700)) == "rescheduled"
    assert await rig.client.reschedule("y", at=when(SOON_MS - 50)) == "rescheduled"
    rig.scanner.wake_all()
    await rig.live_until(SOON_MS + 5000)
    assert [(p.id, p.at_ms, p.attempt) for p in rig.memory.taken] == [
        ("y", SOON_MS - 50, 1),
        ("x", SOON_MS + 700, 1),
    ]


async def test_a_message_replaced_on_the_wheel_goes_out_once_with_the_new_content(rig: Rig) -> None:
    await rig.claim(message("x", SOON_MS, body=b"old"))
    (receipt,) = await rig.client.schedule_many(
        [message("x", SOON_MS + 300, body=b"new")], on_conflict="replace"
    )
    assert receipt == "replaced"
    rig.scanner.wake_all()
    await rig.live_until(SOON_MS + 5000)
    assert [(d.id, d.record.body) for d in rig.memory.published] == [("x", b"new")]
    assert rig.memory.taken[0].at_ms == SOON_MS + 300


async def test_an_id_cancelled_and_scheduled_again_for_the_same_millisecond_goes_out_once(
    lone: Rig,
) -> None:
    await lone.claim(message("x", SOON_MS, body=b"old"))
    await lone.client.cancel("x")
    await lone.claim(message("x", SOON_MS, body=b"new"))
    await lone.live_until(SOON_MS + 5000)
    assert [d.record.body for d in lone.memory.published] == [b"new"]
    assert await lone.state("x") is None


async def test_a_fired_message_can_no_longer_be_cancelled_and_the_answer_says_so(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS))
    await lone.at(SOON_MS - 1)
    assert await lone.client.cancel("x") == "in_flight"
    assert await lone.client.reschedule("x", at=when(SOON_MS + 500)) == "in_flight"
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]


async def test_a_claim_that_arrives_while_a_fire_reports_its_message_as_cancelled_delivers_nothing(
    lone: Rig,
) -> None:
    await lone.claim(message("early", SOON_MS))
    lone.store.hold("fire")
    await lone.at(SOON_MS)  # the fire is executed; its answer is on its way
    lone.store.hold("claim")
    await lone.claim(message("x", SOON_MS - 1))
    assert await lone.client.cancel("x") == "cancelled"
    lone.store.let_go("fire")
    await lone.quiet()
    lone.store.let_go("claim")
    await lone.live_until(SOON_MS + 1000)
    assert lone.memory.ids == ["early"]


async def test_messages_fired_while_their_bucket_moves_to_another_node_go_back_to_the_store(
    lone: Rig,
) -> None:
    await lone.claim(message("x", SOON_MS))
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    (session,) = lone.sessions.values()
    session.is_away = True  # by that node's clock it may not be due yet
    draining = lone.begin(lone.scanner.drain(session))
    lone.store.let_go("fire")
    await lone.until(draining)
    assert lone.memory.ids == []
    assert await lone.state("x") == "delayed"
    assert session.copies == 0


async def test_a_claim_that_arrives_before_the_report_of_a_fire_sent_earlier_delivers_nothing(
    lone: Rig,
) -> None:
    await lone.claim(message("early", SOON_MS))
    lone.store.hold("claim")
    await lone.claim(message("x", SOON_MS - 1))
    assert await lone.client.cancel("x") == "cancelled"
    lone.store.hold("fire")
    await lone.at(SOON_MS)
    lone.store.let_go("claim")  # x comes onto the wheel, below the watermark of that fire
    await lone.quiet()
    lone.store.let_go("fire")
    await lone.live_until(SOON_MS + 1000)
    assert lone.memory.ids == ["early"]


@pytest.fixture
async def lossy(rig_of: RigFactory, redis_url: str) -> AsyncIterator[tuple[Rig, LossyProxy]]:
    """A rig of one bucket whose scanner reaches Redis through a proxy."""
    with LossyProxy(int(redis_url.rsplit(":", 1)[1].split("/")[0])) as proxy:
        async with rig_of(buckets=1, scanner_url=proxy.url) as rig:
            yield rig, proxy


@pytest.mark.parametrize(
    ("stage", "once"),
    [("claim", False), ("claim", True), ("fire", False), ("fire", True), ("settle", False)],
)
async def test_one_lost_reply_changes_nothing(
    lossy: tuple[Rig, LossyProxy], stage: str, once: bool
) -> None:
    rig, proxy = lossy
    messages = [message(f"m{i}", SOON_MS, at_most_once=once) for i in range(20)]
    await rig.send(*messages)
    for verb, at_ms in (("claim", NOW_MS), ("fire", SOON_MS), ("settle", SOON_MS)):
        rig.memory.hold = verb == "fire"
        proxy.drop_next_replies(int(verb == stage))
        rig.memory.confirm()
        await rig.at(at_ms)
    assert proxy.dropped == 1
    assert sorted(rig.memory.ids) == sorted(m.id for m in messages if m.id)
    assert {publish.attempt for publish in rig.memory.taken} == {1}
    assert await rig.raw("mirror") == []
    assert rig.lost == []


async def test_a_lost_reply_of_the_settle_before_an_at_most_once_publish_delivers_once(
    lossy: tuple[Rig, LossyProxy],
) -> None:
    rig, proxy = lossy
    await rig.claim(*(message(f"m{i}", SOON_MS, at_most_once=True) for i in range(20)))
    rig.store.hold("fire")
    await rig.at(SOON_MS)
    proxy.drop_next_replies(1)
    rig.store.let_go("fire")
    await rig.quiet()
    assert proxy.dropped == 1
    assert sorted(rig.memory.ids) == sorted(f"m{i}" for i in range(20))
    assert await rig.raw("mirror") == []


async def test_a_lease_lost_between_claim_and_fire_publishes_nothing_and_costs_no_attempt(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await old.claim(message("x", SOON_MS))
        await old.expire(0)
        async with rig_of(buckets=1) as new:
            await old.at(SOON_MS)
            assert [reason for _, reason in old.lost] == ["fire refused"]
            await new.at(SOON_MS)
            await old.quiet()
            assert old.memory.taken == []
            assert [(p.id, p.attempt) for p in new.memory.taken] == [("x", 1)]


async def test_a_lease_known_to_be_lost_between_fire_and_publish_publishes_nothing(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        await old.claim(message("x", SOON_MS))
        await old.at(SOON_MS - 1)  # fired
        old.lose(old.sessions[0], "renew refused")
        await old.expire(0)
        await old.at(SOON_MS)
        assert old.memory.taken == []
        async with rig_of(buckets=1) as new:
            await new.at(SOON_MS)
            assert [(p.id, p.due_ms, p.attempt) for p in new.memory.taken] == [("x", SOON_MS, 2)]
            assert [e.fired for e in new.events if isinstance(e, LeaseAcquired)] == [1]


async def test_a_stale_owner_s_settle_is_refused_and_leaves_the_new_owner_s_copy_alone(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1) as old:
        old.memory.hold = True
        await old.claim(message("x", SOON_MS), message("y", SOON_MS + 50))
        await old.at(SOON_MS)
        await old.expire(0)
        async with rig_of(buckets=1) as new:
            new.memory.hold = True
            await new.at(SOON_MS)
            old.memory.confirm()
            await old.live_until(SOON_MS + 50)
            assert old.memory.ids == ["x"], "y is the new owner's"
            assert await new.state("x") == "in_flight"
            new.memory.hold = False
            new.memory.confirm()
            await new.live_until(SOON_MS + 50)
            assert new.memory.ids == ["x", "y"]
            assert await new.state("x") is None


async def test_copies_of_a_lost_lease_take_no_room_from_the_next_session(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, claim_ahead_ms=60_000, wheel_messages=10) as rig:
        await rig.claim(*(message(f"m{i}", NOW_MS + 30_000) for i in range(10)))
        await rig.expire(0)
        rig.lose(rig.sessions[0], "renew refused")
        await rig.take(0, "w:2")
        await rig.quiet()
        assert len(await rig.raw("mirror")) == 10, "claimed again, ahead of their time"

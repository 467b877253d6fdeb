"""The store's clock is set while messages are on their way."""

from __future__ import annotations

import pytest

from delaybridge.events import ClockStepped
from tests.rigs.outcomes import NACK, NO_EXCHANGE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, RigFactory, message


async def test_a_clock_set_back_makes_nothing_early_and_one_set_ahead_loses_nothing(
    rig: Rig,
) -> None:
    await rig.claim(*(message(f"m{i}", SOON_MS + 10 * i) for i in range(20)))
    await rig.at(SOON_MS + 95)
    assert len(rig.memory.taken) == 10
    await rig.at(SOON_MS - 1000)
    await rig.at(SOON_MS + 99)
    assert len(rig.memory.taken) == 10
    await rig.live_until(SOON_MS + 150)
    assert len(rig.memory.taken) == 16
    await rig.at(SOON_MS + 3_600_000)
    assert sorted(rig.memory.ids) == sorted(f"m{i}" for i in range(20))
    assert all(publish.at_ms >= publish.due_ms for publish in rig.memory.taken)


async def test_a_claim_whose_answer_shows_a_clock_set_back_delivers_nothing_early(
    lone: Rig,
) -> None:
    lone.step_ms = -60_000  # the worker does not know yet
    await lone.schedule(message("x", lone.store_ms + 1900), message("y", lone.store_ms + 1900))
    lone.scanner.wake(0, lone.store_ms + 1900)
    await lone.quiet()
    assert [e.step_ms for e in lone.events if isinstance(e, ClockStepped)] == [-60_000]
    await lone.at(NOW_MS + 1899 - 10)
    assert await lone.client.cancel("y") == "cancelled", "it waits, and was not fired"
    await lone.live_until(NOW_MS + 2000)
    assert lone.memory.taken == [("x", lone.store_ms - 100, lone.store_ms - 100, 1)]


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_fire_whose_answer_shows_a_clock_set_back_delivers_nothing_early(
    lone: Rig, at_most_once: bool
) -> None:
    x, y = (message(id, SOON_MS, at_most_once=at_most_once) for id in "xy")
    await lone.claim(x, y)
    lone.step_ms = -60_000
    await lone.at(SOON_MS)
    assert "fire" in lone.store.sent and lone.memory.taken == []
    if not at_most_once:  # else it is settled already
        assert await lone.state("y") == "delayed"
        assert await lone.client.cancel("y") == "cancelled"
    await lone.live_until(SOON_MS + 60_000 - 1)
    assert lone.memory.taken == []
    await lone.live_until(SOON_MS + 60_100)
    assert lone.memory.ids == (["x", "y"] if at_most_once else ["x"])
    assert all(publish.at_ms >= SOON_MS for publish in lone.memory.taken)


async def test_a_message_waiting_for_room_when_the_clock_is_set_back_is_not_delivered_early(
    rig_of: RigFactory,
) -> None:
    async with rig_of(buckets=1, window=1) as rig:
        rig.memory.hold = True
        # The same score: one fire covers both, though there is room for one.
        await rig.claim(message("x", SOON_MS), message("y", SOON_MS))
        await rig.at(SOON_MS)
        assert rig.memory.ids == ["x"]
        rig.step_ms = -60_000
        rig.scanner.wake_all()
        await rig.quiet()
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.live_until(SOON_MS + 59_999)
        assert rig.memory.ids == ["x"]
        await rig.live_until(SOON_MS + 60_100)
        assert rig.memory.ids == ["x", "y"]


async def test_a_dead_letter_waiting_for_room_when_the_clock_is_set_back_still_goes_out(
    rig_of: RigFactory,
) -> None:
    async with rig_of(
        buckets=1, window=1, max_attempts=1, dead_letters={"memory": "memory:dead"}
    ) as rig:
        rig.memory.hold = True
        await rig.claim(message("x", SOON_MS), message("y", SOON_MS))
        await rig.at(SOON_MS)
        rig.memory.next_outcomes.append(NACK)
        rig.memory.confirm(1)
        await rig.quiet()
        assert rig.memory.ids == ["x", "y"], "the letter of x waits"
        rig.step_ms = -60_000
        rig.scanner.wake_all()
        await rig.quiet()
        assert await rig.client.cancel("x") == "in_flight", "it may have been delivered"
        rig.memory.hold = False
        rig.memory.confirm()
        await rig.quiet()
        assert [d.record.destination for d in rig.memory.published] == ["memory:q", "memory:dead"]
        assert await rig.state("x") is None


async def test_a_circuit_is_probed_in_time_after_the_clock_was_set_back(lone: Rig) -> None:
    lone.memory.next_outcomes.append(NO_EXCHANGE)
    await lone.claim(message("x", SOON_MS))
    await lone.at(SOON_MS)
    assert lone.memory.ids == ["x"]
    lone.step_ms = -3_600_000
    await lone.send(message("y", lone.store_ms))
    await lone.live_until(lone.now_ms + 3_000)
    assert lone.memory.ids == ["x", "y"]


async def test_a_destination_keeps_its_speed_when_the_clock_is_set_back(lone: Rig) -> None:
    lone.memory.hold = True
    await lone.claim(*(message(f"m{i}", SOON_MS) for i in range(100)))
    await lone.at(SOON_MS)
    lone.step_ms = -60_000
    lone.scanner.wake_all()
    await lone.quiet()
    for word in ("n", "o"):
        lone.memory.confirm()
        await lone.claim(*(message(f"{word}{i}", lone.store_ms + 10) for i in range(100)))
        await lone.at(lone.now_ms + 10)
        assert lone.memory.held[-1].id.startswith(word) and len(lone.memory.held) == 100
        await lone.at(lone.now_ms + 1)

"""A bucket that lost its records, before anybody has noticed: old entries and the next messages."""

from __future__ import annotations

import pytest

from delaybridge.store.verbs import Item
from tests.rigs.mending import compare, counts, lose
from tests.rigs.outcomes import NACK, UNROUTABLE
from tests.rigs.scanner import NOW_MS, SOON_MS, Rig, message

FAR_MS = NOW_MS + 3_600_000


@pytest.mark.parametrize("outcome", [UNROUTABLE, NACK], ids=["refused", "unknown"])
async def test_a_failed_publish_without_a_record_does_not_end_the_session(
    lone: Rig, outcome: object
) -> None:
    lone.memory.next_outcomes.extend([outcome])
    await lone.claim(message("x", SOON_MS), message("y", SOON_MS + 100))
    await lose(lone, "messages")
    await lone.live_until(SOON_MS + 2000)
    assert lone.sessions[0].alive
    assert lone.memory.ids == ["x", "y"]
    assert await lone.raw("dead") != [], "it is told as a message without a record"
    assert (await counts(lone)).bare == 1
    assert await compare(lone)


async def test_what_is_put_off_without_a_record_does_not_end_the_session(lone: Rig) -> None:
    await lone.claim(message("x", SOON_MS))
    ((_, claim),) = await lone.raw("mirror")
    await lose(lone, "messages")
    session = lone.sessions[0]
    later = [(Item("x", int(claim), float(SOON_MS)), float(FAR_MS))]
    assert await lone.store.run_one(session.bucket.defer(*session.owner, later)) is not None
    assert await lone.raw("due") == [(b"x", SOON_MS)], "the next claim buries it"

"""Which calls of clients wake the owner of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from delaybridge import Message
from delaybridge.store.protocol import keys
from tests.rigs.bucket import World
from tests.rigs.flavours import TO
from tests.rigs.waiting import DEADLINE_S


@pytest.fixture
def heard(raw: redis.Redis, namespace: str) -> Iterator[Callable[[], list[bytes]]]:
    """The messages on the namespace's channel since the last call."""
    subscription = raw.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(keys.wake(namespace))
    subscription.get_message(timeout=DEADLINE_S)

    def since_the_last_call() -> list[bytes]:
        # Everything published before this marker arrives before it.
        raw.publish(keys.wake(namespace), "marker")
        found = []
        while (message := subscription.get_message(timeout=DEADLINE_S)) is None or (
            message["data"] != b"marker"
        ):
            if message is not None:
                found.append(message["data"])
        return found

    yield since_the_last_call
    subscription.close()


async def test_a_message_wakes_the_owner_only_if_it_is_first_and_due_before_the_next_look(
    client: Any, bucket_of_x: Callable[[], World], heard: Callable[[], list[bytes]]
) -> None:
    first = await client.schedule(TO, b"", delay=3600, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim(ahead_ms=2000, margin_ms=20)  # looks again in an hour minus two seconds
        assert heard() == []
        sooner = await client.schedule(TO, b"", delay=60, id="a", key="x")
        assert heard() == [f"{first.bucket} {sooner.due_ms}".encode()]
        await client.schedule(TO, b"", delay=61, id="b", key="x")  # no new head
        assert heard() == []
        await client.schedule_many(
            [Message(TO, b"", delay=30 + n, id=f"m{n}", key="x") for n in range(3)]
        )
        assert heard() == [f"{first.bucket} {(await client.get('m0')).due_ms}".encode()]
        owner.claim(ahead_ms=2000, margin_ms=20, pace_ms=40_000)
        await client.schedule(TO, b"", delay=50, id="c", key="x")  # the owner looks before that
        assert heard() == []


@pytest.mark.parametrize(
    ("delays", "wakes"),
    [
        ({"x": 60}, "x"),
        ({"x": 7200}, None),
        ({"a": 60, "x": 7200}, "a"),
        ({"x": 7200, "a": 60}, "a"),
        ({"a": 7200, "x": 60, "b": 120}, "x"),
        ({"a": 7200, "x": 120, "b": 60}, "b"),
    ],
)
async def test_replacing_wakes_the_owner_if_a_message_is_now_due_before_all_others(
    client: Any,
    bucket_of_x: Callable[[], World],
    heard: Callable[[], list[bytes]],
    delays: dict[str, int],
    wakes: str | None,
) -> None:
    await client.schedule(TO, b"", delay=3600, id="x", key="x")
    with bucket_of_x() as world:
        world.owner().claim(ahead_ms=2000, margin_ms=20)
        await client.schedule_many(
            [Message(TO, b"new", delay=delay, id=id, key="x") for id, delay in delays.items()],
            on_conflict="replace",
        )
        due_ms = wakes and (await client.get(wakes, key="x")).due_ms
        assert heard() == ([f"{world.number} {due_ms}".encode()] if wakes else [])


async def test_rescheduling_or_kicking_a_message_to_the_front_wakes_the_owner(
    client: Any, bucket_of_x: Callable[[], World], heard: Callable[[], list[bytes]]
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    await client.schedule(TO, b"", delay=3600, id="y", key="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.bury(*owner.claim(ahead_ms=2000, margin_ms=20))
        heard()
        await client.reschedule("y", delay=1800)
        (wake_up,) = heard()
        assert wake_up == f"{world.number} {(await client.get('y')).due_ms}".encode()
        await client.reschedule("y", delay=3600)
        assert heard() == []
        await client.dead.kick("x")
        (wake_up,) = heard()
        assert wake_up == f"{world.number} {(await client.get('x')).due_ms}".encode()


async def test_a_bucket_without_an_owner_sends_no_wake_up(
    client: Any, heard: Callable[[], list[bytes]]
) -> None:
    await client.schedule(TO, b"", delay=0, id="x")
    assert heard() == []

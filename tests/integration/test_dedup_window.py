"""`publish.dedup_window_s`: an id that was delivered is a duplicate until its window ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

import pytest

from delaybridge.accept.accept import Accepted
from delaybridge.errors import StoreError
from delaybridge.message import KNOWN, Answer, OnConflict, Record, encode_record, new_id
from delaybridge.store.messages import pulling
from delaybridge.store.protocol.verbs import SourceOffsets
from tests.rigs.bucket import TTL_MS, Owner, World
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.redis import ON_EVERY_REDIS, RedisServer

CREATED, DUPLICATE, CONFLICT = Answer.CREATED, Answer.DUPLICATE, Answer.CONFLICT
WINDOW_MS = 60_000
LONG_S, SHORT_S = 3600.0, 1.0
LOOKS = ("zscore", "zadd")  # commands


def due(world: World, *ids: str, dedup_ms: int = WINDOW_MS, payload: bytes = b"payload") -> Owner:
    """An owner that has fired these messages, due now."""
    for id in ids:
        assert world.schedule(id, world.now_ms, payload=payload) == CREATED
    world.end_lease()
    owner = world.owner(dedup_ms=dedup_ms)
    owner.claim()
    owner.wheel = owner.fire(world.now_ms + 0.999)
    assert {copy.id for copy in owner.wheel} == {*ids}
    return owner


def deliver(world: World, *ids: str, dedup_ms: int = WINDOW_MS) -> Owner:
    owner = due(world, *ids, dedup_ms=dedup_ms)
    owner.settle(*owner.wheel)
    return owner


def noted(world: World) -> set[str]:
    return {id.decode() for id in world.state().get("delivered", {})}


# what counts as delivered, and for whom


@pytest.mark.parametrize("policy", [OnConflict.FAIL, OnConflict.KEEP])
def test_a_delivered_id_is_a_duplicate_until_its_window_ends(world: World, policy: str) -> None:
    deliver(world, "x")
    world.now_ms += WINDOW_MS - 1
    before = world.state()
    answers = world.run(world.scheduling("x", world.now_ms + 5, payload=b"other", policy=policy))
    assert answers == [(DUPLICATE, world.now_ms + 5)]
    assert world.state() == before
    world.now_ms += 1
    assert world.schedule("x", world.now_ms, policy=policy) == CREATED


def test_a_recurring_run_is_no_exception(world: World) -> None:
    deliver(world, "x")
    source = SourceOffsets("recurring:beat:1", [1])
    world.redis.hset(world.key("sources"), source.name, 0)
    assert world.schedule("x", world.now_ms, policy=KNOWN, source=source) == DUPLICATE


def test_replace_schedules_a_delivered_id_again(world: World) -> None:
    deliver(world, "x")
    assert world.replace("x", world.now_ms + 5) == CREATED
    # Now it is pending, and answers are about the pending message.
    assert world.schedule("x", world.now_ms + 5, payload=b"third") == CONFLICT
    assert world.schedule("x", world.now_ms + 5, payload=b"other") == DUPLICATE
    assert world.cancel("x") == Answer.CANCELLED
    assert world.schedule("x", world.now_ms + 5) == DUPLICATE


def test_a_message_that_was_not_delivered_does_not_count(world: World) -> None:
    owner = due(world, "cancelled", "buried")
    copies = {copy.id: copy for copy in owner.wheel}
    owner.retry(copies["cancelled"], delay_ms=1000, maybe=True)
    owner.bury(copies["buried"], maybe=True)
    assert world.cancel("cancelled") == Answer.CANCELLED_MAYBE_DELIVERED
    assert world.discard("buried") == Answer.DISCARDED
    assert noted(world) == set()
    for id in ("cancelled", "buried"):
        assert world.schedule(id, world.now_ms) == CREATED


def test_a_message_delivered_at_most_once_counts(world: World) -> None:
    owner = due(world, "x")
    settling = owner.settling_once(*owner.wheel)
    assert world.run(settling) == {"x"}
    assert world.run(settling) == {"x"}
    assert noted(world) == {"x"}
    assert world.schedule("x", world.now_ms) == DUPLICATE


def test_a_message_that_its_consumer_finished_counts(world: World) -> None:
    when = world.now_ms
    owner = due(world, "x", "y", payload=encode_record(Record("pull:t", b"")))
    items = [(copy.item, "pull:t") for copy in owner.wheel]
    world.run(pulling.offer(world.bucket, (owner.token, TTL_MS), items))
    receiving = pulling.receive(world.bucket, "t", 9, 1000, 7, now_ms=when)
    assert {one.id for one in world.run(receiving)} == {"x", "y"}
    finishing = pulling.finish(world.bucket, world.stamp(), "x", "7", now_ms=when)
    assert world.run(finishing) == Answer.CANCELLED_MAYBE_DELIVERED
    assert world.cancel("y") == Answer.CANCELLED_MAYBE_DELIVERED
    assert noted(world) == {"x"}
    assert world.schedule("x", when) == DUPLICATE
    assert world.schedule("y", when) == CREATED


def test_a_call_sent_again_after_its_message_was_delivered_stores_nothing(world: World) -> None:
    calling = world.scheduling("x", world.now_ms)
    assert world.run(calling) == [(CREATED, world.now_ms)]
    owner = world.owner(dedup_ms=WINDOW_MS)
    owner.claim()
    owner.settle(*owner.fire(world.now_ms + 0.999))
    assert world.run(calling) == [(DUPLICATE, world.now_ms)]
    assert "messages" not in world.state()


def test_of_one_call_only_delivered_ids_are_duplicates(world: World) -> None:
    ids = [f"m{n}" for n in range(1200)]  # more than one command takes
    owner = due(world, *ids[:3])
    owner.settle(*owner.wheel)
    messages = [Accepted(id, id.encode(), str(world.now_ms), 255, b"p") for id in [*ids, "m1"]]
    answers = world.run(world.scheduling_all(messages))
    assert answers is not None
    assert [answer for answer, _ in answers] == [*[DUPLICATE] * 3, *[CREATED] * 1197, DUPLICATE]
    assert world.redis.zcard(world.key("due")) == 1197


# the window is the owner's


def test_off_leaves_no_key_and_costs_no_command(world: World) -> None:
    def is_before_the_marker(heard: dict[str, str]) -> bool:
        return heard["command"] != f"ECHO {world.namespace}"

    owner = due(world, "x", dedup_ms=0)
    with world.redis.monitor() as monitor:
        owner.settle(*owner.wheel)
        assert world.schedule("x", world.now_ms) == CREATED
        world.redis.echo(world.namespace)
        seen = [each["command"] for each in takewhile(is_before_the_marker, monitor.listen())]
    touched = [command.split()[:2] for command in seen if command.lower().startswith(LOOKS)]
    assert [key for _, key in touched if world.namespace in key] == [world.key("due")]
    assert "delivered" not in world.state()
    assert b"dedup_ms" not in world.state()["marks"]


def test_an_owner_with_another_window_changes_it_and_one_without_ends_it(world: World) -> None:
    deliver(world, "long")
    deliver(world, "short", dedup_ms=1000)
    world.now_ms += 1000
    assert world.schedule("long", world.now_ms) == DUPLICATE
    assert world.schedule("short", world.now_ms) == CREATED
    world.end_lease()
    world.owner(dedup_ms=0)
    assert world.schedule("long", world.now_ms) == CREATED


def test_a_shorter_window_does_not_end_a_longer_one(world: World) -> None:
    deliver(world, "x")
    assert world.replace("x", world.now_ms) == CREATED
    world.end_lease()
    owner = world.owner(dedup_ms=1000)
    owner.claim()
    owner.settle(*owner.fire(world.now_ms + 0.999))
    world.now_ms += WINDOW_MS - 1
    assert world.schedule("x", world.now_ms) == DUPLICATE


# memory


def expire(world: World, count: int) -> None:
    """Put ids there whose window has ended."""
    entries = {f"old{n}": world.now_ms - n for n in range(count)}
    world.redis.zadd(world.key("delivered"), entries)


def test_settles_forget_more_than_they_note_and_never_much_at_once(world: World) -> None:
    expire(world, 5000)
    deliver(world, "x")
    assert len(noted(world)) == 5000 - 102 + 1
    deliver(world, *[f"m{n}" for n in range(60)])
    assert len(noted(world)) == 5000 - 102 + 1 - 220 + 60


def test_a_bucket_that_settles_nothing_forgets_too_also_when_it_is_off(world: World) -> None:
    owner = deliver(world, "x")
    expire(world, 1500)
    world.end_lease()
    owner = world.owner()
    for left in (501, 1, 1):
        trimming = owner.bucket.trim(
            owner.token, TTL_MS, keep=None, age_ms=None, now_ms=world.now_ms
        )
        assert world.run(trimming) == (0,)
        assert len(noted(world)) == left


def test_a_full_redis_still_settles_and_knows_what_was_delivered(
    namespace: str, now_ms: int
) -> None:
    with RedisServer() as server, World(server.url, namespace, now_ms) as world:
        owner = due(world, "x")
        world.redis.config_set("maxmemory", 1)
        owner.settle(*owner.wheel)
        assert world.place("x") is None
        assert world.schedule("x", world.now_ms) == DUPLICATE
        world.redis.config_set("maxmemory", 0)
        assert noted(world) == {"x"}


def test_a_damaged_key_refuses_before_anything_is_written(world: World) -> None:
    owner = due(world, "x")
    world.redis.set(world.key("delivered"), "x")
    content = ("messages", "due", "mirror", "calls")

    def stored() -> list[bytes | None]:
        return [world.redis.dump(world.key(name)) for name in content]

    before = stored()
    calls: Sequence[Callable[[], object]] = (
        lambda: world.run(owner.settling(*owner.wheel)),
        lambda: world.schedule("y", world.now_ms),
        lambda: world.schedule("y", world.now_ms, policy=OnConflict.FAIL, maybe=True),
    )
    for call in calls:
        with pytest.raises(StoreError, match="wrong type"):
            call()
        assert stored() == before


# with workers


@ON_EVERY_REDIS
async def test_workers_deliver_an_id_once_in_its_window(crew: Crew, arrived: Arrived) -> None:
    crew.start(publish={"dedup_window_s": LONG_S}, lease=CALM)
    client = crew.client
    assert await client.schedule("memory:q", b"1", delay="1h", id="cancelled") == CREATED
    assert await client.cancel("cancelled") == Answer.CANCELLED
    assert await client.schedule("memory:q", b"1", delay=0, id="x") == CREATED
    await arrived.all(["x"])
    await crew.settled()
    assert await client.schedule("memory:q", b"2", delay=0, id="x") == DUPLICATE
    assert await client.schedule("memory:q", b"2", delay=0, id="cancelled") == CREATED
    await arrived.all(["cancelled"])
    await crew.settled()
    assert sorted(arrived.attempts) == [("cancelled", 1), ("x", 1)]


async def test_after_its_window_an_id_is_delivered_again(crew: Crew, arrived: Arrived) -> None:
    crew.start(publish={"dedup_window_s": SHORT_S}, lease=CALM)

    async def refused() -> str:
        """An id that was created twice, and refused between."""
        id, answers = new_id(), list[Answer]()

        async def is_created() -> bool:
            answers.append((await crew.client.schedule("memory:q", b"x", delay=0, id=id)).answer)
            return answers.count(CREATED) == 2

        await until_async(is_created, lambda: f"created twice: {answers}")
        return id if len(answers) > 2 else ""  # the test may stand still for the whole window

    id = await until_async(refused, "an id is refused in its window")
    await crew.settled()
    assert [each for each, _ in arrived.attempts if each == id] == [id, id]


async def test_the_row_of_a_duplicate_does_not_come_back_from_the_ledger(
    redis_url: str, namespace: str, arrived: Arrived, tmp_path: Path
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    async with Crew(redis_url, namespace, ledger=url) as crew:
        probe = LedgerProbe(url)
        crew.start("a", publish={"dedup_window_s": LONG_S}, lease=CALM)
        assert await crew.client.schedule("memory:q", b"1", delay=0, id="x") == CREATED
        await arrived.all(["x"])
        await crew.settled()
        assert await crew.client.schedule("memory:q", b"2", delay=0, id="x") == DUPLICATE
        await until_async(lambda: probe.states() == {"published": 1}, lambda: f"{probe.states()}")
        await crew.stop("a")
        # It compares the bucket with the ledger.
        crew.start("b", publish={"dedup_window_s": LONG_S}, lease=CALM)
        await crew.shared("b")
        assert await crew.client.schedule("memory:q", b"3", delay=0, id="last") == CREATED
        await arrived.all(["last"])
        assert arrived.twice == []
        probe.close()


@ON_EVERY_REDIS
async def test_whoever_schedules_whenever_each_id_is_delivered_once(
    crew: Crew, arrived: Arrived
) -> None:
    """Clients repeat all their calls while workers deliver, come and leave."""
    ids = [f"m{n}" for n in range(120)]
    crew.start("a", publish={"dedup_window_s": LONG_S}, lease=CALM)
    crew.start("b", publish={"dedup_window_s": LONG_S}, lease=CALM)
    await crew.shared("a", "b")
    done, answers = asyncio.Event(), Counter[tuple[str, str]]()

    async def repeat(ids: Sequence[str]) -> None:
        while not done.is_set():
            for id in ids:
                answer = (await crew.client.schedule("memory:q", b"x", delay=0.05, id=id)).answer
                answers[id, answer] += 1

    async with asyncio.TaskGroup() as group:
        for turn in (1, -1, 1):
            group.create_task(repeat(ids[::turn]))
        await arrived.all(ids)
        await crew.stop("b")
        crew.start("c", publish={"dedup_window_s": LONG_S}, lease=CALM)
        await crew.shared("a", "c")
        before = answers.total()
        await until_async(lambda: answers.total() > before + len(ids), "all are tried once more")
        done.set()
    await crew.settled()
    assert arrived.twice == []
    assert {answer for _, answer in answers} == {CREATED, DUPLICATE}
    assert [answers[id, CREATED] for id in ids] == [1] * len(ids)

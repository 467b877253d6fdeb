"""Pull topics with workers, on a real Redis: received, finished, given back; and over HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import redis

from delaybridge.client import AsyncClient
from delaybridge.errors import MessageError
from delaybridge.message import Message, OnConflict, Record, encode_record
from delaybridge.store.messages import pulling
from delaybridge.store.messages.pulling import ReceivedMessage
from delaybridge.store.namespace import registry
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.stored import Stored
from tests.rigs.api import api
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.crew import CALM, Crew
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import ON_EVERY_REDIS

TTR = "1s"
LONG_AGO_MS = 1_700_000_000_000  # due by Redis' own clock


@pytest.fixture
async def crew(redis_url: str, namespace: str) -> AsyncIterator[Crew]:
    async with Crew(redis_url, namespace) as made:
        made.start(lease=CALM)
        yield made


async def received(
    client: AsyncClient, count: int = 1, *, ttr: str = "30s"
) -> list[ReceivedMessage]:
    """Receive that many messages of topic `t`."""
    found: list[ReceivedMessage] = []

    async def are_there() -> bool:
        found.extend(await client.topics.receive("t", limit=count - len(found), ttr=ttr))
        return len(found) == count

    await until_async(are_there, lambda: f"{count} messages, got {found}")
    return found


async def until_state(client: AsyncClient, id: str, state: str) -> Stored:
    async def is_so() -> Stored | None:
        found = await client.get(id)
        return found if found is not None and found.state == state else None

    found: Stored = await until_async(is_so, f"{id} is {state}")
    return found


async def until_offered(client: AsyncClient, count: int) -> None:
    async def are_offered() -> bool:
        return (await client.stats()).parked == count

    await until_async(are_offered, "offered")


@pytest.fixture
def world(redis_url: str, namespace: str) -> Iterator[World]:
    with World(redis_url, namespace, LONG_AGO_MS) as world:
        yield world


def offer_all(world: World, *bodies: bytes) -> None:
    """Have a worker set aside a message of topic `t` for each body."""
    for n, body in enumerate(bodies):
        payload = encode_record(Record("pull:t", body, ()))
        world.schedule(f"m{n:02}", LONG_AGO_MS + n, payload=payload)
    owner = world.owner()
    items = [(copy.item, "pull:t") for copy in owner.claim()]
    world.run(pulling.offer(world.bucket, (owner.token, TTL_MS), items))


def test_the_time_to_run_is_not_cut_short_by_a_part_of_a_millisecond(world: World) -> None:
    offer_all(world, *([b"x"] * 20))
    for receipt in range(20):
        asked = pulling.receive(world.bucket, "t", 1, 5000, receipt)
        now_us, (one,) = world.store.run([registry.store_time(), asked])
        assert one.until_ms * 1000 >= now_us + 5_000_000


def test_one_answer_has_no_more_bytes_than_its_bound_but_always_a_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_all(world, *([b"." * 1000] * 6))
    size = len(world.redis.hget(world.key("messages"), "m00") or b"")
    for most, count in ((2 * size, 2), (2 * size - 1, 1), (1, 1), (3 * size, 2)):
        monkeypatch.setattr(pulling, "CALL_BYTES", most)
        assert len(world.run(pulling.receive(world.bucket, "t", 10, 5000, most))) == count


@ON_EVERY_REDIS
async def test_a_message_is_received_once_due_and_finished_once(crew: Crew) -> None:
    client = crew.client
    made = await client.schedule("pull:t", b"x", delay=0.3, id="a", key="k", headers={"n": "1"})
    (one,) = await received(client)
    assert (one.id, one.body, one.key, one.attempt) == ("a", b"x", b"k", 1)
    assert one.headers == (("n", b"1"),)
    assert one.until_ms - 30_000 >= made.due_ms
    assert await client.topics.receive("t") == []
    assert await client.topics.finish([one]) == ["finished"]
    assert await client.topics.finish([one]) == ["unknown"]
    assert await client.get("a") is None
    await crew.settled()


@ON_EVERY_REDIS
async def test_what_is_not_finished_in_time_comes_again_under_another_receipt(crew: Crew) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a")
    (first,) = await received(client, ttr=TTR)
    (again,) = await received(client)
    assert (again.id, again.attempt) == ("a", 2)
    assert again.until_ms - 30_000 >= first.until_ms
    assert await client.topics.finish([first]) == ["unknown"]
    assert await client.topics.extend([first], ttr="1m") == ["unknown"]
    assert await client.topics.release([first]) == ["unknown"]
    assert await client.topics.finish([again]) == ["finished"]


async def test_released_comes_again_and_extended_does_not(crew: Crew) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a")
    (one,) = await received(client)
    assert await client.topics.extend([one], ttr="1h") == ["extended"]
    stored = await client.get("a")
    assert stored is not None and stored.due_ms > one.until_ms + 3_000_000
    assert await client.topics.release([one]) == ["released"]
    assert await client.topics.finish([one]) == ["unknown"]
    (again,) = await received(client)
    assert again.attempt == 2


async def test_a_call_under_a_receipt_sent_again_has_the_same_answer(crew: Crew) -> None:
    client, store = crew.client, crew.store
    await client.schedule("pull:t", b"x", delay=0, id="a")
    (one,) = await received(client)
    buckets = await client.run(lambda calls: calls.open())
    number, _, turn = one.receipt.partition("-")
    finish = pulling.finish(buckets[int(number)], b"1234", "a", turn)
    first, second = [(await store.run([finish]))[0] for _ in range(2)]
    assert first == second == "cancelled_maybe_delivered"
    await client.schedule("pull:t", b"y", delay=0, id="a")
    assert (await store.run([finish]))[0] == first
    assert [new.body for new in await received(client)] == [b"y"]


@pytest.mark.parametrize("is_received", [True, False])
async def test_a_cancelled_message_does_not_come(crew: Crew, is_received: bool) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a")
    if is_received:
        (one,) = await received(client)
        assert await client.cancel("a") == "cancelled_maybe_delivered"
        assert await client.topics.finish([one]) == ["unknown"]
    else:
        await until_state(client, "a", "parked")
        assert await client.cancel("a") == "cancelled"
    assert await client.topics.receive("t") == []
    await client.schedule("pull:t", b"y", delay=0, id="a")
    (new,) = await received(client)
    assert (new.body, new.attempt) == (b"y", 1)


async def test_a_message_never_finished_is_buried(crew: Crew) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a", retry={"max_attempts": 2})
    for _ in range(2):
        await client.topics.release(await received(client))
    assert str((await until_state(client, "a", "dead")).reason).startswith("used_up: ")


async def test_entries_of_cancelled_messages_are_removed_without_a_receive(
    redis_url: str, namespace: str
) -> None:
    async with Crew(redis_url, namespace) as crew:
        crew.start(dead={"max_messages": 1000})  # then a worker looks after it often
        await _cancelled_entries_go(crew, redis.Redis.from_url(redis_url))


async def _cancelled_entries_go(crew: Crew, plain: redis.Redis) -> None:
    client = crew.client
    ids = [f"m{i}" for i in range(300)]
    await client.schedule_many([Message("pull:t", b"x", delay=0, id=id) for id in ids])
    await until_offered(client, 300)
    await client.cancel_many(ids[1:])
    buckets = await client.run(lambda calls: calls.open())
    ready = [bucket.key("ready") for bucket in buckets]
    plain.zadd(ready[0], {"pull:t\0odd": 0, "odd": 0})

    def entries() -> int:
        return sum(map(plain.zcard, ready))

    await until_async(lambda: entries() == 1, lambda: f"1 left, not {entries()}")
    assert [one.id for one in await client.topics.receive("t", limit=9)] == [ids[0]]


async def test_what_is_offered_outlives_its_worker(crew: Crew) -> None:
    client = crew.client
    await client.schedule_many([Message("pull:t", b"x", delay=0, id=f"m{i}") for i in range(20)])
    await until_offered(client, 20)
    assert (await client.stats()).overdue_ms == 0
    offered = await client.get("m0")
    assert offered is not None and (offered.reason or "").startswith("unreceived")
    await crew.stop()
    (one,) = await client.topics.receive("t")
    assert await client.topics.finish([one]) == ["finished"]
    crew.start(lease=CALM)
    rest = await received(client, 19)
    assert {each.attempt for each in rest} == {1}
    assert set(await client.topics.finish(rest)) == {"finished"}
    await crew.settled()


@ON_EVERY_REDIS
async def test_four_consumers_finish_all_though_one_dies_with_fifty(crew: Crew) -> None:
    client, finished = crew.client, Counter[str]()
    messages = [Message("pull:t", b"x", delay=i % 20 / 10, id=f"m{i}") for i in range(2000)]
    await client.schedule_many(messages)
    held = await received(client, 50)
    await client.topics.extend(held, ttr=TTR)  # its consumer dies now
    attempts: dict[str, int] = {}

    async def consume() -> None:
        while finished.total() < 2000:
            some = await client.topics.receive("t", limit=40)
            attempts.update((one.id, one.attempt) for one in some)
            answers = await client.topics.finish(some)
            finished.update(
                one.id for one, said in zip(some, answers, strict=True) if said == "finished"
            )

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(consume() for _ in range(3)))
    assert finished == Counter(f"m{i}" for i in range(2000))
    assert all(attempts[one.id] == 2 for one in held)
    assert Counter(attempts.values())[2] == 50
    await crew.settled()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"destination": "pull:a b"}, "bad_destination"),
        ({"destination": "pull:t", "at_most_once": True}, "bad_destination"),
        ({"destination": "pull:t", "retry": {"dead_letter": "pull:u"}}, "bad_retry"),
    ],
)
async def test_refused(crew: Crew, arguments: dict[str, object], code: str) -> None:
    with pytest.raises(MessageError) as error:
        await crew.client.schedule(body=b"", delay=0, **arguments)  # type: ignore[arg-type]
    assert error.value.code == code


@pytest.fixture
async def http(crew: Crew) -> AsyncIterator[httpx.AsyncClient]:
    async with api(crew.url, crew.namespace) as client:
        yield client


@ON_EVERY_REDIS
async def test_a_long_poll_is_woken_and_its_message_finished(
    crew: Crew, http: httpx.AsyncClient
) -> None:
    wanted = {"max": 20, "wait": "1m", "ttr": "30s"}
    polls = [asyncio.create_task(http.post("/v1/topics/t:receive", json=wanted)) for _ in range(2)]
    posts = [
        {"destination": "pull:t", "body": "x", "delay": "500ms", "id": id} for id in ("a", "b")
    ]
    assert [(await http.post("/v1/messages", json=one)).status_code for one in posts] == [201, 201]
    async with asyncio.timeout(DEADLINE_S):
        done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    items = [item for each in done for item in each.result().json()["items"]]
    assert items[0]["body"] == "x" and items[0]["attempt"] == 1
    given = {"items": [{"id": each["id"], "receipt": each["receipt"]} for each in items]}
    answer = await http.post("/v1/topics/t:finish", json=given)
    assert {each["result"] for each in answer.json()["items"]} == {"finished"}
    again = await http.post("/v1/topics/t:finish", json=given)
    assert {each["result"] for each in again.json()["items"]} == {"unknown"}
    for poll in polls:
        poll.cancel()


async def test_a_poll_answers_empty_in_time(http: httpx.AsyncClient) -> None:
    for wait in ("0s", "100ms"):
        answer = await http.post("/v1/topics/t:receive", json={"wait": wait})
        assert (answer.status_code, answer.json()) == (200, {"items": []})


async def test_a_poll_whose_client_is_gone_takes_nothing(
    crew: Crew, http: httpx.AsyncClient, redis_url: str
) -> None:
    gone = asyncio.create_task(http.post("/v1/topics/t:receive", json={"wait": "1m"}))
    with redis.Redis.from_url(redis_url) as plain:
        channel = keys.offers(crew.namespace)
        await until_async(lambda: plain.pubsub_numsub(channel)[0][1], "subscribed")
    assert (await http.post("/v1/topics/t:receive", json={})).json()["items"] == []  # it waits, too
    gone.cancel()
    await asyncio.wait([gone])
    await crew.client.schedule("pull:t", b"x", delay=0, id="a")
    (one,) = (await http.post("/v1/topics/t:receive", json={"wait": "1m"})).json()["items"]
    assert one["attempt"] == 1


@pytest.mark.parametrize("wanted", [{"max": 0}, {"max": 1001}, {"ttr": "1ms"}, {"wait": "2m"}])
async def test_bad_polls(http: httpx.AsyncClient, wanted: dict[str, object]) -> None:
    assert (await http.post("/v1/topics/t:receive", json=wanted)).status_code == 422


async def test_a_poll_whose_subscription_is_lost_hears_of_its_message(
    crew: Crew, http: httpx.AsyncClient, redis_url: str
) -> None:
    polls = [
        asyncio.create_task(http.post("/v1/topics/t:receive", json={"wait": "1m"}))
        for _ in range(2)
    ]
    plain = redis.Redis.from_url(redis_url)
    channel = keys.offers(crew.namespace)
    await until_async(lambda: plain.pubsub_numsub(channel)[0][1], "subscribed")
    for _ in range(3):
        plain.client_kill_filter(_type="pubsub", skipme=True)
        await crew.client.schedule_many([Message("pull:t", b"x", delay=0)] * 2)
        async with asyncio.timeout(DEADLINE_S):
            answers = await asyncio.gather(*polls)
        assert [len(answer.json()["items"]) for answer in answers] == [1, 1]
        polls = [
            asyncio.create_task(http.post("/v1/topics/t:receive", json={"wait": "1m"}))
            for _ in range(2)
        ]
    for poll in polls:
        poll.cancel()


@pytest.mark.parametrize("policy", OnConflict)
async def test_what_a_consumer_has_is_taken_over_by_whoever_schedules_its_id(
    crew: Crew, policy: OnConflict
) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a")
    (one,) = await received(client, ttr="1h")
    made = await client.schedule("pull:t", b"y", delay="1m", id="a", on_conflict=policy)
    assert made == ("replaced" if policy is OnConflict.REPLACE else "created")
    stored = await client.get("a")
    assert stored is not None and (stored.body, stored.due_ms) == (b"y", made.due_ms)
    assert await client.topics.finish([one]) == ["unknown"]
    assert await client.topics.extend([one], ttr="1h") == ["unknown"]
    assert await client.topics.release([one]) == ["unknown"]
    assert await client.get("a") == stored
    maybe = "" if made == "created" else "_maybe_delivered"
    assert await client.cancel("a") == f"cancelled{maybe}", "of the new one no consumer has a copy"


async def test_who_was_told_that_it_is_pending_gets_it_though_a_late_consumer_finishes_it(
    crew: Crew,
) -> None:
    client = crew.client
    await client.schedule("pull:t", b"x", delay=0, id="a")
    (one,) = await received(client, ttr=TTR)
    await until_state(client, "a", "parked")
    assert await client.schedule("pull:t", b"x", delay=60, id="a") == "duplicate"
    assert await client.topics.finish([one]) == ["unknown"]
    (again,) = await received(client)
    assert (again.body, again.attempt) == (b"x", 2)
    assert await client.topics.finish([again]) == ["finished"]


async def test_a_chain_of_a_pull_topic_never_stops_whatever_comes_first(crew: Crew) -> None:
    """A consumer schedules the next before, or after, it finishes what it has."""
    client, ids, rounds = crew.client, [f"c{n}" for n in range(20)], 8
    counts = Counter[str]()
    await client.schedule_many([Message("pull:t", b"x", delay=0, id=id) for id in ids])

    async def next_of(one: ReceivedMessage) -> None:
        counts[one.id] += 1
        before = counts[one.id] % 2 == 0
        if not before:
            assert await client.topics.finish([one]) == ["finished"]
        if counts[one.id] < rounds:
            assert await client.schedule("pull:t", b"x", delay=0, id=one.id) == "created"
        if before:
            is_last = counts[one.id] == rounds
            assert await client.topics.finish([one]) == ["finished" if is_last else "unknown"]

    async def all_came() -> bool:
        await asyncio.gather(*map(next_of, await client.topics.receive("t", limit=100)))
        return counts == dict.fromkeys(ids, rounds)

    await until_async(all_came, lambda: f"{counts}")
    assert await client.topics.receive("t") == []
    await crew.settled()

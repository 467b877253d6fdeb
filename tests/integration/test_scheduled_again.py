"""An id that is scheduled again while its message is being delivered, or is with a consumer.

A consumer that does so, to try it later or as the next of a chain, must not be told `duplicate`:
what it relies on has been delivered already.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from delaybridge import AsyncClient, Message, OnConflict
from delaybridge.message import Answer, Delivery, Limits
from delaybridge.store.messages.scheduling import Patience
from delaybridge.store.protocol.verbs import new_stamp
from tests.rigs.api import api
from tests.rigs.bucket import Owner
from tests.rigs.command_line import Run
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.delivering import Delivering, script_calls
from tests.rigs.flavours import TO, Maker, Threaded
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async
from tests.servers.redis import ON_EVERY_REDIS

OwnerOf = Callable[[str], Owner]
BROKERS = {"rabbitmq": "amqp://127.0.0.1:1"}  # never connected
CREATED, DUPLICATE, IN_FLIGHT = Answer.CREATED, Answer.DUPLICATE, Answer.IN_FLIGHT


@pytest.fixture
def waiting(make: Maker, redis_url: str, namespace: str) -> Threaded:
    """A client of each flavour, whose calls may wait."""
    return Threaded(make(redis_url, namespace=namespace).client)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which a call waits is over at once."""
    monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)


async def delivering(client: Any, owner_of: OwnerOf, id: str = "x") -> Delivering:
    assert await client.schedule(TO, b"body", delay=0, id=id) == CREATED
    return Delivering(owner_of(id))


# what is being delivered


@pytest.mark.parametrize("policy", OnConflict)
@pytest.mark.parametrize("body", [b"body", b"other"])
async def test_a_call_waits_until_the_old_message_is_settled_and_is_created(
    waiting: Threaded, owner_of: OwnerOf, raw: redis.Redis, policy: OnConflict, body: bytes
) -> None:
    old = await delivering(waiting, owner_of)
    again = waiting.schedule(TO, body, delay="1h", id="x", on_conflict=policy)
    assert await old.settle_once_asked(raw, again) == CREATED
    assert (await waiting.get("x")).body == body


async def test_of_many_only_those_concerned_wait_and_the_others_are_stored_before(
    waiting: Threaded, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    old = await delivering(waiting, owner_of)
    messages = [Message(TO, b"new", delay="1h", id=id) for id in ("a", "x", "b", "x", "c")]
    made = asyncio.ensure_future(waiting.schedule_many(messages))
    await until_async(lambda: waiting.get("c"), "the others are stored while it waits")
    assert (await waiting.get("x")).body == b"body"
    answers = await old.settle_once_asked(raw, made)
    assert answers == [CREATED, CREATED, CREATED, DUPLICATE, CREATED]


async def test_callers_of_the_same_tick_do_not_wait_for_one_that_waits(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    async with AsyncClient(redis_url, namespace=namespace) as client:
        old = await delivering(client, owner_of)
        calls = [client.schedule(TO, b"", delay="1h", id=id) for id in ("x", "a", "b")]
        late, *others = [asyncio.ensure_future(call) for call in calls]
        assert await asyncio.gather(*others) == [CREATED] * 2
        assert not late.done()
        assert await old.settle_once_asked(raw, late) == CREATED


async def test_tries_of_a_call_that_waits_do_not_count_against_a_limit(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    limits = Limits(pending_messages=8)
    async with AsyncClient(redis_url, namespace=namespace, limits=limits) as client:
        await delivering(client, owner_of)
        before = script_calls(raw)
        late = asyncio.ensure_future(client.schedule(TO, b"", delay="1h", id="x"))
        await until_async(lambda: script_calls(raw) >= before + 9, "it asks again and again")
        call = [client.accept(Message(TO, b"", delay="1h", id="x"))]
        for _ in range(9):  # as the outbox and a drop-in for Kafka do
            await client.run(lambda on: on.schedule(call, OnConflict.FAIL, waits=False))
        assert await client.schedule(TO, b"", delay="1h", id="y") == CREATED
        late.cancel()


async def test_a_closing_client_waits_for_what_waits(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    client = AsyncClient(redis_url, namespace=namespace)
    old = await delivering(client, owner_of)
    late = asyncio.ensure_future(client.schedule(TO, b"", delay="1h", id="x"))
    closing = asyncio.gather(late, client.close())
    assert (await old.settle_once_asked(raw, closing))[0] == CREATED


async def test_a_caller_that_is_cancelled_while_it_waits_stores_nothing_more(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    async with AsyncClient(redis_url, namespace=namespace) as client:
        old = await delivering(client, owner_of)
        late = asyncio.ensure_future(client.schedule(TO, b"", delay="1h", id="x"))
        other = asyncio.ensure_future(client.schedule(TO, b"other", delay="1h", id="x"))
        await asyncio.sleep(0)
        late.cancel()
        assert await old.settle_once_asked(raw, other) == CREATED
        stored = await client.get("x")
        assert stored is not None and stored.body == b"other"
        with suppress(asyncio.CancelledError):
            await late


async def test_a_caller_that_is_cancelled_in_the_pause_between_two_tries_stores_nothing(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pausing = asyncio.Event()
    monkeypatch.setattr(Patience, "pause_s", lambda patience: (pausing.set(), 0.05)[1])
    async with AsyncClient(redis_url, namespace=namespace) as client:
        old = await delivering(client, owner_of)
        late = asyncio.ensure_future(client.schedule(TO, b"", delay="1h", id="x"))
        await pausing.wait()
        late.cancel()
        old.settle()
    # Closing has waited for whatever was under way.
    assert raw.exists(old.owner.world.key("messages")) == 0


async def test_after_the_time_out_the_answer_is_in_flight_and_nothing_is_stored(
    make: Maker, redis_url: str, namespace: str, owner_of: OwnerOf
) -> None:
    client = Threaded(make(redis_url, namespace=namespace, timeout_s=1.0).client)
    old = await delivering(client, owner_of)
    assert await client.schedule(TO, b"body", delay="1h", id="x") == IN_FLIGHT
    many = [Message(TO, b"", delay="1h", id=id) for id in "xa"]
    assert await client.schedule_many(many) == [IN_FLIGHT, CREATED]
    old.settle()
    assert await client.get("x") is None


async def test_the_same_call_gets_its_first_answer_while_its_message_is_being_delivered(
    make: Maker, redis_url: str, namespace: str, owner_of: OwnerOf
) -> None:
    client = make(redis_url, namespace=namespace)
    accepted = client.client.accept(Message(TO, b"body", delay=0, id="x"))
    call = [(new_stamp(), accepted)]
    assert await client.schedule_accepted(call) == [CREATED]
    Delivering(owner_of("x"))
    assert await client.schedule_accepted(call) == [CREATED]


async def test_a_retried_message_is_pending_again(waiting: Threaded, owner_of: OwnerOf) -> None:
    old = await delivering(waiting, owner_of)
    old.owner.retry(*old._copies, delay_ms=3_600_000, maybe=True)
    assert await waiting.schedule(TO, b"body", delay=0, id="x") == DUPLICATE


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        pytest.param("/v1/messages", {"delaybridge-destination": TO}, id="raw"),
        pytest.param(
            "/v1/messages",
            {
                "delaybridge-destination": TO, "ce-specversion": "1.0", "ce-id": "1",
                "ce-source": "/shop", "ce-type": "unpaid",
            },
            id="CloudEvent",
        ),
        pytest.param("/v1/messages", {}, id="JSON"),
        pytest.param("/v1/messages", {"idempotency-key": "other"}, id="Idempotency-Key"),
        pytest.param("/v1/messages:batch", {}, id="batch"),
    ],
)  # fmt: skip
async def test_every_way_over_http_waits(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis,
    path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    message = {"id": "x", "destination": TO, "body": "body", "delay": "1h"}
    if TO in headers.values():
        told = {"delaybridge-id": "x", "delaybridge-delay": "1h", "content-type": "text/plain"}
        request: dict[str, Any] = {"content": b"body", "headers": headers | told}
    elif path.endswith("batch"):
        request = {"json": {"messages": [message]}}
    else:
        request = {"json": message, "headers": headers}
    async with api(redis_url, namespace, brokers=BROKERS) as http:
        first = await http.post("/v1/messages", json=message | {"delay": "0s"})
        assert first.status_code == 201
        old = Delivering(owner_of("x"))
        made = await old.settle_once_asked(raw, http.post(path, **request))
        assert _items(made) == [(201, "created")]
        # Too late for this one.
        assert (await http.post("/v1/messages/x:publish")).status_code == 202
        Delivering(old.owner)
        monkeypatch.setattr(Patience, "pause_s", lambda patience: 0.0)
        if "idempotency-key" in headers:
            assert (await http.post(path, **request)).content == made.content, "the same request"
            request["headers"] = {"idempotency-key": "a third"}
        assert _items(await http.post(path, **request)) == [(409, "in_flight")]


def _items(answer: httpx.Response) -> list[tuple[int, str]]:
    found = answer.json()
    items = found.get("items", [found | {"status": answer.status_code}])
    return [(item["status"], item.get("result") or item["code"]) for item in items]


async def test_a_dialect_s_add_waits(
    redis_url: str, namespace: str, owner_of: OwnerOf, raw: redis.Redis
) -> None:
    add = {"command": "add", "topic": "close", "id": "x", "body": "b"}
    serve = {"compat": "youzan", "compat_destination": "rabbitmq:orders/{topic}"}
    async with api(redis_url, namespace, brokers=BROKERS, **serve) as http:
        assert (await http.post("/", json=add)).json()["success"]
        old = Delivering(owner_of("x"))
        made = await old.settle_once_asked(raw, http.post("/", json=add | {"delay": 3600}))
        assert made.json()["success"], made.text


def test_the_command_line_says_that_it_is_in_flight(
    run: Run, owner_of: OwnerOf, impatient: None
) -> None:
    asked = ("schedule", TO, "body", "--in", "0s", "--id", "x")
    assert run(*asked).code == 0
    old = Delivering(owner_of("x"))
    for policy in OnConflict:
        late = run("--json", *asked, "--on-conflict", policy.value)
        assert (late.code, late.out) == (4, "")
        assert (late.error["code"], late.error["field"]) == ("in_flight", "--id")
    old.settle()
    assert run(*asked).code == 0


# a chain: each delivery schedules the next


class Chain:
    """A consumer that schedules each message again under its own id, until it came often enough."""

    def __init__(self, arrived: Arrived, rounds: int, again: Callable[[str], Any]) -> None:
        self.counts, self.answers = Counter[str](), Counter[str]()
        self._rounds, self._again, self._tasks = rounds, again, set[asyncio.Task[None]]()
        plain = arrived.take

        def take(deliveries: Sequence[Delivery]) -> None:
            plain(deliveries)
            for delivery in deliveries:
                self.counts[delivery.id] += 1
                if self.counts[delivery.id] < rounds:
                    task = asyncio.create_task(self._next(delivery.id))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

        arrived.take = take  # type: ignore[method-assign]

    async def _next(self, id: str) -> None:
        self.answers[await self._again(id)] += 1

    async def ended(self, ids: Sequence[str]) -> None:
        def all_came() -> bool:
            return all(self.counts[id] >= self._rounds for id in ids)

        await until_async(all_came, lambda: f"{self.counts} {self.answers}")


@pytest.fixture
async def working(crew: Crew) -> AsyncIterator[Crew]:
    crew.start(lease=CALM)
    yield crew


@ON_EVERY_REDIS
async def test_a_chain_under_one_id_never_stops(working: Crew, arrived: Arrived) -> None:
    client, ids = working.client, [f"c{n}" for n in range(20)]

    async def single(id: str) -> str:
        return await client.schedule("memory:q", b"x", delay=0, id=id)

    async def many(id: str) -> str:
        return (await client.schedule_many([Message("memory:q", b"x", delay=0, id=id)]))[0]

    for again in (single, many):
        chain = Chain(arrived, 10, again)
        await client.schedule_many([Message("memory:q", b"x", delay=0, id=id) for id in ids])
        await chain.ended(ids)
        assert chain.answers == {"created": 9 * len(ids)}
        await working.settled()
        assert chain.counts == dict.fromkeys(ids, 10)
        arrived.take = Arrived.take.__get__(arrived)  # type: ignore[method-assign]


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[LedgerProbe]:
    probe = LedgerProbe(made(f"sqlite:///{tmp_path / 'ledger.db'}"))
    yield probe
    probe.close()


async def test_with_a_ledger_each_delivery_of_a_chain_is_a_row_and_ends(
    redis_url: str, namespace: str, arrived: Arrived, probe: LedgerProbe
) -> None:
    ids, rounds = [f"c{n}" for n in range(5)], 4
    async with Crew(redis_url, namespace, ledger=probe.url) as crew:
        crew.start(lease=CALM)

        async def again(id: str) -> str:
            return await crew.client.schedule("memory:q", b"x", delay=0, id=id)

        chain = Chain(arrived, rounds, again)
        await crew.client.schedule_many([Message("memory:q", b"x", delay=0, id=id) for id in ids])
        await chain.ended(ids)
        assert chain.answers == {"created": len(ids) * (rounds - 1)}
        ended = {"published": len(ids) * rounds}
        await until_async(lambda: probe.states() == ended, lambda: f"{probe.states()}")


async def test_with_a_ledger_what_a_consumer_had_is_published_and_the_new_one_delayed(
    redis_url: str, namespace: str, probe: LedgerProbe
) -> None:
    async with Crew(redis_url, namespace, ledger=probe.url) as crew:
        crew.start(lease=CALM)
        await crew.client.schedule("pull:t", b"x", delay=0, id="a")
        await until_async(lambda: crew.client.topics.receive("t", ttr="1h"), "it is received")
        assert await crew.client.schedule("pull:t", b"x", delay="1h", id="a") == CREATED
        ended = {"published": 1, "delayed": 1}
        await until_async(lambda: probe.states() == ended, lambda: f"{probe.states()}")


async def test_with_a_ledger_a_call_that_was_in_flight_once_is_not_refused_for_good(
    redis_url: str, namespace: str, owner_of: OwnerOf, probe: LedgerProbe, raw: redis.Redis
) -> None:
    """What was refused is noted, so that nobody restores it: the note goes when it is stored."""
    kept = {"durability": "ledger", "ledger": probe.url}
    async with AsyncClient(redis_url, namespace=namespace, **kept) as client:  # type: ignore[arg-type]
        old = await delivering(client, owner_of)
        raw.hset(old.owner.world.key("marks"), "generation", 1)
        again = client.schedule(TO, b"body", delay="1h", id="x")
        assert await old.settle_once_asked(raw, again) == CREATED
        noted = raw.zrange(old.owner.world.key("calls"), 0, -1)
        assert noted == []
        assert probe.states() == {"delayed": 2}, "that of the old one was told to nobody"


@pytest.mark.parametrize("pending", [False, True])
async def test_with_a_ledger_a_cold_call_that_redis_has_refused_is_asked_again(
    redis_url: str, namespace: str, owner_of: OwnerOf, probe: LedgerProbe, raw: redis.Redis,
    pending: bool,
) -> None:  # fmt: skip
    """While the note is there nobody brings it into Redis: `created` would be no promise."""
    kept = {"durability": "ledger", "ledger": probe.url, "hot_window_s": 10.0}
    async with AsyncClient(redis_url, namespace=namespace, **kept) as client:  # type: ignore[arg-type]
        accepted = client.accept(Message(TO, b"new", delay="1h", id="x"))
        call, refused = [(new_stamp(), accepted)], Answer.CONFLICT if pending else IN_FLIGHT

        async def again() -> list[Any]:
            found = await client.run(lambda on: on.schedule(call, OnConflict.FAIL, waits=False))
            return [*found]

        await client.schedule(TO, b"old", delay="1h" if pending else 0, id="x")
        world = owner_of("x").world
        raw.hset(world.key("marks"), "generation", 1)
        old = None if pending else Delivering(owner_of("x"))
        assert await again() == [refused]
        if old is not None:
            old.settle()
        else:
            assert await client.cancel("x") == Answer.CANCELLED
        probe.ask("UPDATE message SET state = 'published', tier = 0")  # the ledger is told
        assert await again() == [refused if pending else CREATED]
        assert raw.hexists(world.key("messages"), "x") != pending
        assert (raw.zcard(world.key("calls")) > 0) == pending

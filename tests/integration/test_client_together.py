"""AsyncClient: calls made in one tick of the loop travel together."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from delaybridge import AsyncClient, Client, Message
from delaybridge.client import batching
from delaybridge.errors import MessageConflict, MessageError, StoreError, StoreUnavailable
from delaybridge.message import Answer
from delaybridge.store.calls import Calls
from delaybridge.store.messages.scheduling import Receipt
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.protocol.verbs import RedisCommand
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.bucket import Owner
from tests.rigs.delivering import Delivering
from tests.rigs.flavours import BUCKETS, TO
from tests.rigs.lossy_proxy import LossyProxy
from tests.rigs.waiting import DEADLINE_S, until, until_async
from tests.servers.process import LOOPBACK, free_port


def script_calls(connection: redis.Redis) -> int:
    found = connection.info("commandstats").get("cmdstat_evalsha", {"calls": 0})
    return int(found["calls"])


async def test_a_hundred_schedules_of_one_tick_are_one_script_call_per_bucket(
    together: AsyncClient, own: redis.Redis
) -> None:
    receipts = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, id=f"m{n}") for n in range(100))
    )
    assert [receipt.id for receipt in receipts] == [f"m{n}" for n in range(100)]
    assert Counter(receipts) == {"created": 100}
    assert script_calls(own) == len({receipt.bucket for receipt in receipts}) <= BUCKETS


async def test_a_hundred_schedules_without_id_are_a_few_script_calls(
    together: AsyncClient, own: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaybridge.store.protocol.ids._FRESH_S", 60.0)  # slow or not
    receipts = await asyncio.gather(*(together.schedule(TO, b"", delay=60) for _ in range(100)))
    assert Counter(receipts) == {"created": 100}
    assert script_calls(own) == len({receipt.bucket for receipt in receipts}) <= 3


# While the second half opens its connection, the first may come back and be split as well.
@pytest.mark.parametrize(("own_ids", "most_flushes"), [(False, 40), (True, 11)])
async def test_many_callers_take_turns_in_two_halves_if_script_calls_stay_large(
    together: AsyncClient, monkeypatch: pytest.MonkeyPatch, own_ids: bool, most_flushes: int
) -> None:
    monkeypatch.setattr("delaybridge.store.protocol.ids._FRESH_S", 60.0)
    each, under_way, most, flushes = AsyncStore.run_each, 0, 0, 0

    async def counted(store: AsyncStore, commands: Sequence[RedisCommand[Any]]) -> list[Any]:
        nonlocal under_way, most, flushes
        under_way, flushes = under_way + 1, flushes + 1
        most = max(most, under_way)
        try:
            return await each(store, commands)
        finally:
            under_way -= 1

    monkeypatch.setattr(AsyncStore, "run_each", counted)

    async def caller(number: int) -> list[Receipt]:
        ids = [f"{number}-{turn}" if own_ids else None for turn in range(10)]
        return [await together.schedule(TO, b"", delay=60, id=id) for id in ids]

    receipts = sum(await asyncio.gather(*map(caller, range(100))), [])
    assert Counter(receipts) == {"created": 1000}
    assert len({receipt.id for receipt in receipts}) == 1000
    assert (most == 1) == own_ids and flushes <= most_flushes


async def test_calls_for_one_bucket_are_never_split(
    together: AsyncClient, own: redis.Redis
) -> None:
    """Of two messages with the same key and delay, the one scheduled first is due first."""
    receipts = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, key=f"key {n % 3}") for n in range(200))
    )
    assert script_calls(own) == len({receipt.bucket for receipt in receipts})


async def test_a_bad_message_raises_in_its_own_caller_only(together: AsyncClient) -> None:
    wrong: Any = [together.accept(Message(TO, b"", delay=60))]  # without its stamp
    answers = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60) for _ in range(60)),
        together.schedule_accepted(wrong),
        together.schedule_accepted([]),
        return_exceptions=True,
    )
    assert Counter(answers[:60]) == {"created": 60}
    assert isinstance(answers[60], TypeError) and answers[61] == []


async def test_cancelling_close_leaves_no_caller_waiting(own_url: str) -> None:
    client = AsyncClient(own_url)
    calls = [asyncio.create_task(client.schedule(TO, b"", delay=60)) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    async with asyncio.timeout(DEADLINE_S):
        assert Counter(await asyncio.gather(*calls)) == {"created": 3}
    await client.close()


async def test_schedules_of_different_ticks_are_sent_separately(
    together: AsyncClient, own: redis.Redis
) -> None:
    for n in range(3):
        await together.schedule(TO, b"", delay=60, id=f"m{n}", key="one bucket")
    assert script_calls(own) == 3


async def test_each_caller_of_one_tick_gets_its_own_answer_or_error(together: AsyncClient) -> None:
    await together.schedule(TO, b"first", delay=60, id="taken")
    answers = await asyncio.gather(
        together.schedule(TO, b"", delay=60, id="a"),
        together.schedule(TO, b"other", delay=60, id="taken"),
        together.schedule(TO, b"", delay=-1, id="b"),
        together.schedule(TO, b"other", delay=60, id="taken", on_conflict="keep"),
        together.schedule(TO, b"", delay=60, id="c"),
        return_exceptions=True,
    )
    assert [answers[n] for n in (0, 3, 4)] == ["created", "duplicate", "created"]
    assert isinstance(answers[1], MessageConflict)
    assert isinstance(answers[2], MessageError)


async def test_every_caller_of_one_tick_learns_that_redis_does_not_answer() -> None:
    async with AsyncClient(f"redis://{LOOPBACK}:{free_port()}/0", timeout_s=0.2) as client:
        answers = await asyncio.gather(
            *(client.schedule(TO, b"", delay=60) for _ in range(5)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {StoreUnavailable}


async def test_a_cancelled_caller_does_not_disturb_the_others(together: AsyncClient) -> None:
    tasks = [
        asyncio.create_task(together.schedule(TO, b"", delay=60, id=f"m{n}")) for n in range(5)
    ]
    await asyncio.sleep(0)
    tasks[2].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert [answers[n] for n in (0, 1, 3, 4)] == ["created"] * 4


async def test_a_call_cancelled_halfway_leaves_no_reply_for_the_next(proxy: LossyProxy) -> None:
    async with AsyncClient(proxy.url) as client:
        await client.schedule(TO, b"", delay=60, id="x")
        for turns in range(30):
            given_up = asyncio.create_task(client.stats())
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
            assert (await client.get("x")).id == "x"  # type: ignore[union-attr]


async def test_closing_waits_for_calls_under_way(own_url: str) -> None:
    client = AsyncClient(own_url)
    await client.schedule(TO, b"", delay=60, id="x")
    calls = client.schedule(TO, b"", delay=60, id="y"), client.cancel("x")
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    await client.close()
    assert await asyncio.gather(*tasks) == ["created", Answer.CANCELLED]


def connections(connection: redis.Redis) -> int:
    return len(connection.client_list()) - 1


def test_an_abandoned_client_closes_its_connection(own_url: str, own: redis.Redis) -> None:
    gc.disable()  # the connection must not have to wait for it
    try:
        client = Client(own_url)
        client.schedule(TO, b"", delay=60)
        assert connections(own) == 1
        del client
        until(lambda: connections(own) == 0, "its connection is closed")
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:unclosed")  # asyncio's, of a writer that is abandoned
async def test_an_abandoned_client_closes_its_connection_while_the_loop_runs(
    own_url: str, own: redis.Redis
) -> None:
    gc.disable()
    try:
        client = AsyncClient(own_url)
        await client.schedule(TO, b"", delay=60)
        assert connections(own) == 1
        del client
        await until_async(lambda: connections(own) == 0)
    finally:
        gc.enable()


async def test_calls_by_id_of_one_tick_travel_in_one_pipeline(
    together: AsyncClient, own: redis.Redis
) -> None:
    before = connections(own)
    await together.schedule_many([Message(TO, f"{n}", delay=60, id=f"m{n}") for n in range(9)])
    answers = await asyncio.gather(
        together.cancel("m0"),
        together.get("m1"),
        together.reschedule("m2", delay=5),
        together.dead.kick("m3"),
        together.dead.discard("m4"),
        together.cancel("m" * 300),
        together.get("m5", key="elsewhere"),
        *(together.cancel(f"m{n}") for n in (6, 7, 6)),
        return_exceptions=True,
    )
    stored = answers.pop(1)
    assert isinstance(stored, Stored) and stored.body == b"1"
    assert isinstance(answers.pop(4), MessageError)
    assert answers.pop(4) is None
    cancelled = sorted([answers.pop(), answers.pop(4)])
    assert cancelled == [Answer.CANCELLED, Answer.UNKNOWN]
    unknown = [Answer.UNKNOWN] * 2
    assert answers == [Answer.CANCELLED, Answer.RESCHEDULED, *unknown, Answer.CANCELLED]
    assert connections(own) == before


async def test_thousands_of_calls_at_once_need_few_connections(
    own_url: str, own: redis.Redis
) -> None:
    ids = [f"m{n}" for n in range(3000)]
    async with AsyncClient(own_url, timeout_s=60.0) as client:
        await client.schedule_many([Message(TO, b"", delay=60, id=id, key=id) for id in ids])
        answers = await asyncio.gather(*(client.cancel(id, key=id) for id in ids))
        assert Counter(answers) == {Answer.CANCELLED: 3000}
        assert connections(own) <= 20
        pages = await asyncio.gather(*(client.pending(limit=1) for _ in range(200)))
        assert [page.items for page in pages] == [[]] * 200
        assert connections(own) <= 100


async def test_a_failing_bucket_fails_only_the_callers_whose_messages_are_in_it(
    together: AsyncClient, own: redis.Redis
) -> None:
    damaged = verbs.bucket_of(b"m0", BUCKETS)
    own.delete(keys.bucket_key("delaybridge", damaged, "messages"))
    own.set(keys.bucket_key("delaybridge", damaged, "messages"), "not a hash")
    ids = [f"m{n}" for n in range(100)]
    answers = await asyncio.gather(
        *(together.schedule(TO, b"", delay=60, id=id) for id in ids), return_exceptions=True
    )
    there = await asyncio.gather(*(together.get(id, key=id) for id in ids), return_exceptions=True)
    for id, answer, found in zip(ids, answers, there, strict=True):
        if verbs.bucket_of(id.encode(), BUCKETS) == damaged:
            assert isinstance(answer, StoreError) and isinstance(found, StoreError)
        else:
            assert answer == "created" and isinstance(found, Stored)


async def test_many_calls_at_once_get_their_own_answers(together: AsyncClient) -> None:
    await together.schedule_many([Message(TO, f"{n}", delay=60, id=f"m{n}") for n in range(50)])
    shown = await asyncio.gather(*(together.get(f"m{n}") for n in range(50)))
    assert [item and item.body for item in shown] == [f"{n}".encode() for n in range(50)]


async def test_all_callers_that_wait_for_an_id_share_their_tries(
    redis_url: str, namespace: str, owner_of: Callable[[str], Owner],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """And with a costly store there are few."""
    sizes, pauses_s, slept = list[int](), list[float](), asyncio.sleep

    async def sleep(seconds: float, *rest: Any) -> None:
        pauses_s.append(seconds)
        await slept(seconds, *rest)

    def schedule_each(calls: Calls, messages: Any, *given: Any, **options: Any) -> Any:
        sizes.append(len(messages))
        return plain(calls, messages, *given, **options)

    plain = Calls.schedule_each
    async with AsyncClient(redis_url, namespace=namespace, buckets=1, timeout_s=2.5) as client:
        ids = [f"m{n}" for n in range(20)]
        await client.schedule_many([Message(TO, b"", delay=0, id=id) for id in ids])
        old = Delivering(owner_of("m0"))
        monkeypatch.setattr(Calls, "schedule_each", schedule_each)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(batching, "_PAUSE", 10**9)
        late = []
        for id in ids:  # in one tick each
            late.append(asyncio.ensure_future(client.schedule(TO, b"", delay="1h", id=id)))
            await slept(0)
        await until_async(lambda: len(ids) in sizes[len(ids) :], lambda: f"{sizes}")
        assert 0.25 in pauses_s, "a tenth of the time-out"
        old.settle()
        assert await asyncio.gather(*late) == [Answer.CREATED] * len(ids)
        assert client._batching._late == {}

"""Client and AsyncClient on real Redis: the same words from both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from delaybridge import AsyncClient, Client, Message
from delaybridge.errors import ConfigError, MessageConflict, MessageError
from delaybridge.message import Answer, Limits, State
from delaybridge.store.namespace import registry
from delaybridge.store.protocol.stored import Stored
from delaybridge.store.protocol.verbs import bucket_of
from delaybridge.store.redis.store import Store
from tests.rigs.bucket import Owner, World
from tests.rigs.flavours import BUCKETS, TO
from tests.servers.redis import ON_EVERY_REDIS

# schedule, get, cancel, reschedule


async def test_a_client_works_before_any_worker_ever_ran(client: Any, store: Store) -> None:
    (before_us,) = store.run([registry.store_time()])
    receipt = await client.schedule(TO, b"body", delay="15m", id="x")
    assert receipt == "created" == receipt.answer
    assert receipt.id == "x"
    assert receipt.bucket == bucket_of(b"x", BUCKETS)
    (after_us,) = store.run([registry.store_time()])
    assert before_us // 1000 <= receipt.due_ms - 900_000 <= after_us // 1000 + 1
    assert await client.cancel("x") == Answer.CANCELLED


async def test_get_shows_a_message_as_it_was_scheduled(client: Any) -> None:
    at = datetime(2035, 1, 31, 9, 0, 0, 250_000, tzinfo=UTC)
    await client.schedule(
        TO,
        b"\x00body",
        at=at,
        id="x",
        key="customer-7",
        headers={"tries": 3, "nested": {"a": [1.5, None, True]}},
        properties={"content_type": "text/plain", "priority": 9},
        priority=200,
        ttl="1h",
        at_most_once=True,
    )
    assert (
        await client.get("x", key="customer-7")
        == await client.get("x")
        == Stored(
            id="x",
            state=State.DELAYED,
            due_ms=int(at.timestamp() * 1000),
            priority=200,
            destination=TO,
            body=b"\x00body",
            headers=[("tries", 3), ("nested", {"a": [1.5, None, True]})],
            properties={"content_type": "text/plain", "priority": 9},
            key=b"customer-7",
            ttl_ms=3_600_000,
            at_most_once=True,
            bucket=bucket_of(b"customer-7", BUCKETS),
        )
    )


async def test_generated_ids_are_unique_and_sort_by_time(client: Any) -> None:
    receipts = await client.schedule_many([Message(TO, b"", delay=60)] * 50)
    ids = [receipt.id for receipt in receipts]
    assert len(set(ids)) == 50
    assert ids == sorted(ids)
    assert all(len(id) == 26 for id in ids)


async def test_the_same_content_under_an_id_is_a_duplicate_and_keeps_the_first_due_time(
    client: Any,
) -> None:
    first = await client.schedule(TO, b"body", delay=60, id="x")
    again = await client.schedule(TO, b"body", delay=99, id="x")
    assert (again, again.due_ms) == ("duplicate", first.due_ms)


async def test_other_content_under_an_id_is_a_conflict_whose_error_names_the_remedy(
    client: Any,
) -> None:
    first = await client.schedule(TO, b"body", delay=60, id="x")
    with pytest.raises(MessageConflict, match=f"{first.due_ms} ms.*on_conflict='replace'") as got:
        await client.schedule(TO, b"other", delay=60, id="x")
    assert (got.value.code, got.value.field) == ("conflict", "id")
    assert (await client.get("x")).body == b"body"


@pytest.mark.parametrize(
    ("on_conflict", "answer", "body"),
    [("keep", "duplicate", b"body"), ("replace", "replaced", b"other")],
)
async def test_the_policies_keep_and_replace_do_so(
    client: Any, on_conflict: str, answer: str, body: bytes
) -> None:
    await client.schedule(TO, b"body", delay=60, id="x")
    receipt = await client.schedule(TO, b"other", delay=90, id="x", on_conflict=on_conflict)
    assert receipt == answer
    stored = await client.get("x")
    assert (stored.body, stored.due_ms) == (body, receipt.due_ms)


async def test_the_error_for_an_unknown_policy_lists_the_known_ones(client: Any) -> None:
    with pytest.raises(ConfigError, match="fail, keep, replace"):
        await client.schedule(TO, b"", delay=60, on_conflict="merge")


@ON_EVERY_REDIS
async def test_each_of_many_messages_gets_its_own_answer_in_order(client: Any) -> None:
    await client.schedule(TO, b"taken", delay=60, id="m7")
    messages = [Message(TO, b"body", delay=60, id=f"m{n}") for n in range(40)]
    messages.append(Message(TO, b"second", delay=60, id="m3"))
    receipts = await client.schedule_many(messages)
    assert [r.id for r in receipts] == [m.id for m in messages]
    answers = ["created"] * 41
    answers[7] = answers[40] = "conflict"
    assert receipts == answers


async def test_scheduling_no_messages_returns_no_receipts(client: Any) -> None:
    assert await client.schedule_many([]) == []


@ON_EVERY_REDIS
async def test_reschedule_moves_and_cancel_removes(client: Any) -> None:
    await client.schedule(TO, b"body", delay=60, id="x")
    assert await client.reschedule("x", at="2035-01-01T00:00:00Z") == Answer.RESCHEDULED
    assert (await client.get("x")).due_ms == 2_051_222_400_000
    assert await client.cancel("x") == Answer.CANCELLED
    assert await client.get("x") is None
    assert await client.cancel("x") == Answer.UNKNOWN
    assert await client.reschedule("x", delay=5) == Answer.UNKNOWN


async def test_reschedule_takes_exactly_one_time(client: Any) -> None:
    with pytest.raises(MessageError, match="time_required"):
        await client.reschedule("x")
    with pytest.raises(MessageError, match="time_ambiguous"):
        await client.reschedule("x", delay=5, at="2035-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "id",
    [
        *("{x}", "{other}:1:{x}", "*", "?[a-z]", "S|x", "a|b", "0", "-1", "+inf", "(1", "a b"),
        *("'); redis.call('FLUSHALL') --", '") return 1 --', "]] .. os.exit()"),
        *("../../etc/passwd", "%2e%2e%2f", "<script>alert(1)</script>", "' OR 1=1 --"),
        *("é日本語🙂", "€" * 85, "x" * 255),
    ],
    ids=lambda id: ascii(id)[:24],
)
async def test_an_accepted_id_is_plain_text_to_the_store_whatever_it_contains(
    client: Any, id: str
) -> None:
    receipt = await client.schedule(TO, b"body", at="2035-01-01T00:00:00Z", id=id)
    assert (receipt, receipt.id) == ("created", id)
    assert (await client.get(id)).id == id
    assert [item.id for item in (await client.pending()).items] == [id]
    assert await client.reschedule(id, at="2036-01-01T00:00:00Z") == Answer.RESCHEDULED
    page = await client.pending(limit=1, cursor=(0.0, id))
    assert [item.id for item in page.items] == [id]
    assert await client.cancel(id) == Answer.CANCELLED


async def test_an_id_is_free_again_once_its_message_is_delivered(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"body", delay=0, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim()
        owner.settle(*owner.fire(world.now_ms + 1000))
        assert await client.get("x") is None
        assert await client.schedule(TO, b"other", delay=0, id="x") == "created"


async def test_bodies_and_headers_of_kafka_come_back_unchanged(client: Any) -> None:
    bodies = [None, b"", b"\0", bytes(range(256)), b"x" * Limits().body_bytes]
    to = {"destination": "kafka:t", "headers": [("a", b"1"), ("b", None), ("a", "zwei")]}
    await client.schedule_many(
        [Message(**to, body=body, delay=60, id=f"b{n}") for n, body in enumerate(bodies)]
    )
    stored = [await client.get(f"b{n}") for n in range(len(bodies))]
    assert [each.body for each in stored] == bodies
    assert all(each.headers == [("a", b"1"), ("b", None), ("a", b"zwei")] for each in stored)


# one id under several keys


async def test_the_same_id_under_several_keys_names_several_messages(client: Any) -> None:
    for key in ("a", "b", "c"):
        await client.schedule(TO, key, delay=60, id="x", key=key)
    assert await client.cancel("x", key="b") == Answer.CANCELLED
    assert await client.get("x", key="b") is None
    assert (await client.get("x", key="c")).body == b"c"
    assert await client.reschedule("x", delay=120) == Answer.RESCHEDULED
    assert await client.cancel("x") == Answer.CANCELLED
    assert (await client.stats()).delayed == 0


async def test_without_a_key_the_answer_is_that_of_the_message_furthest_on_its_way(
    client: Any, owner_of: Callable[[str], Owner]
) -> None:
    for key in ("a", "b"):
        await client.schedule(TO, b"", delay=0, id="x", key=key)
    owner = owner_of("a")
    owner.fire(owner.claim()[0].score)
    assert await client.cancel("x") == Answer.IN_FLIGHT
    assert await client.get("x", key="b") is None
    assert (await client.get("x", key="a")).fired


# the dead set


async def test_the_dead_set_is_listed_kicked_and_discarded(
    client: Any, bucket_of_x: Callable[[], World]
) -> None:
    await client.schedule(TO, b"body", delay=0, id="x")
    with bucket_of_x() as world:
        owner = world.owner()
        owner.claim()
        owner.bury(*owner.fire(world.now_ms + 1000), maybe=True)
        (dead,) = (await client.dead()).items
        assert (dead.id, dead.state, dead.attempts) == ("x", State.DEAD, 1)
        assert (dead.reason, dead.dead_ms) == ("refused: by a test", world.now_ms)
        assert dead.maybe_delivered
        assert await client.reschedule("x", delay=5) == Answer.DEAD
        assert await client.dead.kick("x") == Answer.KICKED
        assert (await client.get("x")).state == State.DELAYED
        assert await client.dead.kick("x") == Answer.UNKNOWN
        owner.bury(*owner.claim(ahead_ms=60_000), counted=False)
        assert await client.dead.discard("x") == Answer.DISCARDED
        assert await client.get("x") is None
        assert await client.dead.discard("x") == Answer.UNKNOWN


# Client: used by many threads


def test_a_client_may_be_used_from_many_threads(redis_url: str, namespace: str) -> None:
    def work(client: Client, thread: int) -> list[str]:
        ids = [f"t{thread}-{n}" for n in range(30)]
        for id in ids:
            client.schedule(TO, id, delay=60, id=id)
        return [id for id in ids if (found := client.get(id)) and found.body == id.encode()]

    with Client(redis_url, namespace=namespace) as client, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda thread: work(client, thread), range(8)))
        assert sum(map(len, done)) == client.stats().delayed == 240


def parts_of(client: Client | AsyncClient) -> dict[str, Any]:
    """The client and the objects that it has, by name."""
    names = ("dead", "destinations", "topics", "recurring")
    return {"": client} | {name: getattr(client, name) for name in names}


async def test_both_clients_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(part: Any) -> dict[str, inspect.Signature]:
        public = [n for n in dir(type(part)) if n == "__call__" or not n.startswith("_")]
        methods = {name: getattr(type(part), name) for name in public}
        return {n: inspect.signature(m) for n, m in methods.items() if inspect.isfunction(m)}

    both = parts_of(AsyncClient())
    for name, part in parts_of(Client()).items():
        shown = {verb: str(signature) for verb, signature in calls(both[name]).items()}
        shown.pop("schedule_each", None)  # for servers, which are asynchronous
        assert {n: str(s) for n, s in calls(part).items()} == {
            n: s.replace("AsyncIterator", "Iterator") for n, s in shown.items()
        }


def test_a_former_name_works_and_says_which_one_is_meant() -> None:
    client = Client()
    with (
        pytest.warns(DeprecationWarning, match="call client.topics.receive") as caught,
        pytest.raises(MessageError),
    ):
        client.receive("t", limit=0)
    assert caught[0].filename == __file__
    assert "receive" not in dir(client) and "receive" in dir(client.topics)
    with pytest.warns(DeprecationWarning), pytest.raises(MessageError):
        AsyncClient().limit("kafka:t", -1).send(None)

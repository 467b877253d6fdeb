"""Delay exchanges of a real RabbitMQ: declared, read, delayed, cancelled, refused."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge import AsyncClient
from delaybridge.errors import StoreWiped
from delaybridge.message import Answer, Delivery
from delaybridge.publish import Outcome, Verdict
from delaybridge.store.stored import Stored
from tests.rigs.fleet import Process
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, AsBytes, Exchanges, reading, source
from tests.rigs.rabbitmq_site import Raw, entries
from tests.rigs.waiting import DEADLINE_S, until_async
from tests.servers.redis import ON_EVERY_REDIS

MakeEntrance = Callable[..., Entrance]


@pytest.fixture
async def rabbit(rabbitmq_url: str) -> Exchanges:
    return Exchanges(rabbitmq_url)


@pytest.fixture
async def make_entrance(
    redis_url: str, rabbitmq_url: str, namespace: str
) -> AsyncIterator[MakeEntrance]:
    """Makes entrances that read NAMESPACE.delay by default."""
    async with AsyncExitStack() as stack:

        def make(**ingest: Any) -> Entrance:
            given = {"exchanges": [f"{namespace}.delay"], **ingest}
            entrance = Entrance(redis_url, namespace, {"rabbitmq": rabbitmq_url}, **given)
            stack.push_async_exit(entrance)
            return entrance

        yield make


@pytest.fixture
async def open_entrance(make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str) -> Entrance:
    """Start an ingest process and a worker; the target exists."""
    await rabbit.target(namespace)
    entrance = make_entrance(destinations=[f"rabbitmq:{namespace}-other"])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, f"{namespace}.delay")
    return entrance


def properties(delay_ms: int | None = None, **given: Any) -> pika.BasicProperties:
    headers = given.pop("headers", {}) | ({} if delay_ms is None else {"x-delay": delay_ms})
    return pika.BasicProperties(headers=headers, **given)


# declarations


@pytest.mark.parametrize("type", ["topic", "fanout", "headers"])
async def test_every_type_of_delay_exchange_delays(
    type: str, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    await rabbit.target(namespace)
    entrance = make_entrance(exchanges=[f"{namespace}.delay;type={type}"])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, f"{namespace}.delay")
    sent = [("a.b", b"1", properties(1)), ("", b"2", properties()), ("c", b"3", properties(0))]
    await rabbit.send(f"{namespace}.delay", sent)
    found = await rabbit.take_raw(namespace, 3)
    assert {(raw.routing_key, raw.body) for raw in found} == {(key, body) for key, body, _ in sent}
    # a second process finds everything declared
    entrance.ingest("rabbitmq")
    await entrance.until(
        lambda: all_read(entrance, 2), "two processes that read what one of them declared"
    )


async def all_read(entrance: Entrance, count: int) -> bool:
    ingests = (await entrance.client.stats()).ingests
    return len(ingests) == count and all(s.state == "reading" for i in ingests for s in i.sources)


@pytest.mark.parametrize("type", ["fanout", "headers"])
async def test_an_existing_exchange_of_another_type_is_used_unchanged(
    type: str, make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    await rabbit.do(lambda channel: channel.exchange_declare(delay, type, durable=True))
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.publish(delay, "k", headers={"x-delay": HOUR_MS})
    await entrance.until(entrance.delayed, "stored")


async def test_an_existing_intake_queue_with_another_delivery_limit_is_used_unchanged(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    earlier = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    await rabbit.do(lambda channel: channel.queue_declare(delay, durable=True, arguments=earlier))
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    await rabbit.publish(delay, "k", headers={"x-delay": HOUR_MS})
    await entrance.until(entrance.delayed, "stored")


async def test_a_direct_exchange_with_another_alternate_exchange_stops_no_other(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    bad, good = f"{namespace}-bad.delay", f"{namespace}-good.delay"
    other = {"alternate-exchange": "amq.fanout"}
    await rabbit.do(
        lambda channel: channel.exchange_declare(bad, "direct", durable=True, arguments=other)
    )
    entrance = make_entrance(exchanges=[bad, good])
    task = entrance.ingest("rabbitmq")
    await reading(entrance, good)

    async def failure() -> str:
        found = await source(entrance, bad)
        return found.state if found and found.state != "starting" else ""

    reason = await entrance.until(failure, "a failure that shows")
    assert bad in reason
    assert "exchange 'amq.fanout'" in reason
    assert f"{bad}.intake" in reason
    await rabbit.publish(good, "k", headers={"x-delay": HOUR_MS})
    await entrance.until(entrance.delayed, "stored")
    # it recovers once the exchange is deleted
    await rabbit.do(lambda channel: channel.exchange_delete(bad))
    await reading(entrance, bad, good)
    assert not task.done()


async def test_the_intake_queue_is_a_quorum_queue_without_delivery_limit(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    queue = f"{namespace}.delay"
    assert await rabbit.is_durable_quorum(queue, **{"x-delivery-limit": 2**31 - 1})
    assert not await rabbit.is_durable_quorum(queue)
    await open_entrance.stop_all()

    def return_often(channel: BlockingChannel) -> None:
        # RabbitMQ's own limit is 20.
        channel.basic_qos(prefetch_count=1)
        given = channel.consume(queue, inactivity_timeout=DEADLINE_S)
        for count, (method, _, body) in enumerate(given):
            assert body == b"again"
            if count == 30:
                break
            channel.basic_nack(method.delivery_tag, requeue=True)

    await rabbit.publish(queue, "k", b"again", {"x-delay": HOUR_MS}, message_id="m")
    await rabbit.do(return_often)
    open_entrance.ingest("rabbitmq")
    (stored,) = await open_entrance.until(open_entrance.delayed, "stored")
    assert (stored.id, stored.headers) == ("m", [("x-delay", HOUR_MS)])


# deliveries


def odd_headers(delay: bytes) -> bytes:
    """A header of every type, including those that pika cannot send."""
    pack = struct.pack
    values = {
        "a-int8": b"b" + pack(">b", -5),
        "a-uint8": b"B" + pack(">B", 200),
        "b-int16": b"s" + pack(">h", -300),
        "b-uint16": b"u" + pack(">H", 60_000),
        "c-uint32": b"i" + pack(">I", 4_000_000_000),
        "d-int64": b"l" + pack(">q", 5),
        "e-float": b"f" + pack(">f", 1.5),
        "f-double": b"d" + pack(">d", 1.9),
        "g-decimal": b"D" + pack(">Bi", 2, 12345),
        "h-bool": b"t\x01",
        "i-void": b"V",
        "j-time": b"T" + pack(">Q", 1_700_000_000),
        "k-bytes": b"x" + pack(">I", 3) + b"\xff\x00a",
        "l-text": b"S" + pack(">I", 4) + b"\xff\xfe\xc3(",
        "m-list": b"A" + pack(">I", 10) + b"I\0\0\0\x05" + b"S\0\0\0\0",
        "n-table": b"F" + pack(">I", 4) + b"\x01at\x00",
        "o-\u20ac": b"I" + pack(">i", 1),
        "traceparent": b"S" + pack(">I", 2) + b"00",
        "x-delay": delay,
    }
    return b"".join(
        bytes([len(name.encode())]) + name.encode() + value for name, value in values.items()
    )


async def test_everything_arrives_as_it_was_sent(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    every = {
        "content_type": "application/x-python-serialize",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c" * 255,
        "reply_to": "somewhere",
        "expiration": "3600000",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "\u20ac",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "cluster",
    }
    for number, delay in enumerate((b"I\0\0\0\x01", b"l" + bytes(8), b"V")):
        table, body = odd_headers(delay), bytes(range(256)) * (number * 500)  # more than a frame
        for exchange in (namespace, f"{namespace}.delay"):
            described = every | {"message_id": f"m{number}"}
            await rabbit.send(exchange, [("a.\u20ac", body, AsBytes(table, **described))])
            await entrance_is_empty(open_entrance)
        direct, delayed = await rabbit.take_raw(namespace, 2)
        check_same(direct, delayed, f"m{number}")


async def entrance_is_empty(entrance: Entrance) -> None:
    async def is_empty() -> bool:
        stats = await entrance.client.stats()
        return stats.delayed + stats.in_flight == 0

    await entrance.until(is_empty, "nothing under way")


def check_same(direct: Raw, delayed: Raw, id: str) -> None:
    """The delayed copy equals the sent message to the byte, plus three headers."""
    sent, came = entries(direct.content.table), entries(delayed.content.table)
    ours = {name: came.pop(name) for name in list(came) if name.startswith("delaybridge-")}
    assert came == sent
    assert set(ours) == {"delaybridge-id", "delaybridge-due-ms", "delaybridge-attempt"}
    assert delayed.headers["delaybridge-id"] == id
    same = delayed._replace(
        content=delayed.content._replace(table=direct.content.table), at_ms=direct.at_ms
    )
    assert same == direct


async def test_delayed_messages_are_never_early_and_the_others_go_at_once_in_order(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    delays = [500, 100, 300, 200, 100, 400]
    sent_ms = time.time_ns() / 1e6
    await rabbit.send(
        f"{namespace}.delay",
        [("k", b"%d" % delay, properties(delay)) for delay in delays]
        + [("k", b"at once %d" % i, properties(0 if i % 2 else None)) for i in range(100)],
    )
    found = await rabbit.take_raw(namespace, 106)
    at_once = [raw.body for raw in found if raw.body.startswith(b"at once")]
    assert at_once == [b"at once %d" % i for i in range(100)]
    delayed = [raw for raw in found if not raw.body.startswith(b"at once")]
    assert sorted(int(raw.body) for raw in delayed) == sorted(delays)
    # A delay counts from the time at which ingest stores the message.
    due_ms = [raw.headers["delaybridge-due-ms"] for raw in delayed]
    assert due_ms == sorted(due_ms)
    for raw in delayed:
        assert raw.at_ms >= sent_ms + int(raw.body)
        assert raw.at_ms >= raw.headers["delaybridge-due-ms"]


async def test_a_due_time_and_the_other_headers_for_a_delay_are_understood(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    due_ms = time.time_ns() // 1_000_000 + 300
    table = {
        "delaybridge-due": due_ms,
        "x-opt-delivery-time": due_ms,
        "delaybridge-delay": "200ms",
        "x-opt-delivery-delay": 200,
    }
    sent = [("k", name.encode(), properties(headers={name: v})) for name, v in table.items()]
    await rabbit.send(f"{namespace}.delay", sent)
    for raw in await rabbit.take_raw(namespace, 4):
        given = raw.headers["delaybridge-due-ms"]
        assert given == due_ms if raw.body.decode() in list(table)[:2] else given > due_ms - 300
        assert raw.at_ms >= given


# ids


@ON_EVERY_REDIS
async def test_the_message_id_decides_duplicates_cancels_and_conflicts(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance, delay = open_entrance, f"{namespace}.delay"
    kept = properties(HOUR_MS, message_id="kept")
    named = properties(HOUR_MS, headers={"delaybridge-id": "named"}, message_id="other")
    cancel = {"delaybridge-cancel": True}
    await rabbit.send(
        delay,
        [
            ("k", b"1", kept),
            ("k", b"1", kept),  # a duplicate
            ("k", b"2", kept),  # a conflict
            ("k", b"3", named),
            ("k", b"4", properties(HOUR_MS, message_id="gone")),
            ("k", b"", properties(headers=cancel, message_id="gone")),
            ("k", b"", properties(headers=cancel, message_id="never was")),
            ("k", b"5", properties(HOUR_MS)),
        ],
    )

    async def as_asked_for() -> dict[bytes, Stored] | None:
        found = {message.body: message for message in await entrance.delayed()}
        return found if set(found) == {b"1", b"3", b"5"} else None

    messages = await entrance.until(as_asked_for, "1, 3 and 5 are stored, 4 is cancelled")
    assert (messages[b"1"].id, messages[b"3"].id) == ("kept", "named")
    assert len(messages[b"5"].id) == 26
    # the conflict is in the dead set, whole, and can be kicked
    (dead,) = await entrance.until(entrance.dead, "the conflict is quarantined")
    assert dead.body == b"2"
    assert dead.reason is not None
    assert dead.reason.startswith("ingress:conflict delaybridge-id: 'kept'")
    assert await entrance.client.kick("kept") is Answer.KICKED
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.body, raw.properties["message_id"]) == (b"2", "kept")


async def test_a_source_changes_no_message_that_goes_elsewhere(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pay, other = f"{namespace}-pay", f"{namespace}-other"
    for target in (pay, other):
        await rabbit.target(target)
    entrance = make_entrance(exchanges=[f"{pay}.delay", f"{other}.delay"])
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{pay}.delay", f"{other}.delay")
    await rabbit.send(f"{pay}.delay", [("k", b"mine", properties(HOUR_MS, message_id="id"))])
    await entrance.until(lambda: stored(entrance, 1), "stored")
    (before,) = await entrance.delayed()
    orders: list[dict[str, Any]] = [
        {"delaybridge-cancel": True},
        {"delaybridge-reschedule": True, "delaybridge-delay": "0"},
        {"delaybridge-on-conflict": "replace", "delaybridge-delay": "2h"},
        {"delaybridge-on-conflict": "keep", "delaybridge-delay": "2h"},
        {"delaybridge-delay": "2h"},
    ]
    asking = [properties(headers=headers, message_id="id") for headers in orders]
    await rabbit.send(f"{other}.delay", [("k", b"theirs", asked) for asked in asking])
    await entrance.until(lambda: buried(entrance, 3), "three are quarantined")

    async def is_counted() -> bool:
        found = await source(entrance, f"{other}.delay")
        return found is not None and (found.refused, found.quarantined) == (2, 3)

    await entrance.until(is_counted, "what was refused is counted")
    await entrance.until(lambda: "change_refused" in caplog.text, "it is logged")
    assert await entrance.delayed() == [before]
    # each is quarantined under an id of its own, and is found by the id that it came with
    found = await entrance.client.quarantined("id")
    assert [message.id for message in found] == ["id~1", "id~2", "id~3"]
    assert all("ingress:foreign delaybridge-id: 'id'" in (m.reason or "") for m in found)
    assert await entrance.client.kick("id") is Answer.KICKED
    entrance.scan()
    arrived = await rabbit.take_raw(other, 3)
    assert {raw.headers["delaybridge-id"] for raw in arrived} == {"id~1", "id~2", "id~3"}
    # its own source may do all of it
    await rabbit.send(f"{pay}.delay", [("k", b"theirs", asking[2])])
    await entrance.until(lambda: pending(entrance, "id", b"theirs"), "replaced")
    await rabbit.send(f"{pay}.delay", [("k", b"", asking[1])])
    (raw,) = await rabbit.take_raw(pay, 1)
    assert raw.body == b"theirs"


async def pending(entrance: Entrance, id: str, body: bytes) -> bool:
    found = await entrance.client.get(id)
    return found is not None and found.body == body


async def test_a_trust_rule_lets_a_source_cancel_messages_that_go_elsewhere(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance = make_entrance(trust=[f"{namespace}.delay=rabbitmq:*-pay"])
    await entrance.client.schedule(f"rabbitmq:{namespace}-pay/k", b"", delay="1h", id="id")
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    cancel = properties(headers={"delaybridge-cancel": True}, message_id="id")
    await rabbit.send(f"{namespace}.delay", [("k", b"", cancel)])
    await entrance.until(lambda: stored(entrance, 0), "cancelled")


async def test_beyond_a_quota_messages_wait_at_the_broker(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance(limits={"pending_messages": 2})
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    for id in ("a", "b", "c"):
        await rabbit.send(delay, [("k", b"", properties(HOUR_MS, message_id=id))])
        if id != "c":
            await entrance.until(lambda: entrance.client.get(id), "stored")  # noqa: B023
    await entrance.until(lambda: "limits.pending_messages: 2 are" in caplog.text, "it waits")
    assert await entrance.client.get("c") is None
    await entrance.client.cancel("a")
    await entrance.until(lambda: entrance.client.get("c"), "stored when there is room")


async def test_headers_may_ask_for_everything_that_a_client_may(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    asked = {
        "delaybridge-priority": 9,
        "delaybridge-ttl": "15m",
        "delaybridge-at-most-once": True,
        "delaybridge-key": "order-1",
        "delaybridge-delay": "1h",
    }
    await rabbit.send(
        delay,
        [
            ("k", b"all", properties(headers=asked, message_id="all")),
            ("k", b"now", properties(headers={"delaybridge-at-most-once": True})),
            (
                "k",
                b"fraction",
                properties(headers={"x-delay": Decimal("3599999.5")}, message_id="f"),
            ),
        ],
    )
    await entrance.until(lambda: stored(entrance, 3), "stored")
    found = {message.body: message for message in await entrance.delayed()}
    all_ = found[b"all"]
    assert (all_.priority, all_.ttl_ms, all_.at_most_once) == (9, 900_000, True)
    assert (all_.key, all_.headers) == (b"order-1", [])
    assert await entrance.client.get("all", key="order-1") is not None
    assert found[b"now"].at_most_once
    assert not await entrance.dead()


class Failing:
    """Publishes nothing, and reports a given outcome."""

    def __init__(self, report: Any, outcome: Outcome) -> None:
        self._report, self._outcome = report, outcome

    async def connect(self) -> None:
        pass

    def publish(self, deliveries: Sequence[Delivery]) -> None:
        asyncio.get_running_loop().call_soon(self._report, list(deliveries), self._outcome)

    async def close(self, timeout_s: float) -> None:
        pass


@pytest.mark.parametrize(
    ("verdict", "redelivered", "answer"),
    [
        (Verdict.UNKNOWN, False, Answer.CANCELLED_MAYBE_DELIVERED),
        (Verdict.REFUSED, True, Answer.CANCELLED_MAYBE_DELIVERED),
        (Verdict.REFUSED, False, Answer.CANCELLED),
    ],
)
async def test_after_a_failed_immediate_publish_cancel_says_whether_a_copy_may_exist(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Verdict,
    redelivered: bool,
    answer: Answer,
) -> None:
    """A process that had a redelivered message before may have published it."""
    monkeypatch.setattr(
        "delaybridge.ingest.rabbitmq.ingest.connect",
        lambda *_, report, **__: Failing(report, Outcome(verdict, "test")),
    )
    entrance, delay = make_entrance(), f"{namespace}.delay"
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    if redelivered:
        await entrance.stop(task)
    await rabbit.send(delay, [("k", b"1", properties(message_id="id"))])
    if redelivered:
        await rabbit.do(
            lambda channel: channel.basic_reject(channel.basic_get(delay)[0].delivery_tag)
        )
        entrance.ingest("rabbitmq")
    await entrance.until(lambda: stored(entrance, 1), "stored")
    assert await entrance.client.cancel("id") is answer


async def test_messages_without_an_id_are_counted_and_the_first_is_logged(
    make_entrance: MakeEntrance,
    rabbit: Exchanges,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If ingest is killed between store and ack, such a message arrives twice, under two ids."""
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    with caplog.at_level("WARNING", "delaybridge"):
        for _ in range(3):
            await rabbit.send(f"{namespace}.delay", [("k", b"1", properties(HOUR_MS))])
        named = properties(HOUR_MS, message_id="id")
        await rabbit.send(f"{namespace}.delay", [("k", b"2", named)])
        await entrance.until(lambda: stored(entrance, 4), "stored")

    async def all_counted() -> bool:
        found = await source(entrance, f"{namespace}.delay")
        return found is not None and found.without_id >= 3

    await entrance.until(all_counted, "counted")
    found = await source(entrance, f"{namespace}.delay")
    assert found is not None and found.without_id == 3
    lines = [
        record.getMessage() for record in caplog.records if "id_missing" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "message_id" in lines[0]


async def stored(entrance: Entrance, count: int) -> bool:
    return len(await entrance.delayed()) == count


async def test_a_message_sent_again_after_its_cancel_is_a_new_one(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    """The same bytes twice: the second cancel and the second message take effect, too."""
    sent = ("k", b"1", properties(HOUR_MS, message_id="m"))
    cancel = ("k", b"", properties(headers={"delaybridge-cancel": True}, message_id="m"))
    flag = ("k", b"the end", properties())
    for messages, left in (([sent, cancel, sent], 1), ([cancel, sent, cancel], 0)):
        await rabbit.send(f"{namespace}.delay", [*messages, flag])
        await rabbit.take_raw(namespace, 1)
        await open_entrance.until(lambda left=left: stored(open_entrance, left), f"{left} stored")
        assert await rabbit.waiting(f"{namespace}.delay") == 0
    assert not await open_entrance.dead()


async def test_all_retries_of_a_consumer_are_delivered(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    """It returns each message to the delay exchange at once, with its id and a new delay.

    That is quicker than the first delivery is settled.
    """
    messages, rounds = 20, 10
    delay = f"{namespace}.delay"

    def consume(channel: BlockingChannel) -> dict[str, list[int]]:
        seen: dict[str, list[int]] = {}
        left = messages * (rounds + 1)
        for method, got, body in channel.consume(namespace, inactivity_timeout=DEADLINE_S):
            if method is None:
                break
            number = got.headers["round"]
            seen.setdefault(got.message_id, []).append(number)
            if number < rounds:
                got.headers |= {"round": number + 1, "x-delay": number % 4 + 1}
                channel.basic_publish(delay, method.routing_key, body, got)
            channel.basic_ack(method.delivery_tag)
            left -= 1
            if left == 0:
                break
        return seen

    first = [
        ("k", b"same", properties(1, headers={"round": 0}, message_id=f"m{i}"))
        for i in range(messages)
    ]
    await rabbit.send(delay, first)
    seen = await rabbit.do(consume)
    assert seen == {f"m{i}": list(range(rounds + 1)) for i in range(messages)}
    assert not await open_entrance.dead()


# destinations


async def test_a_header_may_name_only_destinations_that_the_settings_allow(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    other = await rabbit.target(f"{namespace}-other")
    for delay in (1, 0):
        allowed = {"delaybridge-destination": f"rabbitmq:{other}/its.key"}
        refused = {"delaybridge-destination": f"rabbitmq:{namespace}-secret/k"}
        await rabbit.send(
            f"{namespace}.delay",
            [
                ("k", b"allowed", properties(delay, headers=allowed)),
                ("k", b"refused", properties(delay, headers=refused)),
            ],
        )
        (raw,) = await rabbit.take_raw(other, 1)
        assert (raw.body, raw.routing_key) == (b"allowed", "its.key")
        assert "delaybridge-destination" not in raw.headers
    dead = await open_entrance.until(open_entrance.dead, "quarantined")
    assert {message.body for message in dead} == {b"refused"}
    assert all("destination_not_allowed" in (message.reason or "") for message in dead)


async def test_the_target_may_be_another_delay_exchange(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    first, second = f"{namespace}-1", f"{namespace}.delay"
    await rabbit.target(namespace)
    entrance = make_entrance(exchanges=[f"{first}={second}", second])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, first, second)
    await rabbit.publish(first, "k", headers={"x-delay": 200, "a": 1}, message_id="m")
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert raw.properties["message_id"] == "m"
    assert "x-delay" not in raw.headers, "it would have been delayed twice"
    assert raw.headers["a"] == 1
    (one, two) = (await source(entrance, first), await source(entrance, second))
    assert one is not None
    assert two is not None


# refused and undeliverable messages


async def test_an_unacceptable_message_is_in_the_dead_set_and_stops_nothing(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    await rabbit.target(namespace)
    delay = f"{namespace}.delay"
    entrance = make_entrance(limits={"body_bytes": 1000}, destinations=["rabbitmq:*"])
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, delay)
    back = {"delaybridge-destination": f"rabbitmq:{delay}/k"}
    deaths = [{"queue": delay, "count": 4, "reason": "expired", "exchange": delay}]
    bad: dict[str, tuple[str, bytes, Any]] = {
        "bad_time": ("k", b"1", properties(headers={"x-delay": "soon"})),
        "time_ambiguous": ("k", b"2", properties(5, headers={"delaybridge-delay": "5s"})),
        "reserved_header": ("k", b"3", properties(headers={"delaybridge-dely": "5s"})),
        "too_far": ("k", b"4", properties(2**62)),
        "body_too_large": ("k", b"5" * 200_000, properties(5)),
        "bad_id": ("k", b"6", properties(5, message_id="a\nb")),
        "self_loop": ("k", b"7", properties(5, headers=back)),
        "loop": ("k", b"8", properties(5, headers={"x-death": deaths})),
        "headers_too_large": ("k", b"9", properties(5, headers={"big": "x" * 100_000})),
        "not_integer_ms": ("k", b"10", AsBytes(b"\x11delaybridge-delayd" + struct.pack(">d", 1.9))),
    }
    await rabbit.send(delay, [*bad.values(), ("k", b"good", properties(1))])
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert raw.body == b"good"
    await entrance.until(lambda: buried(entrance, len(bad)), "all quarantined")
    dead = {(message.reason or "").split()[0]: message for message in await entrance.dead()}
    assert set(dead) == {f"ingress:{code}" for code in bad}
    for code, (_, body, _) in bad.items():
        assert dead[f"ingress:{code}"].body == body
        assert dead[f"ingress:{code}"].destination == f"rabbitmq:{namespace}/k"

    async def announced() -> bool:
        found = await source(entrance, delay)
        return found is not None and (found.total, found.quarantined) == (len(bad) + 1, len(bad))

    await entrance.until(announced, "the counts")
    # after repair each can be kicked, with everything that it came with
    assert await entrance.client.kick(dead["ingress:bad_id"].id) is Answer.KICKED
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.body, raw.properties["message_id"]) == (b"6", "a\nb")


async def buried(entrance: Entrance, count: int) -> bool:
    return len(await entrance.dead()) == count


async def test_an_immediate_message_that_is_unroutable_blocks_nothing(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    """One target has no bindings, the other does not exist."""
    unbound, missing, fine = (f"{namespace}-{name}" for name in ("unbound", "missing", "fine"))
    await rabbit.do(lambda channel: channel.exchange_declare(unbound, "topic", durable=True))
    await rabbit.target(fine)
    sources = [f"{name}.delay" for name in (unbound, missing, fine)]
    entrance = make_entrance(exchanges=sources, retry={"max_attempts": 2, "base_ms": 10})
    entrance.ingest("rabbitmq")
    entrance.scan()
    await reading(entrance, *sources)
    for name in sources:
        await rabbit.send(name, [("k", b"%d" % i, properties()) for i in (1, 2)])
        if name == sources[1]:
            await entrance.until(lambda: buried(entrance, 4), "given up")
    assert [raw.body for raw in await rabbit.take_raw(fine, 2)] == [b"1", b"2"]
    reasons = {(m.destination.rpartition("-")[2], m.reason or "") for m in await entrance.dead()}
    assert {where for where, _ in reasons} == {"unbound/k", "missing/k"}
    for where, reason in reasons:
        assert ("unroutable" if where == "unbound/k" else "exchange_missing") in reason
    # then it is stored, under another id if its own is pending for another source
    await entrance.client.schedule(f"rabbitmq:{fine}/k", b"", delay="1h", id="taken")
    await rabbit.send(sources[0], [("k", b"3", properties(message_id="taken"))])
    await entrance.until(lambda: buried(entrance, 5), "quarantined")
    (kept,) = await entrance.client.quarantined("taken")
    assert (kept.reason or "").startswith("ingress:foreign")
    assert await rabbit.waiting(sources[0]) == await rabbit.waiting(sources[1]) == 0


# stopping


async def test_a_graceful_stop_acknowledges_the_stored_messages(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    delay, count = f"{namespace}.delay", 3000
    entrance = make_entrance(prefetch=500)
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)

    def publish(channel: BlockingChannel) -> None:
        for _ in range(count):
            channel.basic_publish(delay, "k", b"the same", properties(HOUR_MS))

    sending = asyncio.ensure_future(rabbit.do(publish))
    await entrance.until(entrance.delayed, "the first")
    await entrance.stop(task)
    await sending
    stats = await entrance.client.stats()
    await entrance.until(lambda: all_counted(rabbit, delay, count - stats.delayed), "the rest")
    # the next process stores the rest, each message once
    entrance.ingest("rabbitmq")
    await entrance.until(lambda: total(entrance, count), "everything")


async def all_counted(rabbit: Exchanges, queue: str, count: int) -> bool:
    return await rabbit.waiting(queue) == count


async def total(entrance: Entrance, count: int) -> bool:
    stored = (await entrance.client.stats()).delayed
    assert stored <= count, "stored twice"
    return stored == count


async def test_a_wiped_namespace_ends_ingest_with_the_reason(
    make_entrance: MakeEntrance, rabbit: Exchanges, redis_url: str, namespace: str
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance()
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    with redis.Redis.from_url(redis_url) as store:
        for bucket in range(4):
            store.hset(f"{{{namespace}:{bucket}}}:marks", "birth", "another")
    await rabbit.publish(delay, "k", headers={"x-delay": HOUR_MS})
    with pytest.raises(StoreWiped):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.shield(task)
    await entrance.kill(task)  # it has ended
    assert await rabbit.waiting(delay) == 1, "the message waits in its queue"


# changed settings


async def test_delay_exchanges_are_added_and_removed_by_sighup(
    rabbit: Exchanges,
    redis_url: str,
    namespace: str,
    tmp_path: Path,
) -> None:
    first, second = f"{namespace}-1.delay", f"{namespace}-2.delay"
    config = tmp_path / "settings.toml"

    def write(*exchanges: str) -> None:
        broker = f"[brokers]\nrabbitmq = '{rabbit.url}'\n"
        config.write_text(f"{broker}[ingest]\nexchanges = {[*exchanges]}\n")

    async def delayed() -> bool:
        return (await client.stats()).delayed == 2

    write(first)
    command = [sys.executable, "-m", "delaybridge", "--redis", redis_url, "--namespace", namespace]
    command += ["--config", str(config), "scan", "--with-ingest"]
    process = Process("w", command, {**os.environ}, tmp_path / "w.log")
    try:
        await until_async(lambda: rabbit.is_read(first), "the first is read")
        write(first, second)
        process.signal(signal.SIGHUP)
        await until_async(lambda: rabbit.is_read(second), "the second, too")
        async with AsyncClient(redis_url, namespace=namespace) as client:
            for exchange in (first, second):
                await rabbit.publish(exchange, "k", headers={"x-delay": HOUR_MS})
            await until_async(delayed, "both are stored")

        write(f"{first}={first}")
        process.signal(signal.SIGHUP)
        await until_async(lambda: "reload_refused" in process.log, "an exchange that feeds itself")
        assert await rabbit.is_read(first) and await rabbit.is_read(second)

        write(second)
        process.signal(signal.SIGHUP)

        async def is_left() -> bool:
            return not await rabbit.is_read(first)

        await until_async(is_left, "the first is read no more")
        await until_async(lambda: rabbit.is_read(second), "the second is")
        assert "lease_released" not in process.log
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.close()

"""The id of a message in a delay exchange, and what its other headers ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.message import Answer, Delivery
from delaybridge.publish import Outcome, Verdict
from delaybridge.store.protocol.stored import Stored
from tests.rigs.ingest import Entrance, MakeEntrance
from tests.rigs.ingest_rabbitmq import HOUR_MS, Exchanges, described, reading, source
from tests.rigs.waiting import DEADLINE_S
from tests.servers.redis import ON_EVERY_REDIS


@ON_EVERY_REDIS
async def test_the_message_id_decides_duplicates_cancels_and_conflicts(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance, delay = open_entrance, f"{namespace}.delay"
    kept = described(HOUR_MS, message_id="kept")
    named = described(HOUR_MS, headers={"delaybridge-id": "named"}, message_id="other")
    cancel = {"delaybridge-cancel": True}
    await rabbit.send(
        delay,
        [
            ("k", b"1", kept),
            ("k", b"1", kept),  # a duplicate
            ("k", b"2", kept),  # a conflict
            ("k", b"3", named),
            ("k", b"4", described(HOUR_MS, message_id="gone")),
            ("k", b"", described(headers=cancel, message_id="gone")),
            ("k", b"", described(headers=cancel, message_id="never was")),
            ("k", b"5", described(HOUR_MS)),
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
    assert await entrance.client.dead.kick("kept") is Answer.KICKED
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.body, raw.properties["message_id"]) == (b"2", "kept")


async def test_a_source_changes_no_message_that_goes_elsewhere(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    pay, other = f"{namespace}-pay", f"{namespace}-other"
    for target in (pay, other):
        await rabbit.target(target)
    entrance = make_entrance(exchanges=[f"{pay}.delay", f"{other}.delay"])
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{pay}.delay", f"{other}.delay")
    await rabbit.send(f"{pay}.delay", [("k", b"mine", described(HOUR_MS, message_id="id"))])
    await entrance.until_delayed(1)
    (before,) = await entrance.delayed()
    orders: list[dict[str, Any]] = [
        {"delaybridge-cancel": True},
        {"delaybridge-reschedule": True, "delaybridge-delay": "0"},
        {"delaybridge-on-conflict": "replace", "delaybridge-delay": "2h"},
        {"delaybridge-on-conflict": "keep", "delaybridge-delay": "2h"},
        {"delaybridge-delay": "2h"},
    ]
    asking = [described(headers=headers, message_id="id") for headers in orders]
    await rabbit.send(f"{other}.delay", [("k", b"theirs", asked) for asked in asking])
    await entrance.until_dead(3)

    async def is_counted() -> bool:
        found = await source(entrance, f"{other}.delay")
        return found is not None and (found.refused, found.quarantined) == (2, 3)

    await entrance.until(is_counted, "what was refused is counted")
    await entrance.until(lambda: "change_refused" in caplog.text, "it is logged")
    assert await entrance.delayed() == [before]
    # each is quarantined under an id of its own, and is found by the id that it came with
    found = await entrance.client.dead.quarantined("id")
    assert [message.id for message in found] == ["id~1", "id~2", "id~3"]
    assert all("ingress:foreign delaybridge-id: 'id'" in (m.reason or "") for m in found)
    assert await entrance.client.dead.kick("id") is Answer.KICKED
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
    cancel = described(headers={"delaybridge-cancel": True}, message_id="id")
    await rabbit.send(f"{namespace}.delay", [("k", b"", cancel)])
    await entrance.until_delayed(0)


async def test_beyond_a_quota_messages_wait_at_the_broker(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    delay = f"{namespace}.delay"
    entrance = make_entrance(limits={"pending_messages": 2})
    entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    for id in ("a", "b", "c"):
        await rabbit.send(delay, [("k", b"", described(HOUR_MS, message_id=id))])
        if id != "c":
            await entrance.until(lambda: entrance.client.get(id), "stored")  # noqa: B023
    await entrance.until(lambda: "limits.pending_messages is reached" in caplog.text, "it waits")
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
    fraction = {"x-delay": Decimal("3599999.5")}
    sent = [
        ("k", b"all", described(headers=asked, message_id="all")),
        ("k", b"now", described(headers={"delaybridge-at-most-once": True})),
        ("k", b"fraction", described(headers=fraction, message_id="f")),
    ]
    await rabbit.send(delay, sent)
    await entrance.until_delayed(3)
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
    await rabbit.send(delay, [("k", b"1", described(0, message_id="id"))])
    if redelivered:
        await rabbit.do(
            lambda channel: channel.basic_reject(channel.basic_get(delay)[0].delivery_tag)
        )
        entrance.ingest("rabbitmq")
    await entrance.until_delayed(1)
    assert await entrance.client.cancel("id") is answer


async def test_messages_without_an_id_are_counted_and_the_first_is_logged(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If ingest is killed between store and ack, such a message arrives twice, under two ids."""
    entrance = make_entrance()
    entrance.ingest("rabbitmq")
    await reading(entrance, f"{namespace}.delay")
    with caplog.at_level("WARNING", "delaybridge"):
        for _ in range(3):
            await rabbit.send(f"{namespace}.delay", [("k", b"1", described(HOUR_MS))])
        named = described(HOUR_MS, message_id="id")
        await rabbit.send(f"{namespace}.delay", [("k", b"2", named)])
        await entrance.until_delayed(4)

    async def counted() -> int:
        found = await source(entrance, f"{namespace}.delay")
        return found.without_id if found is not None and found.without_id >= 3 else 0

    assert await entrance.until(counted, "counted") == 3
    (line,) = [message for message in caplog.messages if "id_missing" in message]
    assert "message_id" in line


async def test_a_message_sent_again_after_its_cancel_is_a_new_one(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    """The same bytes twice: the second cancel and the second message take effect, too."""
    sent = ("k", b"1", described(HOUR_MS, message_id="m"))
    cancel = ("k", b"", described(headers={"delaybridge-cancel": True}, message_id="m"))
    flag = ("k", b"the end", described(0))
    for messages, left in (([sent, cancel, sent], 1), ([cancel, sent, cancel], 0)):
        await rabbit.send(f"{namespace}.delay", [*messages, flag])
        await rabbit.take_raw(namespace, 1)
        await open_entrance.until_delayed(left)
        assert await rabbit.waiting(f"{namespace}.delay") == 0
    assert not await open_entrance.dead()


async def test_a_death_made_up_by_a_client_ends_nothing_while_stamps_are_remembered(
    make_entrance: MakeEntrance, rabbit: Exchanges, namespace: str
) -> None:
    entrance, delay = make_entrance(), f"{namespace}.delay"
    task = entrance.ingest("rabbitmq")
    await reading(entrance, delay)
    (intake,) = intakes = entrance.ingest_of(task).intakes
    identities = intake._identities
    identities.known[0].append((b"stamp", "id"))  # as if a channel had ended
    identities._since_s = asyncio.get_running_loop().time()
    forged = {"x-death": [{"queue": delay, "original-expiration": 5}]}
    await rabbit.send(delay, [("k", b"", described(HOUR_MS, headers=forged))])
    await entrance.until_dead(1)
    assert entrance.ingest_of(task).intakes == intakes and identities.known


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
        ("k", b"same", described(1, headers={"round": 0}, message_id=f"m{i}"))
        for i in range(messages)
    ]
    await rabbit.send(delay, first)
    seen = await rabbit.do(consume)
    assert seen == {f"m{i}": list(range(rounds + 1)) for i in range(messages)}
    assert not await open_entrance.dead()

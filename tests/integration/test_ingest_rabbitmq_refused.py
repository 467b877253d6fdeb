"""Delay exchanges: destinations that a header names, what is refused or undeliverable, the end."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
import redis
from pika.adapters.blocking_connection import BlockingChannel

from delaybridge.errors import StoreWiped
from delaybridge.message import Answer
from tests.rigs.ingest import Entrance, MakeEntrance, announced
from tests.rigs.ingest_rabbitmq import HOUR_MS, AsBytes, Exchanges, described, reading
from tests.rigs.waiting import DEADLINE_S

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
                ("k", b"allowed", described(delay, headers=allowed)),
                ("k", b"refused", described(delay, headers=refused)),
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
    await reading(entrance, first, second)


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
    bad: dict[str, tuple[str, bytes, Any]] = {
        "bad_time": ("k", b"1", described(headers={"x-delay": "soon"})),
        "time_ambiguous": ("k", b"2", described(5, headers={"delaybridge-delay": "5s"})),
        "reserved_header": ("k", b"3", described(5, headers={"delaybridge-dely": "5s"})),
        "too_far": ("k", b"4", described(2**62)),
        "body_too_large": ("k", b"5" * 200_000, described(5)),
        "bad_id": ("k", b"6", described(5, message_id="a\nb")),
        "self_loop": ("k", b"7", described(5, headers=back)),
        "headers_too_large": ("k", b"9", described(5, headers={"big": "x" * 100_000})),
        "not_integer_ms": ("k", b"10", AsBytes(b"\x11delaybridge-delayd" + struct.pack(">d", 1.9))),
    }
    await rabbit.send(delay, [*bad.values(), ("k", b"good", described(1))])
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert raw.body == b"good"
    await entrance.until_dead(len(bad))
    dead = {(message.reason or "").split()[0]: message for message in await entrance.dead()}
    assert set(dead) == {f"ingress:{code}" for code in bad}
    for code, (_, body, _) in bad.items():
        assert dead[f"ingress:{code}"].body == body
        assert dead[f"ingress:{code}"].destination == f"rabbitmq:{namespace}/k"

    await announced(entrance, delay, len(bad) + 1, len(bad))
    # after repair each can be kicked, with everything that it came with
    assert await entrance.client.dead.kick(dead["ingress:bad_id"].id) is Answer.KICKED
    (raw,) = await rabbit.take_raw(namespace, 1)
    assert (raw.body, raw.properties["message_id"]) == (b"6", "a\nb")


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
        await rabbit.send(name, [("k", b"%d" % i, described(0)) for i in (1, 2)])
        if name == sources[1]:
            await entrance.until_dead(4)
    assert [raw.body for raw in await rabbit.take_raw(fine, 2)] == [b"1", b"2"]
    reasons = {(m.destination.rpartition("-")[2], m.reason or "") for m in await entrance.dead()}
    assert {where for where, _ in reasons} == {"unbound/k", "missing/k"}
    for where, reason in reasons:
        assert ("unroutable" if where == "unbound/k" else "exchange_missing") in reason
    # then it is stored, under another id if its own is pending for another source
    await entrance.client.schedule(f"rabbitmq:{fine}/k", b"", delay="1h", id="taken")
    await rabbit.send(sources[0], [("k", b"3", described(0, message_id="taken"))])
    await entrance.until_dead(5)
    (kept,) = await entrance.client.dead.quarantined("taken")
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
            channel.basic_publish(delay, "k", b"the same", described(HOUR_MS))

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
        for bucket in range(4):  # with a message of that namespace: an empty one is taken over
            store.hset(f"{{{namespace}:{bucket}}}:marks", "birth", "another")
            store.hset(f"{{{namespace}:{bucket}}}:messages", "of another", b"")
    await rabbit.publish(delay, "k", headers={"x-delay": HOUR_MS})
    with pytest.raises(StoreWiped):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.shield(task)
    await entrance.kill(task)  # it has ended
    await entrance.until(lambda: all_counted(rabbit, delay, 1), "the message is in its queue again")

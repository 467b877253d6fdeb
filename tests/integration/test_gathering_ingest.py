"""Debounce and throttle by the headers of a delay exchange, and of a drop-in producer."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from delaybridge import Client, Debounce, MessageConflict
from delaybridge.intercept.pika import BlockingConnection
from delaybridge.store.protocol.stored import Stored
from tests.rigs.ingest import Entrance
from tests.rigs.ingest_rabbitmq import Exchanges, described


async def test_a_delay_exchange_delivers_the_first_and_keeps_the_last(
    open_entrance: Entrance, rabbit: Exchanges, namespace: str
) -> None:
    debounced: dict[str, Any] = {
        "delaybridge-debounce": "page", "delaybridge-quiet": "40m", "delaybridge-longest": "2h",
    }  # fmt: skip
    throttled = {"delaybridge-throttle": "user", "delaybridge-every": 3_600_000}
    sent = [
        ("k", b"%d" % n, described(headers=headers, message_id=f"m{n}{len(headers)}"))
        for n in range(6)
        for headers in (debounced, throttled)
    ]
    await rabbit.send(f"{namespace}.delay", sent)

    async def the_last() -> dict[str, Stored] | None:
        found = {each.id: each for each in await open_entrance.delayed()}
        is_last = [found[id].body for id in found] == [b"5", b"5"]
        return found if is_last and set(found) == {"page", "user"} else None

    found = await open_entrance.until(the_last, "the last ones wait")
    assert found["page"].destination.endswith("/k")
    (first,) = await rabbit.take_raw(namespace, 1)
    assert first.body == b"0"
    assert first.headers["delaybridge-id"].startswith("user@")
    assert not await open_entrance.dead()


def test_pika_takes_it_in_place_of_a_delay(
    redis_url: str, rabbitmq_url: str, namespace: str
) -> None:
    with (
        Client(redis_url, namespace=namespace, brokers={"rabbitmq": rabbitmq_url}) as client,
        BlockingConnection(pika.URLParameters(rabbitmq_url), client=client) as connection,
    ):
        channel = connection.channel()
        named = pika.BasicProperties(message_id="m1", headers={"a": 1})
        how = Debounce("page", "40m")
        first = channel.basic_publish("", "q", b"1", named, delay=how)
        assert first is not None and (str(first), first.id) == ("created", "page")
        by_header = pika.BasicProperties(headers={"delaybridge-debounce": "page"})
        again = channel.basic_publish("", "q", b"2", by_header)
        assert again is not None and (str(again), again.id) == ("replaced", "page")
        with pytest.raises(MessageConflict):
            channel.basic_publish("", "another", b"3", by_header)
        pending = client.get("page")
        assert pending is not None and pending.body == b"2" and not pending.headers

"""A purge of a destination: every message in whatever state, and none is delivered after."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from delaybridge import Answer, Client, Message
from delaybridge.client import destinations
from delaybridge.client.messages import MessageVerbs
from delaybridge.store.protocol.verbs import Steps
from tests.rigs.command_line import Run
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.flavours import Maker
from tests.rigs.waiting import until_async

BROKERS = {"rabbitmq": "amqp://h", "kafka": "kafka://h", "eu": "amqp://eu"}
MANY = ("rabbitmq:orders/close", "rabbitmq:orders/close", "rabbitmq:orders/open", "rabbitmq:/jobs")


async def test_a_purge_takes_every_message_of_a_place_in_whatever_state(
    make: Maker, redis_url: str, namespace: str
) -> None:
    client = make(redis_url, namespace=namespace, brokers=BROKERS)
    messages = [Message(MANY[n % 4], b"", delay=3600, id=f"{n}") for n in range(600)]
    await client.schedule_many(messages)
    assert await client.destinations.purge("rabbitmq:orders") == {Answer.CANCELLED: 450}
    assert await client.destinations.purge("rabbitmq:orders") == {}
    (left,) = (await client.destinations("rabbitmq:/jobs")).places
    assert left.delayed == (150, 0)
    assert await client.destinations.purge("rabbitmq") == {Answer.CANCELLED: 150}


async def test_a_purge_of_a_paused_destination_takes_its_parked_messages_and_delivers_none(
    crew: Crew, arrived: Arrived
) -> None:
    crew.start()
    await crew.shared("w")
    await crew.client.destinations.pause("memory:paused")
    await crew.obeys_pause("memory:paused")
    some = [Message("memory:paused", b"", delay=0.05 * n, id=f"p{n}") for n in range(100)]
    other = [Message("memory:other", b"", delay=0.05 * n, id=f"o{n}") for n in range(40)]
    await crew.client.schedule_many([*some, *other])

    async def is_parked() -> bool:
        return bool((await crew.client.destinations("memory:paused")).places[0].parked.messages)

    await until_async(is_parked, "some are parked")
    (stored,) = (await crew.client.pending(state="parked", limit=1)).items
    assert (stored.reason or "").startswith("paused: memory:paused;")
    answers = await crew.client.destinations.purge("memory:paused")
    assert answers == {Answer.CANCELLED: 100}
    await crew.client.destinations.resume("memory:paused")
    await arrived.all([message.id for message in other if message.id])
    assert not [id for id in arrived.at_ms if id.startswith("p")]


async def test_a_purge_while_messages_fall_due_never_delivers_what_it_answered_purged(
    crew: Crew, arrived: Arrived, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.start(lease=CALM)
    await crew.shared("w")
    monkeypatch.setattr(destinations, "CALL_MESSAGES", 20)
    ids = [f"m{n}" for n in range(400)]
    # However late the purge begins, some are still to come.
    delays = [0.005 * n if n < 300 else 3600 for n in range(400)]
    await crew.client.schedule_many(
        [Message("memory:t", b"", delay=s, id=id) for s, id in zip(delays, ids, strict=True)]
    )
    answered: dict[str, Answer] = {}
    cancel_many = MessageVerbs.cancel_many.call

    def noted(client: Any, messages: Any) -> Steps[list[Answer]]:
        answers = yield from cancel_many(client, messages)
        answered.update(zip([one.id for one in messages], answers, strict=True))
        return answers

    row = replace(MessageVerbs.cancel_many, call=noted)
    monkeypatch.setattr(MessageVerbs, "cancel_many", row)
    while len(arrived.at_ms) < 20:
        await asyncio.sleep(0)
    counts = await crew.client.destinations.purge("memory:t")
    purged = {id for id, answer in answered.items() if answer is Answer.CANCELLED}
    assert counts[Answer.CANCELLED] == len(purged) > 50
    await arrived.all([id for id in ids if id not in purged])
    assert not purged & arrived.at_ms.keys()


def test_the_purge_of_the_command_line_looks_again_until_nothing_is_left(
    run: Run, redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come while it runs stand for those that move back to a state already read."""
    with Client(redis_url, namespace=namespace) as client:
        some = [Message("kafka:t", b"", delay=3600, id=f"m{n}", key="k") for n in range(5)]
        client.schedule_many(some)
        cancel_many, late = Client.cancel_many, ["m5", "m6"]

        def scheduling(self: Client, messages: Any, **fields: Any) -> list[Answer]:
            while late:
                client.schedule("kafka:t", b"", delay=3600, id=late.pop(), key="k")
            return cancel_many(self, messages, **fields)

        monkeypatch.setattr(Client, "cancel_many", scheduling)
        purged = run("destination", "purge", "kafka:t", "--confirm", "kafka:t")
        monkeypatch.undo()
        assert (purged.code, purged.err) == (0, "7 cancelled\n")
        assert client.pending().items == []


def test_counters_of_a_purge_count_late_messages_once() -> None:
    purge = destinations.Purge("kafka:t")
    purge.count([Answer.CANCELLED, Answer.IN_FLIGHT, Answer.IN_FLIGHT])
    purge.end_pass()
    assert not purge.is_done
    purge.count([Answer.IN_FLIGHT])
    purge.end_pass()
    assert purge.is_done
    assert purge.answers == Counter({Answer.CANCELLED: 1, Answer.IN_FLIGHT: 1})

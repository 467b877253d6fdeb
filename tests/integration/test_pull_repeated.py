"""What a source repeats while a consumer of a pull topic has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from delaybridge.events import OrphansMended
from delaybridge.message import KNOWN, Message
from delaybridge.store.calls import Calls
from delaybridge.store.protocol.keys import bucket_key
from delaybridge.store.protocol.verbs import Each, SourceOffsets, Steps, bucket_of, new_stamp, plain
from tests.rigs.crew import BUCKETS, CALM, Crew
from tests.rigs.waiting import until_async


async def test_a_run_that_is_made_again_leaves_its_consumer_the_message(
    redis_url: str, namespace: str
) -> None:
    async with Crew(redis_url, namespace) as crew:
        crew.start(lease=CALM)
        client = crew.client
        await client.schedule("pull:t", b"x", delay=0, id="run")
        held: list[Any] = []

        async def is_received() -> Sequence[Any]:
            held.extend(await client.topics.receive("t", ttr="1h"))
            return held

        await until_async(is_received, "received")
        accepted = client.accept(Message("pull:t", b"x", delay=0, id="run"))

        def again(calls: Calls) -> Steps[Any]:
            buckets = yield from calls.open()
            bucket = buckets[bucket_of(accepted.shard_key, len(buckets))]
            yield [plain("HSET", bucket.key("sources"), "backfill:1", 0)]
            source = SourceOffsets("backfill:1", (5,))
            return (yield Each([bucket.schedule([(new_stamp(), accepted)], KNOWN, source=source)]))

        await client.run(again)
        assert [str(answer) for answer in await client.topics.finish(held)] == ["finished"]


async def test_what_took_the_place_of_a_received_message_is_found_though_due_vanished(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own call must not look as if it had been sent already: it comes at most once."""
    monkeypatch.setattr("delaybridge.scan.mending._LONGEST_S", 0.001)
    async with Crew(redis_url, namespace) as crew:
        crew.start(lease=CALM)
        client = crew.client
        await client.schedule("pull:t", b"x", delay=0, id="x")
        await until_async(lambda: client.topics.receive("t", ttr="1h"), "received")
        later: dict[str, Any] = {"delay": 3600, "at_most_once": True}
        assert await client.schedule("memory:q", b"again", id="x", **later) == "created"
        due = bucket_key(namespace, bucket_of(b"x", BUCKETS), "due")
        await crew.store.redis.delete(due)
        await until_async(lambda: crew.store.redis.zscore(due, "x"), "found")
        told = await until_async(lambda: [e for e in crew.events if isinstance(e, OrphansMended)])
        assert [event.due for event in told] == [1]

"""What a source repeats while a consumer of a pull topic has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delaybridge.message import Message
from delaybridge.store.calls import Calls
from delaybridge.store.command import Each, Steps, plain
from delaybridge.store.keys import bucket_of
from delaybridge.store.verbs import KNOWN, SourceOffsets, new_stamp
from tests.rigs.crew import CALM, Crew
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
            held.extend(await client.receive("t", ttr="1h"))
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
        assert [str(answer) for answer in await client.finish(held)] == ["finished"]

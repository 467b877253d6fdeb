"""Export, import and redirect while messages move to other buckets: nothing twice, nothing lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from delaybridge import Client, Message, Selection
from delaybridge.carry.exporting import ALL_STATES, MessageExport, portions
from delaybridge.carry.importing import Import
from delaybridge.carry.line import read_line
from delaybridge.client import AsyncClient
from delaybridge.message import Limits
from delaybridge.resize import resizing
from delaybridge.store.protocol import moves
from delaybridge.store.protocol.moves import EMPTY
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.hand_mover import HandMover
from tests.rigs.waiting import until_async

IDS = [f"id{n}" for n in range(60)]
WHOLE = Selection(states=ALL_STATES, is_whole=True)


def emptied(hand: HandMover, number: int) -> Iterator[None]:
    """All steps of the move of a bucket, one at a time."""
    hand.begin(number)
    yield
    landed = b""
    while (found := hand.lift(number, landed)).phase != EMPTY or found.page is not None:
        landed = b""
        yield
        if found.page is not None:
            assert hand.land(number, found.page) == []
            landed = found.page.stamp
            yield
    assert hand.run(moves.retire(hand.bucket(number)))


def all_steps(hand: HandMover, random: random.Random) -> Iterator[None]:
    """Every bucket is emptied, some at the same time; then the namespace has the new ones."""
    ways = [emptied(hand, number) for number in hand.sources]
    while ways:
        way = random.choice(ways[:2])
        if next(way, "ended") == "ended":
            ways.remove(way)
        yield
    hand.finish()


SEEDS = [pytest.param(n, marks=pytest.mark.slow) if n > 1 else n for n in range(12)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("before", "after"), [(2, 8), (8, 2)])
def test_a_walk_finds_each_message_once_however_it_moves_meanwhile(
    redis_url: str, namespace: str, before: int, after: int, seed: int
) -> None:
    chance = random.Random(seed)
    with (
        Client(redis_url, namespace=namespace, buckets=before) as mover,
        Client(redis_url, namespace=namespace) as client,
    ):
        mover.schedule_many([Message("kafka:t", b"x", id=id, delay="1h") for id in IDS])
        steps = all_steps(HandMover(mover, after, limit=3), chance)
        ends = False
        while not ends:
            told: list[object] = []
            run, found = MessageExport(ALL_STATES, told.append), Counter[str]()
            walk = client._walk(WHOLE)
            while (page := client._store.complete(walk.page())) is not None:
                for _ in range(chance.randrange(2)):
                    ends = next(steps, "ended") == "ended"
                for some in portions(page):
                    text = client.run(partial(run.read, some=some))
                    found.update(json.loads(line)["id"] for line in text.splitlines())
            assert (sorted(found), set(found.values())) == (sorted(IDS), {1})
            assert (told, run.is_partly) == ([], False)


async def exported(client: AsyncClient) -> tuple[list[bytes], bool]:
    """The lines of all messages that begin with `old`; whether some may be missing."""
    run = MessageExport(ALL_STATES, lambda bad: pytest.fail(str(bad)))
    chosen = Selection(states=ALL_STATES, is_whole=True, id_prefix="old")
    lines: list[bytes] = []
    async for page in client.select(chosen):
        for some in portions(page):
            lines += (await client.run(partial(run.read, some=some))).splitlines()
    return lines, run.is_partly


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4)])
async def test_export_import_and_redirect_while_workers_resize(
    redis_url: str, namespace: str, arrived: Arrived, before: int, after: int
) -> None:
    async with Crew(redis_url, namespace, before) as crew:
        client = crew.client
        for name in "ab":
            crew.start(name, buckets=before, lease=CALM)

        async def are_held() -> bool:
            return (await crew.shares()).total() == before

        await until_async(are_held, "all buckets are held")
        old = [f"old{n}" for n in range(600)]
        await client.schedule_many([Message("memory:q", b"x", id=id, delay="1h") for id in old])
        await client.run(lambda calls: resizing.begin(calls, after))
        answers, exports, stored = Counter[str](), 0, Counter[str]()
        while (await client.run(resizing.progress)).to is not None:
            # Exported under way, each is there once.
            lines, is_partly = await exported(client)
            assert not is_partly
            found = Counter(json.loads(line)["id"] for line in lines)
            assert (found.keys(), set(found.values())) == ({*old}, {1})
            # Imported under other ids, each is stored once.
            new = [line.replace(b'"old', b'"new%d-' % exports) for line in lines[:100]]
            run = Import(client.kinds, Limits(), tell=lambda bad: pytest.fail(str(bad)))
            for _ in range(2):
                read = [read_line(line, "line") for line in new]
                for batch in run.batches(enumerate(read, 1)):
                    await client.run(partial(run.store, batch=batch))
            stored += run.counts
            # Redirected, each goes to one of the two.
            chosen = Selection(id_prefix="old", destination="memory:q")
            async for page in client.select(chosen):
                answers.update(await client.redirect_many(page[:40], to=f"memory:r{exports}"))
            exports += 1
        assert exports > 0
        assert stored == {"created": 100 * exports, "duplicate": 100 * exports}
        assert answers.keys() == {"redirected"}
        gone = sum([m.destination != "memory:q" for m in [await client.get(id) for id in old] if m])
        assert gone == answers["redirected"]
        assert (await client.stats()).delayed == len(old) + 100 * exports
        assert not arrived.at_ms
        for name in "ab":
            await crew.stop(name)

"""Damaged keys in Redis: they are named, their bucket waits, and all other buckets go on."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
import redis.asyncio

from delaybridge.client import AsyncClient, Client
from delaybridge.errors import StoreError
from delaybridge.events import BucketDamaged, LeaseLost, ScannerFailed
from delaybridge.message import Message
from delaybridge.operate import cli
from delaybridge.store.calls import Calls
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.bucket import Item
from delaybridge.store.redis.store import AsyncStore
from tests.rigs.crew import Arrived, Crew
from tests.rigs.damage import BUCKETS, HEALTHY, KEPT, KINDS, SICK, Kind, Place, id_for
from tests.rigs.waiting import until_async

POLL_S = 0.25  # many wait at once, and a starved machine is to do more than to look
TTL_MS = 10_000  # a busy machine renews it in time; some damage lasts until it runs out
AT_ONCE = 24
STOPS_ITS_WORKER = ("due-wrong-type", "mirror-wrong-type", "marks-turn-x")


class Damaged:
    """A worker with two buckets, one of which is damaged, and then mended."""

    def __init__(self, url: str, namespace: str, number: int, kind: Kind, arrived: Arrived) -> None:
        self.crew = Crew(url, namespace, BUCKETS)
        self.number, self.kind, self.arrived = number, kind, arrived
        self.place = Place(self.crew.store.redis, namespace, SICK, "w")
        self.named: list[Damage] = []  # as stats named it last

    async def schedule(self, id: str, delay: float) -> None:
        receipt = await self.crew.client.schedule("memory:q", b"x", id=id, delay=delay)
        assert receipt == "created"

    async def until_scheduled(self, id: str) -> None:
        """Schedule repeatedly, until the bucket takes it."""

        async def taken() -> bool:
            with suppress(StoreError):
                await self.schedule(id, 0.1)
                return True
            return False

        await self.until(taken, f"{id} is accepted")

    async def until(self, predicate: Callable[[], Awaitable[bool]], what: str) -> None:
        await until_async(predicate, what, interval_s=POLL_S)

    async def live(self) -> None:
        self.crew.start(buckets=BUCKETS, lease={"ttl_ms": TTL_MS, "renew_ms": 500})
        await self.until(self._is_owned, "both buckets are owned")
        await self.schedule(KEPT, 3600)
        self.birth = (await self.place.redis.get(self.place.key("birth"))).decode()
        await self.kind.harm(self.place)

        healthy, sick, after = (
            id_for(bucket, f"{what}-{self.number}")
            for bucket, what in ((HEALTHY, "healthy"), (SICK, "sick"), (SICK, "after"))
        )
        await self.schedule(healthy, 0.3)
        accepted = [healthy]
        with suppress(StoreError):
            await self.schedule(sick, 0.3)
            accepted.append(sick)
        await self.arrived.all([healthy])
        if self.kind.is_named:
            await self.until(lambda: self._is_named_or(sick), "it is named")
            if self.kind.name in STOPS_ITS_WORKER:
                await self.until(self._is_told, "its worker says it, too")
            await self._mend()
        await self.until_scheduled(after)
        await self.arrived.all([after, *accepted])
        await self.crew.stop()
        assert not self.crew.heard(ScannerFailed)
        assert not [lost for lost in self.crew.heard(LeaseLost) if lost.bucket == HEALTHY]

    async def _is_owned(self) -> bool:
        return len([b for b in (await self.crew.client.stats()).buckets if b.owner == "w"]) == 2

    async def _is_named_or(self, sick: str) -> bool:
        """Whether it is named; or work has healed it, and the bucket's messages go out."""
        key = self.place.key(self.kind.named or self.kind.key)
        self.named = await self._damage()
        return key in " ".join(map(str, self.named)) or sick in self.arrived.at_ms

    async def _is_told(self) -> bool:
        key = self.place.key(self.kind.key)
        return any(key in told.reason for told in self.crew.heard(BucketDamaged))

    async def _damage(self) -> list[Damage]:
        return (await self.crew.client.stats()).all_damage

    async def _mend(self) -> None:
        """Follow the remedies, until none is given any more.

        The first is the one that was named: for as long as its worker has released the bucket and
        not announced the damage, stats may show none.
        """
        done = ""

        async def is_mended() -> bool:
            nonlocal done
            if self.named and done != self.named[0].remedy:  # else its worker has yet to notice
                done = self.named[0].remedy
                command = shlex.split(done.partition("redis-cli ")[2])
                if self.named[0].key == self.place.key("birth"):
                    command = ["SET", self.named[0].key, self.birth]
                if command:  # none: its worker met the damage and looked when it was mended
                    await self.place.redis.execute_command(*command)
            elif not self.named:
                return True
            self.named = await self._damage()
            return False

        await self.until(is_mended, "it is mended")


SOME_AND_ALL = pytest.mark.parametrize(
    "kinds",
    [pytest.param(KINDS[::5], id="some"), pytest.param(KINDS, id="all", marks=pytest.mark.slow)],
)


@SOME_AND_ALL
async def test_a_damaged_bucket_does_not_stop_others_and_works_again_once_mended(
    redis_url: str, namespace: str, arrived: Arrived, kinds: Sequence[Kind]
) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def fault_of(number: int, kind: Kind) -> str | None:
        async with limit:
            damaged = Damaged(redis_url, f"{namespace}-{number}", number, kind, arrived)
            try:
                await damaged.live()
            except (AssertionError, Exception) as exc:
                heard = [
                    e for e in damaged.crew.events if isinstance(e, ScannerFailed | BucketDamaged)
                ]
                return f"{kind.name}: {exc!r} {heard[:2]}"
            finally:
                await damaged.crew.close()
        return None

    found = await asyncio.gather(*(fault_of(number, kind) for number, kind in enumerate(kinds)))
    assert not any(found), "\n".join(filter(None, found))


OTHER_COMMANDS = (
    *("stats", "health", "worker ls", "dead ls"),
    *("message ls", "message ls --state in_flight", f"message show {KEPT}"),
)


@SOME_AND_ALL
@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(("doctor", "message ls"), id="some"),
        pytest.param(OTHER_COMMANDS, id="others", marks=pytest.mark.slow),
    ],
)
async def test_no_command_reports_damage_as_a_bug_of_delaybridge_and_doctor_names_its_key(
    redis_url: str,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    commands: tuple[str, ...],
    kinds: Sequence[Kind],
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", str(BUCKETS))
    faults = []
    async with redis.asyncio.Redis.from_url(redis_url) as connection:
        for number, kind in enumerate(kinds):
            if kind.key == "wake":
                continue
            # Who is announced lives on while a starved machine runs the commands.
            place = Place(connection, f"{namespace}-{number}", SICK, "w", lives_ms=60_000)
            await _populate(redis_url, place)
            await kind.harm(place)
            for line in commands:
                flags = ["--redis", redis_url, "--namespace", place.namespace, "--json"]
                code = cli.main([*flags, *line.split()])
                printed = "".join(capsys.readouterr())
                if code not in (0, 1, 3, 4, 5) or "internal" in printed or "Traceback" in printed:
                    faults.append(f"{kind.name}: {line}: {code} {printed[:300]}")
                if (
                    line == "doctor"
                    and kind.is_named
                    and place.key(kind.named or kind.key) not in printed
                ):
                    faults.append(f"{kind.name}: not named by doctor: {printed[:3000]}")
    assert not faults, "\n".join(faults)


async def _populate(url: str, place: Place) -> None:
    """A message of each state in the bucket, and a worker and an ingest process."""
    client = AsyncClient(url, namespace=place.namespace, buckets=BUCKETS)
    store = AsyncStore(url)
    buckets = await client.run(Calls.open)
    ids = [KEPT, *(id_for(SICK, what) for what in ("flying", "parked", "dead"))]
    await client.schedule_many([Message("memory:q", b"x", delay=3600, id=id) for id in ids])
    bucket, run = buckets[SICK], store.run_one
    taken = await run(bucket.acquire("w:1", 60_000))
    claimed = await run(
        bucket.claim(taken.token, 60_000, taken.turn, ahead_ms=10**8, limit=9, max_bytes=9999)
    )
    items = {id.decode(): Item(id.decode(), claimed.number, 0.0) for id in claimed.ids}
    await run(bucket.retry(taken.token, 60_000, [(items[KEPT], None, False, "")]))
    await run(bucket.park(taken.token, 60_000, [items[ids[2]]]))
    await run(bucket.bury(taken.token, 60_000, [(items[ids[3]], False, False, "why")]))
    about = json.dumps({"host": "h", "pid": 1, "version": "1", "started_ms": 1}).encode()
    for kind in (registry.WORKER, registry.INGEST, registry.FRONT):
        announcement = registry.announce(
            place.namespace, place.worker, "0" * 16, 60_000, about, kind=kind
        )
        await run(announcement)
    await client.close()
    await store.close()


@pytest.mark.parametrize("odd", ["x", "nan", "9" * 19, ""])
def test_a_counter_that_is_no_number_begins_anew_and_no_call_fails(
    redis_url: str, raw: redis.Redis, namespace: str, odd: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=1) as client:
        marks = keys.bucket_key(namespace, 0, "marks")
        client.schedule("memory:q", b"x", delay=60, id="first")
        counters = ("scheduled", "cancelled", "rescheduled", "kicked")
        raw.hset(marks, mapping=dict.fromkeys(counters, odd))
        two = [Message("memory:q", b"x", delay=60, id=id) for id in ("first", "second")]
        assert client.schedule("memory:q", b"x", delay=60, id="third") == "created"
        assert [each.answer for each in client.schedule_many(two)] == ["duplicate", "created"]
        assert client.reschedule("second", delay=90) == "rescheduled"
        assert client.cancel("second") == "cancelled"
        raw.zrem(keys.bucket_key(namespace, 0, "due"), "first")
        raw.zadd(keys.bucket_key(namespace, 0, "dead"), {"first": 1})
        assert client.dead.kick("first") == "kicked"
        assert raw.hmget(marks, *counters) == [b"2", b"1", b"1", b"1"]

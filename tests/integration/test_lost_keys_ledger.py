"""Buckets that lost keys, with a ledger: every message comes, whatever was deleted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from delaybridge import Client, Message
from delaybridge.errors import StoreError
from delaybridge.ingest.entries import Quarantine
from delaybridge.ingest.storing import store_entries
from delaybridge.ledger.comparing import healing
from delaybridge.ledger.comparing.agreement import Comparing, compare
from delaybridge.message import Record, encode_record
from delaybridge.scan.leases.damaged_buckets import DamagedBuckets
from delaybridge.scan.leases.session import Session
from delaybridge.store.protocol import keys, verbs
from delaybridge.store.protocol.bucket import Bucket
from delaybridge.store.redis.store import AsyncStore, Store
from tests.rigs.bucket import TTL_MS, World
from tests.rigs.command_line import Run
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe, made
from tests.rigs.waiting import until_async

ALL = ("due", "messages", "mirror", "parked", "dead", "dead_reason", "attempts", "marks")
SOME = [
    (), *((key,) for key in ALL), ("due", "messages"), ("messages", "mirror"),
    ("messages", "parked"), ("dead", "messages"), ("dead", "dead_reason"), ("messages", "marks"),
    ("mirror", "marks"), ("due", "mirror", "parked", "marks"), ALL[:-2], ALL,
    ("due", "messages", "parked", "dead", "dead_reason"),
    ("half of messages", "half of due"), ("half of messages", "marks"), ("half of due", "parked"),
    ("half of mirror", "half of marks"), *((f"half of {key}",) for key in ALL),
]  # fmt: skip
SUBSETS = [each for size in range(len(ALL) + 1) for each in combinations(ALL, size)]
KINDS = ("parked", "claimed", "dead", "delayed")
EACH = 2  # messages of each kind


class LostKeys:
    """A namespace in which bucket n loses the keys named by `lost[n]`."""

    def __init__(self, crew: Crew, lost: Sequence[Sequence[str]], raw: redis_py.Redis) -> None:
        self.crew, self.lost, self.raw = crew, lost, raw
        self.ids: dict[str, dict[int, list[str]]] = {kind: {} for kind in KINDS}
        for kind in KINDS:
            self._draw(kind)

    def _draw(self, kind: str) -> None:
        left = len(self.lost) * EACH
        for number in range(100_000):
            bucket = verbs.bucket_of(f"{kind}{number}".encode(), len(self.lost))
            own = self.ids[kind].setdefault(bucket, [])
            if len(own) < EACH:
                own.append(f"{kind}{number}")
                left -= 1
            if not left:
                return

    def of(self, *kinds: str) -> list[str]:
        return [id for kind in kinds for own in self.ids[kind].values() for id in own]

    async def fill(self, store: Store) -> None:
        """Messages of every state, in buckets that a worker has compared with the ledger."""
        client, record = self.crew.client, encode_record(Record("memory:q", b"x"))
        await self._schedule("parked")
        worlds = [World.of_key(store, self.crew.url, self.crew.namespace, own[0].encode())
                  for own in self.ids["parked"].values()]  # fmt: skip
        owners = [world.owner() for world in worlds]
        for owner in owners:
            owner.world.run(owner.parking(*owner.claim()))
        await self._schedule("claimed")
        run_id = self.raw.info("server")["run_id"]
        for owner in owners:
            assert len(owner.claim()) == EACH
            held, healed = (owner.token, TTL_MS), f"{run_id}:{owner.token}"
            owner.world.run(healing.seal(owner.bucket, held, healed=healed))
            owner.world.end_lease()
            owner.world.store.close()
        stamps = (number.to_bytes(4) for number in range(10_000))
        buried = [Quarantine(id, next(stamps), record, "ingress:odd") for id in self.of("dead")]
        await client.run(lambda calls: store_entries(calls, buried))
        await self._schedule("delayed")

    async def _schedule(self, kind: str) -> None:
        messages = [Message("memory:q", b"x", delay=0, id=id) for id in self.of(kind)]
        await self.crew.client.schedule_many(messages)

    def lose(self) -> None:
        for bucket, names in enumerate(self.lost):
            for name in names:
                key = keys.bucket_key(self.crew.namespace, bucket, name.removeprefix("half of "))
                if name.startswith("half"):
                    self._lose_half(key)
                else:
                    self.raw.delete(key)

    def _lose_half(self, key: str) -> None:
        if self.raw.type(key) == b"zset":
            self.raw.zrem(key, *self.raw.zrange(key, 0, -1)[::2])
        elif fields := sorted(self.raw.hkeys(key))[::2]:
            self.raw.hdel(key, *fields)

    def buckets(self, *names: str) -> set[int]:
        """Those that lost all of these keys."""
        return {bucket for bucket, lost in enumerate(self.lost) if {*names} <= {*lost}}


@pytest.mark.parametrize(
    "lost",
    [pytest.param(SOME, id="some"), pytest.param(SUBSETS, id="every", marks=pytest.mark.slow)],
)
async def test_all_come_whatever_keys_a_bucket_lost(
    redis_url: str, namespace: str, store: Store, arrived: Arrived, tmp_path: Path,
    raw: redis_py.Redis, lost: Any,
) -> None:  # fmt: skip
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = LedgerProbe(url)
    async with Crew(redis_url, namespace, len(lost), ledger=url) as crew:
        site = LostKeys(crew, lost, raw)
        await site.fill(store)
        # Rounds leave out rows of young calls: only what contradicts nothing is to wait for one.
        unseen = ",".join(map(str, site.buckets(*ALL[:-2])))
        older = f"CASE WHEN bucket IN ({unseen}) THEN -60000 ELSE 3600000 END"
        ledger.ask(f"UPDATE message SET created_ms = created_ms + {older}")
        site.lose()
        crew.start(lease=CALM, buckets=len(lost), ledger={"reconcile_s": 1.0})
        tried = [id for bucket in site.buckets("dead", "dead_reason") - site.buckets("messages")
                 for id in site.ids["dead"][bucket]]  # fmt: skip
        await arrived.all([*site.of("parked", "claimed", "delayed"), *tried])
        assert arrived.twice == []
        await until_async(lambda: ledger.states() == {
            "published": len(arrived.at_ms), "dead": len(site.of("dead")) - len(tried)
        }, lambda: f"{ledger.states()}")  # fmt: skip
        dead = {each.id: each.reason for each in (await crew.client.dead(limit=1000)).items}
        assert dead.keys() == {*site.of("dead")} - {*tried}
        told = {bucket for bucket, names in enumerate(lost) if "dead_reason" in " ".join(names)}
        assert {dead[id] for bucket, ids in site.ids["dead"].items() if bucket not in told
                for id in ids} == {"ingress:odd"}  # fmt: skip
        stats = await crew.client.stats()
        assert not stats.all_damage
        await crew.stop()
    ledger.close()


async def test_an_entry_whose_record_is_gone_is_no_message_that_the_ledger_lacks(
    redis_url: str, namespace: str, tmp_path: Path, raw: redis_py.Redis
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    async with Crew(redis_url, namespace, 1, ledger=url) as crew:
        await crew.schedule(3, seconds=1, first_s=3000)
        raw.delete(keys.bucket_key(namespace, 0, "messages"))
        recorder = crew.client._store.recorder
        assert recorder is not None
        (bucket,) = await crew.client.run(lambda calls: calls.open())
        looked = compare(bucket, recorder.records, Comparing(now_ms=1))
        found = await crew.client._store.complete(looked)
        assert found is not None
        assert (found.messages, found.without_row) == (0, 0)


def held(crew: Crew) -> list[Session]:
    """The sessions of its worker that may claim."""
    run = crew.workers["w"].current_run
    return [] if run is None else [each for each in run._shifts.sessions() if each.ready]


async def test_what_was_buried_without_its_record_comes_once_its_keys_are_counted(
    redis_url: str, namespace: str, arrived: Arrived, tmp_path: Path, raw: redis_py.Redis
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    async with Crew(redis_url, namespace, 1, ledger=url) as crew:
        kept: dict[str, Any] = {
            "ledger": {"reconcile_s": 1800.0},
            "scan": {"claim_ahead_ms": 5, "fire_lead_ms": 5},
        }
        crew.start(lease=CALM, buckets=1, **kept)
        (session,) = await until_async(lambda: held(crew))
        ids = await crew.schedule(3, seconds=0.1, first_s=1.0)
        raw.delete(keys.bucket_key(namespace, 0, "messages"))

        async def buried() -> bool:
            return len((await crew.client.dead()).items) == 3

        await until_async(buried, "they are due, and nobody has their records")
        await session.holder.mending.compare()
        await arrived.all(ids)
        await crew.stop()


async def test_a_worker_goes_on_by_itself_though_the_marks_of_its_bucket_vanished(
    redis_url: str, namespace: str, arrived: Arrived, tmp_path: Path, raw: redis_py.Redis
) -> None:
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    async with Crew(redis_url, namespace, 1, ledger=url) as crew:
        crew.start(lease=CALM, buckets=1)
        (session,) = await until_async(lambda: held(crew))
        raw.delete(keys.bucket_key(namespace, 0, "marks"))
        await until_async(lambda: not session.alive, "its next renewal is refused")
        await arrived.all(await crew.schedule(3, seconds=0.1))
        await crew.stop()


async def test_marks_of_another_namespace_are_left_to_the_operator(
    redis_url: str, namespace: str, raw: redis_py.Redis
) -> None:
    bucket, now_s, store = Bucket(namespace, 0, "birth"), [0.0], AsyncStore(redis_url)
    found = DamagedBuckets(store, lambda: now_s[0], lambda event: None, ("w", TTL_MS))
    raw.hset(bucket.key("marks"), mapping={"birth": "other", "healed": "x"})
    found.add(bucket, StoreError("refused"))
    await found.retry()
    assert raw.hgetall(bucket.key("marks")) == {b"birth": b"other", b"healed": b"x"}
    raw.hset(bucket.key("marks"), "birth", "birth")
    now_s[0] = 2.0
    await found.retry()
    assert (raw.hget(bucket.key("marks"), "turn"), found.numbers) == (b"2", set())
    assert not raw.exists(bucket.key("lease"))
    await store.close()


def test_restore_tells_of_messages_that_it_leaves_to_the_workers(
    run: Run, redis_url: str, namespace: str, tmp_path: Path, raw: redis_py.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = made(f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", url)
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "1")
    kept: dict[str, Any] = {"durability": "ledger", "ledger": url, "buckets": 1}
    with Client(redis_url, namespace=namespace, brokers={"memory": "memory://"}, **kept) as client:
        client.schedule_many([Message("memory:q", b"x", delay="30m") for _ in range(3)])
    raw.delete(keys.bucket_key(namespace, 0, "due"))
    (said,) = run("--json", "ledger", "restore").objects
    assert (said["rows"], said["restored"], said["unlisted"]) == (3, 0, 3)
    assert "3 are in Redis, but in no set" in run("ledger", "restore").out

"""The ledger's database comes back with an older past: restored, or a replica that was behind."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis as redis_py

from delaybridge.errors import LedgerUnavailable
from delaybridge.ledger.comparing import healing, older_ledger
from delaybridge.ledger.reconciling import reconciling
from delaybridge.ledger.reconciling.silence import Silence
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.controls_site import PLACE, ControlsSite
from tests.rigs.crew import BUCKETS, CALM, Arrived, Crew, ledger_part
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import until_async

TO = "memory:q"
SOON = {"reconcile_s": 1.0}
LIVE = "UPDATE message SET state = 'delayed', tier = 1, error = NULL"
FULL = "ALTER TABLE transition ADD CONSTRAINT full_disk CHECK (at_ms < 0)"
NOT_FULL = "ALTER TABLE transition DROP CONSTRAINT full_disk"
FULL_SQLITE = """CREATE TRIGGER full_disk BEFORE INSERT ON transition
BEGIN SELECT RAISE(ABORT, 'full_disk'); END"""


@pytest.fixture
async def crew(
    redis_url: str,
    namespace: str,
    arrived: Arrived,
    ledger_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Crew]:
    monkeypatch.setattr(older_ledger, "YOUNG_MS", 0)
    monkeypatch.setattr(reconciling, "_YOUNG_MS", 0)
    async with Crew(redis_url, namespace, ledger=ledger_url) as crew:
        yield crew


@pytest.fixture
def redis(redis_url: str) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis_url) as connection:
        yield connection


async def states_are(ledger: LedgerProbe, **wanted: int) -> None:
    await until_async(lambda: ledger.states() == wanted, lambda: f"{wanted}: {ledger.states()}")


async def knows(crew: Crew, redis: redis_py.Redis, field: str) -> None:
    """Redis has this time."""
    name = keys.ledger(crew.namespace)
    await until_async(lambda: redis.hget(name, field) is not None, f"{field} is known")


async def forgotten(crew: Crew, redis: redis_py.Redis) -> None:
    """Redis does not know any more what left."""
    await until_async(lambda: not [*redis.scan_iter(f"*{crew.namespace}:*:gone")], "it forgets")


@pytest.mark.slow_with("mariadb", "postgres")
async def test_what_ended_since_does_not_come_again(
    crew: Crew,
    redis: redis_py.Redis,
    arrived: Arrived,
    ledger: LedgerProbe,
    caplog: pytest.LogCaptureFixture,
) -> None:
    crew.start(lease=CALM, ledger=SOON)
    ids = await crew.schedule(20, seconds=0.1)
    cancelled = await crew.schedule(10, seconds=1, first_s=600)
    later = await crew.schedule(10, seconds=1, first_s=600)
    for id in cancelled:
        await crew.client.cancel(id)
    await arrived.all(ids)
    await states_are(ledger, published=20, cancelled=10, delayed=10)
    await knows(crew, redis, "told")
    # What left is forgotten by Redis, too, and nothing leaves any more.
    await forgotten(crew, redis)
    await crew.stop()
    ledger.ask("DELETE FROM namespace")  # a backup from before there was any
    ledger.ask(LIVE)
    crew.start(lease=CALM, ledger=SOON)
    await states_are(ledger, cancelled=30, delayed=10)
    assert {id for id in later if ledger.state(id) == "delayed"} == {*later}
    (why,) = {error for (error,) in ledger.ask("SELECT error FROM message WHERE tier = 0")}
    assert why == older_ledger.ENDED
    assert "ledger_went_back" in caplog.text
    assert ledger.ask("SELECT buckets FROM namespace") == [(16,)], "it is known again"
    # From now on it is as good as before: what Redis loses comes back.
    for name in ("due", "messages"):
        redis.delete(*redis.scan_iter(f"*{crew.namespace}:*:{name}"))
    new = await crew.schedule(5, seconds=0.1)
    await arrived.all(new)

    async def all_are_there() -> bool:
        return (await crew.client.stats()).delayed == 10

    await until_async(all_are_there, "all is restored")
    assert arrived.twice == []
    await crew.stop()
    assert caplog.text.count("ledger_went_back") == 1


@pytest.mark.slow_with("mariadb", "postgres")
async def test_what_it_was_told_last_is_told_again_after_a_silence(
    crew: Crew, arrived: Arrived, ledger: LedgerProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lacked it may have taken over. Here Redis forgets nothing of what left."""
    original = healing.seal

    def seal(*args: Any, known: int | None = None, **more: Any) -> Any:
        return original(*args, known=None, **more)

    monkeypatch.setattr(healing, "seal", seal)
    crew.start(lease=CALM)
    ids = await crew.schedule(20, seconds=0.1)
    await arrived.all(ids)
    await states_are(ledger, published=20)
    ledger.ask(LIVE)
    ledger_part(crew).happened.silence.begins(LedgerUnavailable("this test"))
    await states_are(ledger, published=20)
    assert arrived.twice == []
    await crew.stop()


@pytest.mark.slow_with("mariadb", "sqlite")
async def test_a_ledger_that_takes_some_and_refuses_the_rest_does_not_answer(
    crew: Crew,
    arrived: Arrived,
    ledger: LedgerProbe,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a full disk: a row that is changed in place still has room."""
    caplog.set_level(logging.INFO)
    refusals, begins = [], Silence.begins

    def begin(silence: Silence, error: Exception) -> None:
        refusals.append(error)
        begins(silence, error)

    monkeypatch.setattr(Silence, "begins", begin)
    crew.start(lease=CALM)
    await until_async(lambda: "lease_acquired" in caplog.text, "it works")
    is_sqlite = ledger.url.startswith("sqlite")
    ledger.ask(FULL_SQLITE if is_sqlite else FULL)
    await arrived.all(await crew.schedule(20, seconds=0.1))
    await until_async(lambda: len(refusals) >= 3, "it is asked again")
    assert "full_disk" in ledger_part(crew).happened.silence.reason
    assert caplog.text.count("ledger_silent") == 1
    assert "ledger_answers" not in caplog.text
    ledger.ask("DROP TRIGGER full_disk" if is_sqlite else NOT_FULL)
    await states_are(ledger, published=20)
    await until_async(lambda: "ledger_answers" in caplog.text, "it answers")
    await crew.stop()


@pytest.mark.slow_with("mariadb", "postgres")
async def test_cold_messages_that_were_brought_and_left_since_are_not_brought_again(
    crew: Crew,
    redis: redis_py.Redis,
    arrived: Arrived,
    ledger: LedgerProbe,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The promoter looks once a second, and nobody else."""

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(reconciling.Reconciling, "_reconcile", nothing)
    crew.start(lease=CALM, ledger=SOON | {"hot_window_s": 20.0})
    ids = await crew.schedule(20, seconds=0.1)
    cold = await crew.client.schedule(TO, b"x", delay="2h", id="cold")
    await arrived.all(ids)
    await states_are(ledger, published=20, delayed=1)
    await knows(crew, redis, "told")
    await forgotten(crew, redis)
    await crew.stop()
    # All was brought but of one bucket, whose promoter was behind.
    name = keys.ledger(crew.namespace)
    last = bucket_of(ids[0].encode(), BUCKETS)
    behind = {id for id in ids if bucket_of(id.encode(), BUCKETS) == last}
    far_ms = (redis.time()[0] + 60) * 1000
    for n in range(BUCKETS):
        redis.hset(
            name, mapping={f"looked:{n}": far_ms, f"promoted:{n}": far_ms if n != last else 1}
        )
    ledger.ask("UPDATE namespace SET told_ms = 1")
    ledger.ask("UPDATE message SET state = 'delayed', tier = 2")
    crew.start(lease=CALM, ledger=SOON | {"hot_window_s": 20.0})
    await states_are(ledger, cancelled=20 - len(behind), published=len(behind), delayed=1)
    assert ledger.state(cold.id) == "delayed"
    assert {*arrived.twice} == behind, "it is not known that they were brought"
    await crew.stop()


@pytest.mark.slow_with("mariadb", "postgres")
async def test_a_time_of_a_clock_that_was_set_back_holds_nothing_up(
    crew: Crew, redis: redis_py.Redis, ledger: LedgerProbe
) -> None:
    await crew.schedule(20, seconds=1, first_s=600)
    seconds, _ = redis.time()
    name, fast_ms = keys.ledger(crew.namespace), (seconds + 3600) * 1000
    redis.hset(name, "told", fast_ms)
    crew.start(lease=CALM, ledger=SOON)
    await until_async(
        lambda: redis.hmget(name, *range(BUCKETS)).count(None) == 0, "each bucket is through"
    )
    seconds, _ = redis.time()
    assert int(redis.hget(name, "back")) <= (seconds + 1) * 1000
    await crew.stop()
    assert ledger.states() == {"delayed": 20}


@pytest.mark.slow_with("mariadb", "postgres")
def test_of_rules_and_definitions_what_redis_has_counts(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    """Also if they were removed since, of which it keeps nothing."""
    names = "namespace, kind, name, value, changed_ms, birth, made_ms"
    with closing(ControlsSite(redis_url, namespace, ledger_url)) as site:
        site.client.destinations.pause(PLACE)
        site.client.destinations.pause("kafka:removed")
        site.client.recurring.add("removed", "kafka:x", "x", every="300d")
        site.agree()
        before = ledger.ask(f"SELECT {names} FROM control")
        site.client.destinations.limit(PLACE, 5)
        site.client.destinations.resume(PLACE)
        site.client.destinations.resume("kafka:removed")
        site.client.recurring.remove("removed")
        site.client.destinations.pause("kafka:new")
        site.redis.delete(keys.unrecorded(namespace))  # the ledger had all of that
        ledger.ask("DELETE FROM control")
        for row in before:
            marks = ", ".join(f":v{i}" for i in range(len(row)))
            ledger.ask(
                f"INSERT INTO control ({names}) VALUES ({marks})",
                **{f"v{i}": value for i, value in enumerate(row)},
            )
        assert site.recorded("kafka:removed"), "it is back"
        site.store.run_each(
            older_ledger.went_back(namespace, max(row.changed_ms for row in before))
        )
        assert not site.are_agreed
        site.agree()
        for _ in range(2):
            assert site.are_agreed
            assert site.rule() == site.recorded() == {"rate": 5.0}
            assert site.rule("kafka:removed") == site.recorded("kafka:removed") == {}
            assert site.rule("kafka:new")["paused"] is True
            assert site.client.recurring.list() == []
            site.wipe()
            site.agree()

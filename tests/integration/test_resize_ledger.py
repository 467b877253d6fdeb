"""A namespace with a ledger gets other buckets, and one that was resized gets a ledger."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis as redis_py

from delaybridge.client import AsyncClient, Client
from delaybridge.errors import ConfigError
from delaybridge.ledger.comparing.agreement import restore_missing
from delaybridge.ledger.comparing.along import refuse_ended, regrouped
from delaybridge.ledger.recording.recorder import LedgerRecorder
from delaybridge.message import Message
from delaybridge.resize import resizing
from delaybridge.store.protocol import keys
from delaybridge.store.protocol.verbs import bucket_of
from tests.rigs.command_line import Run, runner
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.hand_mover import HandMover
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import until_async
from tests.servers.redis import RedisServer

SOON = {"reconcile_s": 1.0}
HOT_AND_COLD = ("cold", "10h"), ("hot", "30m")


async def _resize(crew: Crew, count: int) -> None:
    crew.start(buckets=2, lease=CALM)
    await crew.client.run(lambda calls: resizing.begin(calls, count))

    async def is_over() -> bool:
        return (await crew.client.run(resizing.progress)).to is None

    await until_async(is_over, "the messages have moved")
    await crew.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_up", [True, False])
async def test_it_is_made_again_as_it_was_resized(
    server: RedisServer,
    namespace: str,
    arrived: Arrived,
    ledger_url: str,
    ledger: LedgerProbe,
    caplog: pytest.LogCaptureFixture,
    is_up: bool,
) -> None:
    """is_up: a worker that knows the layout is there when Redis is wiped."""
    async with Crew(server.url, namespace, 2) as before:
        await before.client.schedule("memory:q", b"x", delay="1h", id="first")
        await _resize(before, 4)
    async with Crew(server.url, namespace, 2, ledger=ledger_url) as crew:
        with caplog.at_level(logging.WARNING):
            crew.start(lease=CALM, ledger=SOON, buckets=2)
            ids = [f"m{n}" for n in range(20)]
            await crew.client.schedule_many(
                [Message("memory:q", b"x", id=id, delay="30m") for id in ids]
            )
            with redis_py.Redis.from_url(server.url) as on:
                await until_async(lambda: on.exists(keys.ledger(namespace)), "a worker has looked")
                assert ledger.ask("SELECT buckets FROM namespace") == [(4,)]
                record = on.get(keys.birth(namespace))
                if not is_up:
                    await crew.stop()
                on.flushall()
                if not is_up:
                    crew.start(lease=CALM, ledger=SOON, buckets=2)
                await until_async(lambda: on.get(keys.birth(namespace)) == record, "as it was")
        assert "ledger_went_back" not in caplog.text

        async def are_back() -> bool:
            return (await crew.client.stats()).delayed == 20

        await until_async(are_back, "all that have a row")
        async with AsyncClient(server.url, namespace=namespace, buckets=2) as stranger:
            assert await stranger.get("m7") is not None
        await crew.stop()
    assert {n for (n,) in ledger.ask("SELECT DISTINCT bucket FROM message")} <= {2, 3, 4, 5}


def test_who_resizes_one_with_a_ledger_has_it_too(
    run: Run, redis_url: str, namespace: str, raw: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.schedule("rabbitmq:/q", b"x", delay="1h", id="a")
        raw.hset(keys.ledger(namespace), "told", 1)
        with pytest.raises(ConfigError, match="has a ledger"):
            client.run(lambda calls: resizing.begin(calls, 8))
        said = run("bucket", "resize", "8")
        assert said.code == 2
        assert "ledger.url" in said.err
        raw.delete(keys.ledger(namespace))
        client.run(lambda calls: resizing.begin(calls, 8))


def _live(ledger: LedgerProbe) -> dict[str, int]:
    found = ledger.ask("SELECT id, bucket FROM message WHERE tier > 0")
    assert len(found) == len({id for id, _ in found})
    return {str(id): int(bucket) for id, bucket in found}


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
@pytest.mark.slow_with("mariadb", "postgres")
def test_each_message_is_found_wherever_it_is(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe, sizes: tuple[int, int]
) -> None:
    """Hot ones in a bucket that gives its messages away, on their way, or there; and cold ones."""
    kinds = {f"{kind}{n}": delay for n in range(12) for kind, delay in HOT_AND_COLD}
    with (
        Client(
            redis_url, namespace=namespace, buckets=sizes[0], durability="ledger", ledger=ledger_url
        ) as client,
        Client(
            redis_url, namespace=namespace, buckets=sizes[0], durability="ledger", ledger=ledger_url
        ) as late,
    ):
        late.get("nothing")  # it knows the buckets as they are now
        client.schedule_many(
            Message("kafka:q", b"x", id=id, delay=delay) for id, delay in kinds.items()
        )
        mover = HandMover(client, sizes[1], limit=2)
        left = set(kinds)
        for number in mover.sources:
            assert mover.begin(number)
            landed = mover.lift(number).page
            assert landed is not None
            assert mover.land(number, landed) == []
            assert mover.lift(number, landed.stamp).page is not None  # it is on its way
        for n, caller in enumerate((client, late)):
            for kind, _ in HOT_AND_COLD:
                assert all(caller.get(f"{kind}{i}") is not None for i in range(2 * n, 12))
                assert caller.cancel(f"{kind}{2 * n}") == "cancelled"
                assert caller.cancel(f"{kind}{2 * n}") == "unknown"
                assert caller.reschedule(f"{kind}{2 * n + 1}", delay="20m") == "rescheduled"
                again = Message("kafka:q", b"x", id=f"{kind}{2 * n + 1}", delay="20m")
                assert [*caller.schedule_many([again])] == ["duplicate"]
                left.discard(f"{kind}{2 * n}")
        for number in mover.sources:
            mover.empty(number)
            assert client._store.recorder is not None
            client.run(lambda _, n=number: client._store.recorder.retiring(mover.bucket(n)))
        mover.finish()
        assert late.cancel("cold5") == late.cancel("hot5") == "cancelled"
        left -= {"cold5", "hot5"}
        assert late.stats().delayed == len(left)
        first = sizes[0]
        placed = {id: first + bucket_of(id.encode(), sizes[1]) for id in left}
        assert _live(ledger) == placed
        for id in left:
            assert client.cancel(id) == "cancelled"
        assert _live(ledger) == {}
        assert client.stats().delayed == 0


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.slow_with("mariadb", "postgres")
def test_who_knows_other_buckets_than_a_redis_that_was_wiped_since_finds_its_messages(
    redis_url: str,
    namespace: str,
    ledger_url: str,
    ledger: LedgerProbe,
    raw: redis_py.Redis,
    knows: bool,
) -> None:
    """knows: that they are being resized; else it has not called since before."""
    ledgered = {"buckets": 2, "durability": "ledger", "ledger": ledger_url}
    with (
        Client(redis_url, namespace=namespace, **ledgered) as client,  # type: ignore[arg-type]
        Client(redis_url, namespace=namespace, **ledgered) as late,  # type: ignore[arg-type]
    ):
        assert late.get("nothing") is None
        mover = HandMover(client, 4)
        for number in mover.sources:
            assert mover.begin(number)
        assert not knows or late.get("nothing") is None
        for number in mover.sources:
            mover.empty(number)
        mover.finish()
        raw.delete(*raw.keys(f"{{{namespace}*"))  # type: ignore[misc]
        client.run(lambda calls: calls.open(again=True))
        client.schedule("kafka:q", b"x", id="known", delay="1h")
        ids = [f"m{n}" for n in range(8)]
        late.schedule_many(Message("kafka:q", b"x", id=id, delay="1h") for id in ids[:4])
        assert isinstance(client._store.recorder, LedgerRecorder)
        records = client._store.recorder.records
        for bucket in client.run(lambda calls: calls.every_bucket()):
            assert bucket.number >= 2
            client.run(lambda _, b=bucket: refuse_ended(records, b))
            client.run(lambda _: regrouped(records))
            client.run(lambda _, b=bucket: restore_missing(b, records))
        late.schedule_many(Message("kafka:q", b"x", id=id, delay="1h") for id in ids[4:])
        assert client.stats().delayed == 9
        assert [late.cancel(id) for id in ids] == ["cancelled"] * 8
        assert client.stats().delayed == 1
        assert [*_live(ledger)] == ["known"]


@pytest.mark.slow
async def test_a_redis_that_is_wiped_midway_has_the_new_buckets(
    server: RedisServer, namespace: str, arrived: Arrived, ledger_url: str, ledger: LedgerProbe
) -> None:
    async with Crew(server.url, namespace, 4, ledger=ledger_url) as crew:
        crew.start("a", lease=CALM, ledger=SOON, buckets=4)
        crew.start("b", lease=CALM, ledger=SOON, buckets=4)
        later = [f"{kind}{n}" for n in range(20) for kind, _ in HOT_AND_COLD]
        await crew.client.schedule_many(
            [Message("memory:q", b"x", id=id, delay="20m" if id < "d" else "9h") for id in later]
        )
        soon = await crew.schedule(200, seconds=20, first_s=5)
        await crew.client.run(lambda calls: resizing.begin(calls, 16))

        async def has_begun() -> bool:
            found = await crew.client.run(resizing.progress)
            return found.done > 0 and found.to is not None

        await until_async(has_begun, "some buckets have moved")
        with redis_py.Redis.from_url(server.url) as on:
            on.flushall()
            ended = "4@0-16@4:"
            read = lambda: (on.get(keys.birth(namespace)) or b"").decode()  # noqa: E731
            await until_async(lambda: read().startswith(ended), "it has the new buckets alone")
        await arrived.all(soon)

        async def are_back() -> bool:
            return (await crew.client.stats()).delayed == len(later)

        await until_async(are_back, "all that have a row")
        answers = [await crew.client.cancel(id) for id in later]
        assert answers == ["cancelled"] * len(later)
        await crew.settled()
    assert not set(arrived.at_ms) & set(later)
    assert min(_live(ledger).values(), default=4) >= 4


@pytest.mark.slow
async def test_cold_messages_are_on_time_while_others_move(
    server: RedisServer, namespace: str, arrived: Arrived, ledger_url: str, ledger: LedgerProbe
) -> None:
    """Also while the resize is paused; no worker ends the sources meanwhile."""
    async with Crew(server.url, namespace, 4, ledger=ledger_url, hot_window_s=10.0) as crew:
        hot = SOON | {"hot_window_s": 10.0}
        ids = await crew.schedule(120, seconds=60, first_s=8)
        crew.start("a", lease=CALM, ledger=hot, buckets=4)
        await crew.client.run(lambda calls: resizing.begin(calls, 8))

        async def has_begun() -> bool:
            return (await crew.client.run(resizing.progress)).moving > 0

        await until_async(has_begun, "some move")
        await crew.client.run(lambda calls: resizing.pause(calls, paused=True))
        await arrived.all(ids[:80])
        await crew.client.run(lambda calls: resizing.pause(calls, paused=False))
        await arrived.all(ids)
        await until_async(lambda: not _live(ledger), "the ledger knows what left")
        await crew.stop("a")
    assert arrived.twice == []
    assert min(arrived.late_ms) > -2


@pytest.mark.slow_with("mariadb", "postgres")
def test_its_messages_move_to_a_namespace_with_more_buckets(
    run: Run,
    redis_url: str,
    namespace: str,
    ledger_url: str,
    ledger: LedgerProbe,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By export and import: hot and cold ones, each in one place at the end."""
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    monkeypatch.setenv("DELAYBRIDGE_DURABILITY", "ledger")
    monkeypatch.setenv("DELAYBRIDGE_LEDGER__URL", ledger_url)
    wide, ids = f"{namespace}-wide", {f"m{n}" for n in range(30)}
    with Client(
        redis_url, namespace=namespace, buckets=4, durability="ledger", ledger=ledger_url
    ) as client:
        client.schedule_many(
            Message("rabbitmq:/q", b"x", id=id, delay="10m" if n % 2 else "10h", key=id[-1:])
            for n, id in enumerate(sorted(ids))
        )
        lines, stored = str(tmp_path / "all.jsonl"), str(tmp_path / "stored.jsonl")
        assert "delayed          30" in run("stats").out
        assert run("message", "export", "-o", lines).err == "30 delayed\n"
        with monkeypatch.context() as there:
            there.setenv("DELAYBRIDGE_BUCKETS", "16")
            into = runner(["--redis", redis_url, "--namespace", wide], capsys, there)
            assert into("message", "import", lines, "--receipt", stored).code == 0
        assert run("message", "cancel", "--from-file", stored, "--yes").code == 0
        assert client.stats().delayed == 0
    live = "SELECT namespace, id, tier, bucket FROM message WHERE tier > 0"
    rows = ledger.ask(live)
    assert {(where, id) for where, id, _, _ in rows} == {(wide, id) for id in ids}
    assert len(rows) == 30
    assert {tier for _, _, tier, _ in rows} == {1, 2}
    assert max(number for *_, number in rows) > 3
    with Client(
        redis_url, namespace=wide, buckets=16, durability="ledger", ledger=ledger_url
    ) as client:
        assert client.stats().delayed == 30
        assert client.cancel("m0", key=b"0") == "cancelled"


def test_one_that_is_being_resized_gets_a_ledger(
    redis_url: str, namespace: str, ledger_url: str, ledger: LedgerProbe
) -> None:
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.run(lambda calls: resizing.begin(calls, 8))
    with Client(
        redis_url, namespace=namespace, buckets=4, durability="ledger", ledger=ledger_url
    ) as late:
        late.schedule("rabbitmq:/q", b"x", delay="1h", id="a")
        assert [*_live(ledger)] == ["a"]

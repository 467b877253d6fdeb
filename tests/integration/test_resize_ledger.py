"""A namespace that was resized gets a ledger, and one with a ledger is not resized."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import redis as redis_py

from delaybridge.client import AsyncClient, Client
from delaybridge.errors import ConfigError
from delaybridge.message import Message
from delaybridge.resize import resizing
from delaybridge.store.protocol import keys
from tests.rigs.command_line import Run, runner
from tests.rigs.crew import CALM, Arrived, Crew
from tests.rigs.ledgers import LedgerProbe
from tests.rigs.waiting import until_async
from tests.servers.redis import RedisServer

SOON = {"reconcile_s": 1.0}


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


def test_one_with_a_ledger_is_not_resized_whoever_asks(
    run: Run, redis_url: str, namespace: str, raw: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELAYBRIDGE_BUCKETS", "4")
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.schedule("rabbitmq:/q", b"x", delay="1h", id="a")
        raw.hset(keys.ledger(namespace), "told", 1)
        with pytest.raises(ConfigError, match="with a ledger"):
            client.run(lambda calls: resizing.begin(calls, 8))
        said = run("bucket", "resize", "8")
        assert said.code == 2
        assert "message export" in said.err
        raw.delete(keys.ledger(namespace))
        client.run(lambda calls: resizing.begin(calls, 8))


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
    """What the error of a resize says: hot and cold ones, each in one place at the end."""
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


def test_one_that_is_being_resized_gets_no_ledger(
    redis_url: str, namespace: str, ledger_url: str
) -> None:
    with Client(redis_url, namespace=namespace, buckets=4) as client:
        client.run(lambda calls: resizing.begin(calls, 8))
    with (
        Client(
            redis_url, namespace=namespace, buckets=4, durability="ledger", ledger=ledger_url
        ) as late,
        pytest.raises(ConfigError, match="is being resized"),
    ):
        late.schedule("rabbitmq:/q", b"x", delay="1h")
